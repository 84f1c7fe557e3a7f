"""Tuning: what is chosen, by what, and what it cost to the last gradient."""

import json
import signal

import pytest
import torch

import tunefree as tf
from helpers import Quadratics, labelled
from tunefree.core.errors import ArgumentError, Interrupted
from tunefree.study import tasks, tuning
from unit.study.test_comparison import SMALL, model

WILD = 1e308  # overflows in float64


def tune(method="fedavg", grid=None, **settings):
    given = {"progress": False, "fed": labelled(rows=20)} | SMALL | {"rounds": 9} | settings
    return tf.tune(model, given.pop("fed"), method, grid, **given)


def total(folder, name):
    lines = [p.read_text().splitlines() for p in folder.glob("*/seed-*/history.jsonl")]
    return sum(json.loads(line)[name] for rows in lines for line in rows)


def test_the_best_of_a_grid_by_validation(tmp_path):
    found = tune(grid={"lr": (1e-6, 0.3, WILD)}, seeds=2, out=tmp_path)
    assert found.settings == {"lr": 0.3}
    assert found.method == tf.methods.get("fedavg", lr=0.3)
    assert [run.settings["seed"] for run in found.runs] == [0, 1]
    assert found.measure == "validation_accuracy"
    assert {r.settings["validation"] for p in found.points for r in p.runs} == {0.1}
    scores = [row["score"] for row in found.table()]
    finals = [[r.history[-1]["validation_accuracy"] for r in p.runs] for p in found.points[:2]]
    assert scores == pytest.approx([sum(finals[0]) / 2, sum(finals[1]) / 2, None])
    assert [row["chosen"] for row in found.table()] == [False, True, False]
    assert found.bold == {(1, "score")}
    assert "diverged" in found.table()[2]["note"]
    assert (
        tune(grid={"lr": (0.3,)}, evaluate=tf.Evaluate(validation=0.4))
        .runs[0]
        .settings["validation"]
        == 0.4
    )


def test_the_cost_is_the_sum_over_everything(tmp_path):
    found = tune(grid={"lr": (1e-6, 0.3, WILD)}, seeds=2, out=tmp_path)
    for name in ("gradients", "bytes_up", "bytes_down", "seconds"):
        assert found.cost[name] == pytest.approx(total(tmp_path, name), rel=1e-12)
    assert found.cost["runs"] == 6
    assert (
        found.cost["gradients"] > 2 * 2 * 9 * 2 * 2
    )  # two whole points, and the one that diverged
    assert found.cells()[-1]["gradients"] == f"{found.cost['gradients']:,.0f}"


def test_a_method_that_breaks_is_paid_for(monkeypatch):
    """Failures' rounds are counted too."""

    def train(*given, callbacks, **more):
        def break_off(event):
            if event.round == 1:
                raise RuntimeError("no")

        return real(*given, callbacks=[*callbacks, break_off], **more)

    real = tasks.train
    monkeypatch.setattr(tasks, "train", train)
    found = tune(grid={"lr": (0.1, 0.3)})
    assert found.cost["gradients"] == 2 * 2 * 2 * 2  # settings, rounds, cohort, steps
    assert found.ranked() == []
    with pytest.raises(tf.TunefreeError, match="No setting of fedavg ended well"):
        _ = found.best
    assert found.sentences[0].startswith("No setting of fedavg ended well")


def test_by_test_says_so():
    found = tune(grid={"lr": (0.1, 0.3)}, by="test")
    assert found.measure == "test_accuracy"
    assert found.runs[0].settings["validation"] is None
    assert any("biased" in line for line in found.sentences)
    assert not any("biased" in line for line in tune(grid={"lr": (0.1, 0.3)}).sentences)


def test_losses_where_there_is_no_accuracy():
    q = Quadratics()
    settings = {"rounds": 4, "steps": 4, "batch": None, "cohort": None}
    found = tf.tune(
        q.model([0.0, 0.0]),
        q.federation(),
        "fedavg",
        {"lr": (1e-06, 0.5 / q.smoothness, WILD)},
        progress=False,
        device="cpu",
        dtype=torch.float64,
        evaluate=tf.Evaluate(validation=0.2),
        **settings,
    )
    assert found.measure == "validation_loss"
    assert found.settings["lr"] == 0.5 / q.smoothness


