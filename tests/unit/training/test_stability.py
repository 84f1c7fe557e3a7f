"""Runs whose losses end or pass far above their start say so."""

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.training.stability import judge_losses

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=DRAW)
Y = X.sum(1)
OWNER = torch.arange(40) % 4
OPTIONS = {"rounds": 3, "steps": 5, "batch": None, "device": "cpu", "engine": "loop"}


def regression(x=X, owner=OWNER, test=True):
    return tf.Federation(x, Y[: len(x)], owner, test=(x, Y[: len(x)]) if test else None)


def line():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loud(lr=1.2, **given):
    return tf.methods.get("fedavg", lr=lr, **given)


@pytest.mark.parametrize("test", [True, False])
def test_a_run_that_ends_far_above_its_start_diverged(test, caplog):
    run = tf.fit(line(), regression(test=test), loud(), **OPTIONS)
    assert len(run.history) == 3
    assert torch.isfinite(run.x).all()
    assert run.status == run.summary["status"] == "diverged"
    (said,) = caplog.messages
    assert said.startswith(f"The run is diverged: the {'test' if test else 'training'} loss ended")
    assert "Likely cause: too large a lr. Try a smaller lr (it is 1.2)" in said


def test_the_start_is_the_model_before_round_0(caplog):
    """All of the growth may be in the first round."""
    run = tf.fit(line(), regression(), loud(), **OPTIONS | {"rounds": 1, "steps": 20})
    assert run.status == "diverged"


def test_a_first_round_that_is_far_above_the_start_is_unstable():
    rows = [{"train_loss": v, "test_loss": 3.0} for v in (2.8e20, 33.0, 28.0)]
    assert judge_losses(rows) is None  # nothing to compare with
    found = judge_losses(rows, lambda: 1.1)
    assert found == ("unstable", "the training loss rose from 1.1 to 2.8e+20")
    assert judge_losses([{"train_loss": 1e4, "test_loss": 9e3}], lambda: 2e4) is None


def test_columns_of_unequal_scale_are_the_likely_cause(caplog):
    x = X * torch.tensor([1.0, 1000.0, 1.0])
    run = tf.fit(line(), regression(x), loud(2e-6), **OPTIONS)
    assert run.status == "diverged"
    assert (
        "Likely cause: columns that differ in scale by a factor of 9e+02. "
        "Try tf.Preprocess(scale='standard'), a smaller lr" in (caplog.messages[-1])
    )


def test_a_client_with_one_sample_is_the_likely_cause(caplog):
    owner = OWNER.clone()
    owner[0] = 9
    tf.fit(line(), regression(owner=owner), loud(weights="uniform"), **OPTIONS)
    assert "Likely cause: 1 client with one sample" in caplog.messages[-1]
    assert "weights='samples'" in caplog.messages[-1]
    tf.fit(line(), regression(owner=owner), loud(), **OPTIONS)
    assert "weights='samples'" not in caplog.messages[-1]


def test_a_run_without_finite_numbers_has_the_same_advice(caplog):
    run = tf.fit(line(), regression(), loud(1e30), **OPTIONS)
    assert run.status == "diverged"
    assert len(run.history) < 3
    assert "no longer finite; the state before it is kept. Likely cause: too large" in caplog.text


def test_a_run_that_swings_is_unstable():
    class Jump(tf.server.Server):
        """Goes far away in one round, and back in the next."""

        needs = ("delta",)

        def step(self, x, mean, state, t, query):
            away = {2: 1e3, 3: -1e3}.get(t.index, 0.0)
            return x + mean["delta"] + away, state, {}

    method = tf.Method(step=tf.clients.Constant(0.1), server=Jump())
    run = tf.fit(line(), regression(), method, **OPTIONS | {"rounds": 20})
    assert run.status == "unstable"


def test_with_the_best_model_kept_a_run_is_unstable():
    kept = tf.Evaluate(validation=0.2, keep_best=True)
    run = tf.fit(line(), regression(), loud(), evaluate=kept, **OPTIONS)
    assert run.status == "unstable"


def test_a_good_run_says_nothing(caplog):
    run = tf.fit(line(), regression(), loud(0.3), **OPTIONS | {"rounds": 30})
    assert run.history[-1]["test_loss"] < 1e-6
    assert run.status == "finished"
    assert tf.fit(run, regression(), loud(0.3), **OPTIONS).status == "finished"
    assert not caplog.records


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([2.3, 1e-2, 1e-5, 1e-9], None),
        ([1e-9, 1e-7, 1e-5], None),  # a warm start
        ([2.3, 0.5, 20.0, 0.5], None),
        ([2.3, 0.05, 3.0, 0.04], None),
        ([2.3, 0.05, 6.0, 0.04], "unstable"),
        ([2.3, 3.0, 500.0, 500.0, 500.0], "diverged"),
        ([2.3, 0.5, 0.5, 500.0], "unstable"),  # one bad measurement
        ([None, 2.3, float("nan"), 2.0], None),
        ([], None),
    ],
)
def test_losses(losses, status):
    found = judge_losses([{"train_loss": v} for v in losses])
    assert (None if found is None else found[0]) == status
