"""`Evaluate(monitor=...)`: which validation metric early stopping and keep-best follow."""

import pytest
import torch

import tunefree as tf
from helpers import CrashError, Quadratics, fit
from tunefree.core.errors import ArgumentError, ResumeError
from tunefree.training.best import validation_score

SPREAD = {"spread": lambda output, target: output.std()}
QUIET = tf.methods.get("fedavg", lr=0.3)


def evaluate(name, mode=None, **more):
    return tf.Evaluate(validation=0.5, metrics=SPREAD, monitor=name, mode=mode, **more)


def chosen(name, mode=None, **more):
    """Train with keep_best, and return the run, the values of the metric and the models."""
    seen = []
    run = fit(
        QUIET, rounds=8, callbacks=[seen.append], evaluate=evaluate(name, mode, keep_best=True)
    )
    return run, [e.row[f"validation_{name}"] for e in seen], [e.output for e in seen]


@pytest.mark.parametrize(
    ("name", "mode", "best"),
    [("loss", None, min), ("accuracy", None, max), ("spread", "min", min), ("spread", "max", max)],
)
def test_keep_best_follows_the_metric(name, mode, best):
    run, values, outputs = chosen(name, mode)
    assert len(set(values)) > 1
    index = values.index(best(values))
    assert torch.equal(run.output, outputs[index])
    assert run.summary[f"validation_{name}"] == values[index]
    assert run.summary["validation_loss"] == run.history[index]["validation_loss"]


def test_directions_ship_different_models():
    low, high = chosen("spread", "min")[0], chosen("spread", "max")[0]
    assert not torch.equal(low.output, high.output)


def untested():
    """A regression without a test set."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 10, 3, generator=draw), torch.randn(4, 10, 1, generator=draw)
    return tf.Federation(list(zip(x, y, strict=True)))


def test_patience_follows_the_metric():
    values = iter([5.0, 4.0, 4.0, 3.0, 9.0, 9.0, 9.0, 9.0])
    metrics = {"own": lambda output, target: next(values)}
    fed = untested()
    given = tf.Evaluate(validation=0.5, metrics=metrics, monitor="own", mode="min", patience=2)
    run = fit("auto", rounds=8, fed=fed, model=torch.nn.Linear(3, 1), evaluate=given)
    assert (run.status, len(run.history)) == ("stopped early", 6)
    assert [row["validation_own"] for row in run.history][:4] == [5.0, 4.0, 4.0, 3.0]


def test_the_default_is_the_accuracy_where_there_is_one():
    run = fit(evaluate=tf.Evaluate(validation=0.5))
    assert (run.settings["monitor"], run.settings["mode"]) == ("accuracy", "max")
    run = Quadratics().fit(QUIET, evaluate=tf.Evaluate(validation=0.25))
    assert (run.settings["monitor"], run.settings["mode"]) == ("loss", "min")
    assert fit().settings["monitor"] is None


def test_a_value_that_is_not_a_number_is_never_the_best():
    assert validation_score({"validation_f": float("nan")}, {"monitor": "f", "mode": "max"}) is None
    metrics = {"none": lambda output, target: float("nan")}
    given = tf.Evaluate(
        validation=0.5, metrics=metrics, monitor="none", mode="max", keep_best=True, patience=2
    )
    run = fit(rounds=5, evaluate=given)
    assert (run.status, len(run.history)) == ("stopped early", 2)
    assert run.summary["test_loss"] == run.history[-1]["test_loss"]


def test_runs_from_before_the_option_are_read():
    assert validation_score({"validation_accuracy": 0.5, "validation_loss": 2.0}, {}) == -0.5
    assert validation_score({"validation_loss": 2.0}, {}) == 2.0
    assert validation_score({"test_loss": 2.0}, {}) is None


def test_resume_keeps_it(tmp_path):
    given = {"rounds": 8, "evaluate": evaluate("spread", "max", keep_best=True), "out": tmp_path}

    def crash(event):
        if event.round == 5:
            raise CrashError

    with pytest.raises(CrashError):
        fit(QUIET, checkpoint_every=1, callbacks=[crash], **given)
    with pytest.raises(ResumeError, match="mode was 'max', now 'min'"):
        fit(QUIET, **given | {"evaluate": evaluate("spread", "min", keep_best=True)})
    whole = chosen("spread", "max")[0]
    assert torch.equal(fit(QUIET, **given).output, whole.output)
    loaded = tf.Run.load(tmp_path)
    assert loaded.summary["validation_spread"] == whole.summary["validation_spread"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"monitor": "f1", "metrics": SPREAD},
            "Evaluate(monitor=...) must be one of 'loss', 'calibrated_loss', 'accuracy', 'spread', "
            "got 'f1'.",
        ),
        (
            {"monitor": "spread", "metrics": SPREAD},
            "Evaluate(monitor='spread') is a metric of your own; give mode='max' if higher is "
            "better, mode='min' if lower is.",
        ),
        (
            {"monitor": "loss", "mode": "max"},
            "Evaluate(monitor='loss', mode='max') cannot be; leave mode out, or use mode='min'.",
        ),
        (
            {"monitor": "loss", "mode": "auto"},
            "Evaluate(mode=...) must be 'min' or 'max', got 'auto'.",
        ),
        (
            {"mode": "max"},
            "Evaluate(mode='max') is the direction of monitor; give monitor as well.",
        ),
        (
            {"tolerance": 1.0, "keep_best": True},
            "Evaluate(tolerance=...) chooses among models by their loss; give keep_best=True, "
            "monitor='loss'.",
        ),
        (
            {"tolerance": -1.0, "keep_best": True, "monitor": "loss"},
            "Evaluate(tolerance=...) must be a finite number >= 0, got -1.0.",
        ),
        (
            {"monitor": "loss", "validation": None},
            "Evaluate(patience=..., keep_best=..., monitor=...) choose by validation data; give "
            "validation=0.1 or so.",
        ),
    ],
)
def test_what_cannot_be_followed(given, words):
    with pytest.raises(ArgumentError) as error:
        tf.Evaluate(**{"validation": 0.5} | given)
    assert str(error.value) == words


def test_accuracy_of_a_regression():
    with pytest.raises(ArgumentError, match=r"needs classes.*use one of 'loss', 'spread'\."):
        Quadratics().fit(QUIET, evaluate=evaluate("accuracy"))


def test_metrics_without_a_test_set():
    fed = untested()
    run = fit(fed=fed, model=torch.nn.Linear(3, 1), evaluate=evaluate("spread", "max"))
    assert "validation_spread" in run.history[-1]
    assert "test_spread" not in run.history[-1]