def test_rungs():
    assert tuning.plan_rungs(9, 90, 1) == [(9, 10), (3, 30), (1, 90)]
    assert tuning.plan_rungs(25, 100, 1) == [(25, 12), (9, 34), (3, 100)]
    assert tuning.plan_rungs(5, 50, 10) == [(5, 20), (2, 50)]
    assert tuning.plan_rungs(2, 50, 1) == [(2, 50)]
    assert tuning.plan_rungs(9, 2, 1) == [(9, 1), (3, 2)]
    assert tuning.plan_rungs(27, 81, 100) == [(27, 81)]


GRID = {"lr": (1e-6, 1e-5, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)}


def test_halving_spends_what_it_says(tmp_path):
    found = tune(grid=GRID, out=tmp_path, halving=True, by="test")
    played = sorted(p.rounds for p in found.points)
    assert played == [1] * 6 + [3] * 2 + [9]
    rounds = [len(r.history) for p in found.points for r in p.runs]
    assert sum(rounds) == 6 * 1 + 2 * 3 + 9
    assert found.cost["gradients"] == 4 * sum(rounds) == total(tmp_path, "gradients")
    assert found.best.rounds == 9
    alone = tune(grid={"lr": (found.settings["lr"],)}, by="test")
    assert torch.equal(alone.runs[0].x, found.runs[0].x)  # continued, bit by bit


def test_halving_sees_the_whole_schedule(tmp_path):
    """A rung is the beginning of the whole run, whatever depends on the number of rounds."""
    fixed = {"schedule": "cosine"}
    found = tune(grid=GRID, out=tmp_path, halving=True, fixed=fixed)
    alone = tune(grid={"lr": (found.settings["lr"],)}, fixed=fixed)
    assert torch.equal(alone.runs[0].x, found.runs[0].x)


def test_halving_again_decides_the_same(tmp_path, monkeypatch):
    found = tune(grid=GRID, out=tmp_path, halving=True)
    monkeypatch.setattr(tasks, "train", None)  # nothing is trained
    again = tune(grid=GRID, out=tmp_path, halving=True)
    assert again.table() == found.table()
    loaded = tf.Tuning.load(tmp_path)
    assert loaded.table() == found.table()
    assert (loaded.settings, loaded.cost) == (found.settings, found.cost)
    assert loaded.method == found.method


def test_a_folder_describes_settings_that_are_objects(tmp_path):
    wires = [tf.wire.TopK(0.1), tf.wire.QSGD(3)]
    fixed = {"schedule": tf.clients.Schedule("linear")}
    found = tune(grid={"wire": wires}, fixed=fixed, out=tmp_path)
    loaded = tf.Tuning.load(tmp_path)
    assert loaded.markdown() == found.markdown()
    assert loaded.settings == {"wire": repr(found.settings["wire"])}
    assert loaded.fixed == {"schedule": repr(fixed["schedule"])}
    with pytest.raises(ArgumentError, match=r"objects among the settings of fedavg as a descr"):
        loaded.method  # noqa: B018


def test_ctrl_c_and_again(tmp_path):
    pressed = []

    def press(event):
        if event.round == 4 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    grid = {"lr": (0.1, 0.3)}
    with pytest.raises(Interrupted, match="Call tune again with out="):
        tune(grid=grid, out=tmp_path / "a", callbacks=[press])
    found, whole = tune(grid=grid, out=tmp_path / "a"), tune(grid=grid)
    assert found.settings == whole.settings
    assert torch.equal(found.runs[0].x, whole.runs[0].x)
    assert found.cost["gradients"] == whole.cost["gradients"]


def test_the_edge_of_a_grid_is_pointed_out():
    assert tune(grid={"lr": (1e-8, 0.3)}).edges == [
        "The best lr, 0.3, is the largest tried: widen the grid."
    ]
    assert tune(grid={"lr": (1e-8, 0.3, WILD)}).edges == []


@pytest.mark.parametrize("name", tf.methods.names())
def test_every_choice_has_a_grid(name):
    choose = tf.methods.CATALOGUE[name].choose
    if not choose:
        with pytest.raises(tf.TunefreeError, match=f"{name} has nothing to choose"):
            tuning.default_grid(name)
        return
    found = tuning.default_grid(name)
    assert tuple(found) == choose
    for setting, values in found.items():
        assert list(values) == sorted(set(values))
        assert len(values) >= 3
        default = tf.methods.settings(name)[setting].default
        assert values[0] <= default <= values[-1]


