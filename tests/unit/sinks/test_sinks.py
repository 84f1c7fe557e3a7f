"""Every sink keeps every round once: evaluated or not, interrupted, resumed, attached late."""

import importlib.util
import json
import math
import signal
import sys

import pytest

import tunefree as tf
from helpers import fit
from tunefree.core.errors import ArgumentError, Interrupted
from tunefree.training.callbacks import Event, begin_callbacks
from tunefree.training.run import Run

from .readers import NEEDS, READERS, make, mlflow_runs, read_csv, wandb_records, wandb_runs

KINDS = pytest.mark.parametrize("kind", READERS)
# Other libraries' warnings are not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic.*"),
]

SETTINGS = {
    "method": {"name": "fedavg", "step": {"part": "Constant", "lr": 0.1}},
    "data": {"name": "toy", "clients": 3, "picture": {"clients": [0, 1, 2]}},
    "seed": 4,
    "rounds": 6,
    "torch": "2",
}


@pytest.fixture(autouse=True)
def few_event_files(monkeypatch):
    """TensorBoard orders files of one second by a count as text, where 10 comes before 9."""
    name = "tensorboard.summary.writer.event_file_writer"
    if importlib.util.find_spec("tensorboard"):
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "_global_uid", module.AtomicCounter(0))


def row(t):
    """Round t: every second one is evaluated, and one number is never finite."""
    out = {
        "round": t,
        "train_loss": 1 / (t + 1),
        "bytes_up": 100,
        "bytes_up.delta": 96,
        "lr": math.inf,
    }
    return out | ({"test_accuracy": 0.5 + t / 64, "f1@3": 0.25} if t % 2 else {})


def expected(kind, rounds):
    out = {}
    for t in rounds:
        values = {k: v for k, v in row(t).items() if k not in ("round", "lr")}
        if kind == "mlflow" and "f1@3" in values:  # a name that MLflow does not take
            values["f1_3"] = values.pop("f1@3")
        out[t] = pytest.approx(values, rel=1e-6)  # TensorBoard keeps float32
    return out


def tell(sink, rounds, history=(), error=None):
    """Tell a sink of a run as `fit` does."""
    past = json.loads(json.dumps([row(t) | {"lr": None} for t in history]))  # as from disk
    with begin_callbacks([sink], SETTINGS, past) as watch:
        for t in rounds:
            watch.call(Event(t, None, None, row(t)))
        if error:
            raise error
        watch.run = Run(None, None, [], SETTINGS, "finished")


@KINDS
def test_every_round_is_there(kind, tmp_path):
    tell(make(kind, tmp_path), range(6))
    assert READERS[kind](tmp_path) == expected(kind, range(6))


@KINDS
def test_rounds_played_again_are_there_once(kind, tmp_path):
    """It broke off in round 5, and the last checkpoint is of three rounds."""
    with pytest.raises(RuntimeError):
        tell(make(kind, tmp_path), range(5), error=RuntimeError("fell"))
    assert READERS[kind](tmp_path) == expected(kind, range(5))
    tell(make(kind, tmp_path), range(3, 6), history=range(3))
    assert READERS[kind](tmp_path) == expected(kind, range(6))


@KINDS
def test_a_sink_that_comes_late_is_told_the_past(kind, tmp_path):
    tell(make(kind, tmp_path), range(3, 5), history=range(3))
    assert READERS[kind](tmp_path) == expected(kind, range(5))


@KINDS
def test_a_finished_run_that_is_asked_for_again(kind, tmp_path):
    tell(make(kind, tmp_path), range(4))
    tell(make(kind, tmp_path), (), history=range(4))
    assert READERS[kind](tmp_path) == expected(kind, range(4))


@KINDS
def test_a_new_run_in_the_same_place_is_its_own(kind, tmp_path):
    tell(make(kind, tmp_path), range(5))
    tell(make(kind, tmp_path), range(2))
    assert READERS[kind](tmp_path) == expected(kind, range(2))


@KINDS
def test_calls_alone_are_enough(kind, tmp_path):
    sink = make(kind, tmp_path)
    for t in range(3):
        sink(Event(t, None, None, row(t)))
    sink.end(None)
    assert READERS[kind](tmp_path) == expected(kind, range(3))


@pytest.mark.parametrize("kind", ["csv", "parquet", "tensorboard"])
def test_calls_alone_go_on_where_the_file_ends(kind, tmp_path):
    for rounds in (range(4), range(2, 6)):
        sink = make(kind, tmp_path)
        for t in rounds:
            sink(Event(t, None, None, row(t)))
        sink.end(None)
    assert READERS[kind](tmp_path) == expected(kind, range(6))


def ctrl_c(event):
    if event.round == 2:
        signal.raise_signal(signal.SIGINT)


@KINDS
def test_fit_interrupted_and_resumed(kind, tmp_path):
    """The history beside the run, and in the sink, are the same."""
    work = {"rounds": 5, "eval_every": 2, "out": tmp_path / "run"}
    sink = make(kind, tmp_path)
    with pytest.raises(Interrupted):
        fit(callbacks=[sink, ctrl_c], **work)
    assert list(READERS[kind](tmp_path)) == [0, 1, 2]
    run = fit(callbacks=[make(kind, tmp_path)], **work)
    found = READERS[kind](tmp_path)
    assert list(found) == list(range(5))
    for kept in run.history:
        again = {k: v for k, v in kept.items() if k != "round"}
        assert found[kept["round"]] == pytest.approx(again, rel=1e-6)


