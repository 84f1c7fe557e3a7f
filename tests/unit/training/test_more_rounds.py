"""Runs that ended go on: more rounds in the same folder, with the state kept."""

import pytest
import torch

import tunefree as tf
from helpers import fit
from tunefree.core.errors import ResumeError
from tunefree.simulation.dry_run import reads_rounds
from tunefree.testing._problem import bind_trial

LATER = {"eval_every": 1, "cohort": 2}


@pytest.mark.parametrize("name", ["feddowgdua", "scaffold", "fedadam", "fedproxwlod", "fedexp"])
def test_a_finished_run_goes_on(name, tmp_path):
    options = LATER | ({"cohort": None} if tf.methods.get(name).full else {})
    first = fit(name, rounds=3, out=tmp_path, **options)
    assert first.status == "finished"
    run, whole = fit(name, rounds=6, out=tmp_path, **options), fit(name, rounds=6, **options)
    assert run.status == "finished"
    assert torch.equal(run.x, whole.x)
    assert torch.equal(run.output, whole.output)
    same = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history]
    assert same == [{k: v for k, v in row.items() if k != "seconds"} for row in whole.history]
    assert tf.Run.load(tmp_path).settings["rounds"] == 6
    assert len(fit(name, rounds=6, out=tmp_path, **options).history) == 6


@pytest.mark.parametrize(
    "method",
    ["auto", tf.methods.get("fedavg", schedule="cosine"), tf.methods.get("padamfed")],
    ids=["auto", "schedule", "rates"],
)
def test_a_schedule_that_was_planned_for_fewer_rounds_is_refused(method, tmp_path):
    fit(method, rounds=3, out=tmp_path)
    with pytest.raises(
        ResumeError, match=r"was planned for 3 rounds, which the step sizes .*tf.Run.load"
    ):
        fit(method, rounds=6, out=tmp_path)
    assert len(fit(method, rounds=3, out=tmp_path).history) == 3  # the folder is as it was


def test_which_methods_depend_on_the_number_of_rounds():
    names = tf.methods.names()
    runs = {n: bind_trial(tf.methods.get(n), rounds=8) for n in names}
    found = {n for n, run in runs.items() if reads_rounds(run.method, run.plan, run.start)}
    assert found == {"auto", "fedrace", "parfrefl", "comparfrefl", "padamfed"}


def test_fewer_rounds_and_other_settings_are_refused(tmp_path):
    fit(rounds=4, out=tmp_path)
    with pytest.raises(ResumeError, match="rounds was 4, now 3"):
        fit(rounds=3, out=tmp_path)
    with pytest.raises(ResumeError, match="seed was 0, now 1"):
        fit(rounds=6, seed=1, out=tmp_path)


def test_a_run_that_stopped_early_does_not_go_on(tmp_path):
    still = tf.methods.get("fedavg", lr=1e-12)
    early = {"evaluate": tf.Evaluate(validation=0.2, patience=1), "out": tmp_path}
    assert fit(still, rounds=5, **early).status == "stopped early"
    with pytest.raises(ResumeError, match="is stopped early; for more rounds, train in another"):
        fit(still, rounds=9, **early)


def test_an_interrupted_run_gets_more_rounds(tmp_path):
    def stop(event):
        event.request_stop()

    with pytest.raises(tf.core.errors.Interrupted):
        fit(rounds=3, out=tmp_path, callbacks=[stop])
    assert torch.equal(fit(rounds=5, out=tmp_path).x, fit(rounds=5).x)


def test_a_crash_in_the_first_of_more_rounds(tmp_path):
    """The run goes on from where it had ended, or stays as it was."""

    def crash(event):
        raise RuntimeError("crash")

    fit(rounds=3, out=tmp_path)
    with pytest.raises(RuntimeError, match="crash"):
        fit(rounds=5, out=tmp_path, callbacks=[crash])
    run = fit(rounds=5, out=tmp_path)
    assert (run.status, len(run.history)) == ("finished", 5)
    assert torch.equal(run.x, fit(rounds=5).x)


def test_a_crash_before_the_settings_of_more_rounds(tmp_path, monkeypatch):
    fit(rounds=3, out=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("tunefree.training.folder.RunFolder.start", _raise_full)
        with pytest.raises(OSError, match="full"):
            fit(rounds=5, out=tmp_path)
    again = fit(rounds=3, out=tmp_path)
    assert (again.status, len(again.history)) == ("finished", 3)


def _raise_full(*args):
    raise OSError("full")
