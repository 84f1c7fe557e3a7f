"""Comparing from Python: the same problem for all, nothing twice, one failure stops nobody."""

import json
import signal

import pytest
import torch

import tunefree as tf
from helpers import labelled, linear
from tunefree.core.errors import Interrupted
from tunefree.study import FailedRun, tasks

SMALL = {"rounds": 3, "cohort": 2, "steps": 2, "batch": 4, "device": "cpu", "dtype": torch.float64}


def model(seed):
    return torch.nn.Linear(3, 2).double()  # of torch's own generator: the study seeds it


def compare(methods=("fedavg", "auto"), seeds=2, model=model, fed=None, **settings):
    fed = labelled() if fed is None else fed
    settings = {"progress": False} | SMALL | settings
    return tf.compare(model, fed, methods, seeds=seeds, **settings)


@pytest.fixture
def fits(monkeypatch):
    """Counts the runs that are trained."""
    calls = []

    def train(*given, **more):
        calls.append(given)
        return real(*given, **more)

    real = tasks.train
    monkeypatch.setattr(tasks, "train", train)
    return calls


def test_the_same_start_and_data_for_all_methods_of_a_seed(tmp_path):
    found = compare(["fedavg", "scaffold", "auto"], seeds=[3, 5], out=tmp_path)
    settings = {k: [r.settings for r in runs] for k, runs in found.runs.items()}
    for i, seed in enumerate((3, 5)):
        each = [group[i] for group in settings.values()]
        assert [s["seed"] for s in each] == [seed] * 3
        for name in ("start", "data", "frozen", "cohort", "steps", "batch"):
            assert all(s[name] == each[0][name] for s in each), name
    starts = [s["start"] for s in settings["fedavg"]]
    assert starts[0] != starts[1]  # a function of the seed


def test_a_run_of_a_comparison_is_a_run():
    """Bit by bit what `fit` does alone; torch's own generator is left as it was."""
    before = torch.random.get_rng_state()
    found = compare(["fedexp:lr=0.2"], seeds=[4])
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        start = model(4)
    alone = tf.fit(start, labelled(), tf.methods.get("fedexp", lr=0.2), seed=4, **SMALL)
    (run,) = found.runs["fedexp:lr=0.2"]
    assert torch.equal(run.x, alone.x)
    assert run.predict(torch.zeros(1, 3), raw=True).shape == (1, 2)


def test_a_module_is_the_start_of_every_seed():
    found = compare(["fedavg"], model=linear())
    assert len({r.settings["start"] for r in found.runs["fedavg"]}) == 1
    one, other = found.runs["fedavg"]
    assert not torch.equal(one.x, other.x)  # cohorts and batches differ


def test_a_federation_per_seed():
    found = compare(["fedavg", "auto"], fed=lambda seed: labelled(seed=seed))
    digests = [[r.settings["data"]["digest"] for r in runs] for runs in found.runs.values()]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2


def test_nothing_is_done_twice(tmp_path, fits):
    first = compare(out=tmp_path)
    assert len(fits) == 4
    files = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/seed-*/*")}
    assert {p.parent.parent.name for p in files} == {"fedavg", "auto"}
    again = compare(out=tmp_path)
    assert len(fits) == 4
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/seed-*/*")} == files
    assert again.table() == first.table()
    more = compare(["fedavg", "auto", "fedexp"], seeds=3, out=tmp_path)
    assert len(fits) == 4 + 3 + 2
    assert [row["finished"] for row in more.table()] == [3, 3, 3]
    assert again.runs["auto"][1].predict(torch.zeros(1, 3), raw=True).shape == (1, 2)


def test_loading(tmp_path):
    found = compare({"a/b <x>": "fedavg", "wild": tf.methods.get("fedavg", lr=1e308)}, out=tmp_path)
    loaded = tf.Comparison.load(tmp_path)
    assert loaded.table() == found.table()
    assert (loaded.seeds, loaded.header) == (found.seeds, found.header)
    assert loaded.sentences == found.sentences
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(tf.TunefreeError, match="is damaged: it lacks"):
        tf.Comparison.load(tmp_path)
    with pytest.raises(tf.TunefreeError, match="holds no comparison"):
        tf.Comparison.load(tmp_path / "nowhere")


class Broken(tf.server.Average):
    """A server rule of a user's own that breaks in the second round."""

    def step(self, x, mean, state, t, query):
        if t.index == 1:
            raise RuntimeError("my rule <is> broken\nand more")
        return super().step(x, mean, state, t, query)