def test_csv_is_whole_after_every_round(tmp_path):
    seen = []
    sink = tf.sinks.Csv(tmp_path / "new" / "history.csv")
    fit(callbacks=[sink, lambda event: seen.append(list(read_csv(tmp_path / "new")))])
    assert seen == [[0], [0, 1], [0, 1, 2]]


def test_csv_columns(tmp_path):
    tell(make("csv", tmp_path), range(2))
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines == [
        "round,train_loss,bytes_up,bytes_up.delta,test_accuracy,f1@3",
        "0,1.0,100,96,,",
        "1,0.5,100,96,0.515625,0.25",
    ]


def test_parquet_keeps_whole_numbers_and_falls_behind_by_a_tenth_at_most(tmp_path):
    sink = make("parquet", tmp_path)
    sink.begin(SETTINGS, [])
    for t in range(40):
        sink(Event(t, None, None, row(t)))
        behind = t + 1 - len(READERS["parquet"](tmp_path))
        assert behind <= (t + 1) / 10
    assert behind > 0
    sink.end(None)
    found = READERS["parquet"](tmp_path)
    assert len(found) == 40
    assert {k: type(v) for k, v in found[0].items()} == {
        "train_loss": float,
        "bytes_up": int,
        "bytes_up.delta": int,
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_another_kind_is_not_overwritten(kind, tmp_path):
    sink = make(kind, tmp_path)
    sink.path.write_text("name,age\nAda,36\n")
    for start in (lambda: sink.begin(SETTINGS, []), lambda: sink(Event(0, None, None, row(0)))):
        with pytest.raises(ArgumentError, match="must be a new file, or one that it wrote before"):
            start()
    assert sink.path.read_text() == "name,age\nAda,36\n"


def test_tensorboard_has_settings_and_status(tmp_path):
    sink = make("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(sink, range(2))
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (text,) = found.Tensors("settings/text_summary")
    assert b'"method.step.lr": 0.1' in text.tensor_proto.string_val[0]
    (text,) = found.Tensors("status/text_summary")
    assert text.tensor_proto.string_val == [b"finished"]


def test_mlflow_has_settings_status_and_one_run_each(tmp_path):
    with pytest.raises(RuntimeError):
        tell(make("mlflow", tmp_path), range(3), error=RuntimeError("fell"))
    _, (run,) = mlflow_runs(tmp_path)
    assert (run.info.status, run.data.tags["tunefree.status"]) == ("FAILED", "failed")
    tell(make("mlflow", tmp_path), range(2, 4), history=range(2))
    _, (run,) = mlflow_runs(tmp_path)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "toy-fedavg-4")
    assert run.data.params["method.step.lr"] == "0.1"
    assert "data.picture.clients" not in run.data.params
    tell(make("mlflow", tmp_path), range(1))
    assert len(mlflow_runs(tmp_path)[1]) == 2


def test_mlflow_experiments(tmp_path):
    make("mlflow", tmp_path)
    from mlflow import MlflowClient

    sink = tf.sinks.MLflow(tmp_path, experiment="mine")
    tell(sink, range(1))
    client = MlflowClient(tracking_uri=sink.uri)
    assert client.get_experiment_by_name("mine") is not None
    assert client.get_experiment_by_name("tunefree") is None


def test_wandb_is_offline_and_has_settings_and_status(tmp_path):
    sink = make("wandb", tmp_path)
    tell(sink, range(2))
    tell(make("wandb", tmp_path), range(1))
    assert len(wandb_runs(tmp_path)) == 2
    (path,) = wandb_runs(tmp_path)[0].glob("run-*.wandb")
    records = list(wandb_records(path))
    (run,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("tunefree", "toy-fedavg-4")
    assert {c.key: c.value_json for c in run.config.update}["method.step.lr"] == "0.1"
    assert '"finished"' in [u.value_json for r in records for u in r.summary.update]


def test_into_names_and_finds(tmp_path):
    assert tf.sinks.make_sinks(tmp_path) == []
    (sink,) = tf.sinks.make_sinks(tmp_path, ["csv", "csv"])
    assert sink.path == tmp_path / "history.csv"
    sink.begin(SETTINGS, [])
    assert [type(s) for s in tf.sinks.make_sinks(tmp_path)] == [tf.sinks.Csv]
    with pytest.raises(ArgumentError, match="Unknown log 'tensorbord'"):
        tf.sinks.make_sinks(tmp_path, ["tensorbord"])


@pytest.mark.parametrize("kind", [kind for kind, package in NEEDS.items() if package])
def test_a_missing_package_is_named_with_the_command(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, NEEDS[kind], None)
    with pytest.raises(ArgumentError) as error:
        tf.sinks.make_sinks(tmp_path, [kind])
    assert f"needs the package {NEEDS[kind]}, which cannot be imported" in str(error.value)
    assert "pip install 'tunefree[tracking]' installs it." in str(error.value)