def test_grids_of_the_feddua_paper():
    """Half-decades 1e-2 .. 1 for clients, 1e-4 .. 1e-2 for FedOpt servers, mu by decades."""
    assert tuning.default_grid("fedavg") == {"lr": (0.01, 0.0316, 0.1, 0.316, 1.0)}
    assert tuning.default_grid("fedadam")["server_lr"] == (0.0001, 0.000316, 0.001, 0.00316, 0.01)
    assert tuning.default_grid("fedprox")["mu"] == (0.001, 0.01, 0.1, 1.0)


BAD = {
    "method": ({"method": "fedagv"}, "Unknown method 'fedagv'"),
    "name": ({"grid": {"lrr": (1,)}}, "Unknown argument of fedavg 'lrr'. Did you mean 'lr'?"),
    "value": ({"grid": {"lr": (0.1, -1.0)}}, "must be a finite number > 0, got -1.0"),
    "empty": ({"grid": {"lr": ()}}, "must list values for lr, got ()"),
    "none": ({"grid": {}}, "must map settings of fedavg to values"),
    "text": ({"grid": {"lr": "0.1"}}, "must list values for lr, got '0.1'"),
    "twice": ({"grid": {"lr": (0.1, 0.1)}}, "must list different values, got fedavg:lr=0.1 twice"),
    "both": ({"grid": {"lr": (0.1,)}, "fixed": {"lr": 1.0}}, "cannot be both set to 1.0 and"),
    "by": ({"by": "luck"}, "Unknown way to choose 'luck'"),
    "folder": ({"halving": True}, "it needs a folder"),
    "argument": ({"round": 3}, "Unknown argument of tune 'round'. Did you mean 'rounds'?"),
    "seeds": ({"seeds": 0}, "tune(seeds=...) must be"),
    "test": ({"by": "test", "fed": Quadratics().federation()}, "needs a test set"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_come_before_anything_is_trained(monkeypatch, case):
    monkeypatch.setattr(tasks, "train", None)
    settings, sentence = BAD[case]
    if case == "test":
        settings = settings | {"batch": None, "cohort": None, "loss": "mse"}
        monkeypatch.setattr("unit.study.test_tuning.model", lambda seed: Quadratics().model([0, 0]))
    with pytest.raises(tf.TunefreeError) as error:
        tune(**settings)
    assert sentence in str(error.value)


def test_a_tuned_baseline_in_a_comparison(tmp_path):
    found = tune(grid={"lr": (1e-6, 0.3)})
    pair = {"fedavg": found, "auto": "auto"}
    both = tf.compare(model, labelled(rows=20), pair, seeds=2, progress=False, **SMALL)
    rows = {row["label"]: row for row in both.table()}
    assert rows["fedavg"]["tuning_gradients"] == found.cost["gradients"]
    assert rows["auto"]["tuning_gradients"] is None
    assert {r.settings["method"]["step"]["lr"] for r in both.runs["fedavg"]} == {0.3}
    assert both.report(tmp_path / "page.html").exists()


def test_tuned_in_a_word(tmp_path):
    words = ["fedprox:mu=0.1:tuned", "auto"]
    settings = {"seeds": 2, "out": tmp_path, "progress": False, **SMALL}
    both = tf.compare(model, labelled(rows=20), words, **settings)
    spent = both.tunings["fedprox:mu=0.1:tuned"]
    assert (spent["runs"], list(spent["settings"])) == (5, ["lr"])
    tuning = tf.Tuning.load(tmp_path / "tuning" / "fedprox,mu=0.1,tuned")
    assert (tuning.settings, tuning.cost) == (spent["settings"], {k: spent[k] for k in tuning.cost})
    assert tuning.seeds == [0]
    for run in both.runs["fedprox:mu=0.1:tuned"]:
        assert run.settings["method"]["step"]["lr"] == spent["settings"]["lr"]
        assert run.settings["method"]["direction"]["mu"] == 0.1
        assert run.settings["validation"] is None  # all data, as the others
    assert tf.Comparison.load(tmp_path).table() == both.table()