def test_one_that_fails_stops_nobody(tmp_path):
    broken = tf.Method(server=Broken())
    wild = tf.methods.get("fedavg", lr=1e308)
    found = compare({"broken": broken, "wild": wild, "sound": "fedavg"}, out=tmp_path)
    rows = {row["label"]: row for row in found.table()}
    assert {k: r["finished"] for k, r in rows.items()} == {"broken": 0, "wild": 0, "sound": 2}
    failure = found.runs["broken"][0]
    assert isinstance(failure, FailedRun)
    assert failure.reason == "RuntimeError: my rule <is> broken"
    assert "in step" in failure.trace
    assert [row["round"] for row in failure.history] == [0]
    assert [r.status for r in found.runs["wild"]] == ["diverged"] * 2
    assert rows["wild"]["lost"] == "2 of 2 diverged"
    assert rows["sound"]["verdict"] == "best"
    assert tf.Comparison.load(tmp_path).runs["broken"][1].reason == failure.reason


def test_other_settings_in_the_folder_are_a_failed_row(tmp_path, fits):
    compare(["fedavg"], out=tmp_path)
    files = {p: p.read_bytes() for p in tmp_path.glob("fedavg/*/*")}
    found = compare(["fedavg", "auto"], steps=3, out=tmp_path)
    assert [row["finished"] for row in found.table()] == [0, 2]
    assert "steps was 2, now 3" in found.runs["fedavg"][0].reason
    assert {p: p.read_bytes() for p in tmp_path.glob("fedavg/*/*")} == files


def press(event):
    if event.round == 1 and press.armed:
        press.armed = False
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_and_again(tmp_path, fits):
    whole = compare(out=tmp_path / "whole", rounds=5)
    press.armed = True
    with pytest.raises(Interrupted, match=r"Call compare again with out=") as stop:
        compare(out=tmp_path / "b", rounds=5, callbacks=[press])
    sofar = stop.value.run
    assert [row["finished"] for row in sofar.table()] == [0, 0]
    assert "seed 0: stopped after 2 of 5 rounds" in sofar.table()[0]["note"]
    assert tf.Comparison.load(tmp_path / "b").table()[0]["lost"] == "2 of 2 not finished"
    fits.clear()
    found = compare(out=tmp_path / "b", rounds=5)
    assert len(fits) == 4
    assert found.runs["fedavg"][0].history[:2] == sofar.runs["fedavg"][0].history
    for label, runs in found.runs.items():
        for one, other in zip(runs, whole.runs[label], strict=True):
            assert torch.equal(one.x, other.x)


def test_a_report(tmp_path):
    found = compare({"<b>": "fedavg", "wild": tf.methods.get("fedavg", lr=1e308)})
    page = found.report(tmp_path / "page.html")
    assert page.read_text().startswith("<!")
    assert "<b>" not in found._repr_html_()


BAD = {
    "method": ({"methods": ["fedagv"]}, "Unknown method 'fedagv'"),
    "argument": ({"round": 3}, "Unknown argument of compare 'round'. Did you mean 'rounds'?"),
    "own": ({"seed": 3}, "Unknown argument of compare 'seed'"),
    "value": ({"rounds": 0}, r"fit(rounds=...) must be an int >= 1"),
    "target": ({"target": "high"}, r"compare(target=...) must be a finite number"),
    "full": ({"methods": ["fedavg", "scaffnew"]}, "Cannot use scaffnew with 2 of 4 clients"),
    "grid": ({"methods": ["auto:tuned"]}, "auto has nothing to choose"),
    "model": ({"model": 3}, "model must be a module, a Run or a function of the seed, got 3"),
    "federation": ({"fed": 3}, "must be a tf.Federation, got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_come_before_anything_is_trained(tmp_path, fits, case):
    settings, sentence = BAD[case]
    with pytest.raises(tf.TunefreeError) as error:
        compare(**settings, out=tmp_path / "x")
    assert sentence in str(error.value)
    assert (fits, list(tmp_path.iterdir())) == ([], [])


def test_progress_where_there_is_no_terminal(capsys):
    compare(progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ["fedavg", " seed 0: finished"], ["auto", " seed 0: finished"],
        ["fedavg", " seed 1: finished"], ["auto", " seed 1: finished"],
    ]  # fmt: skip


def test_the_folder_says_what_it_is(tmp_path):
    compare(out=tmp_path, target=0.7)
    facts = json.loads((tmp_path / "compare.json").read_text())
    assert facts["labels"] == ["fedavg", "auto"]
    assert (facts["seeds"], facts["target"], facts["failures"]) == ([0, 1], 0.7, {})
