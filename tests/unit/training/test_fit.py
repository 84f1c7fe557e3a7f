import itertools
import json
import signal
import time
import types

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tunefree as tf
from helpers import CrashError, Quadratics, fit, grouped, labelled, linear, run_threads
from tunefree.core.errors import ArgumentError, CheckpointError, Interrupted
from tunefree.training import trainer

X = labelled().test[0]
STILL = tf.methods.get("fedavg", lr=1e-12)  # nothing improves


def test_history_and_evaluation():
    run = fit(rounds=5, eval_every=2)
    tested = [row["round"] for row in run.history if "test_accuracy" in row]
    assert tested == [1, 3, 4]  # and after the last
    assert [row["round"] for row in run.history] == list(range(5))
    assert run.status == "finished"
    assert run.summary["rounds"] == 5
    assert run.summary["gradients"] == 5 * 4 * 2
    assert run.summary["bytes_up"] == 5 * 4 * 8 * 8
    assert run.summary["test_accuracy"] == run.history[-1]["test_accuracy"]
    best = max(row.get("test_accuracy", 0) for row in run.history)
    assert run.summary["best_test_accuracy"] == best


def test_it_learns():
    assert fit("auto", rounds=60, steps=5).summary["test_accuracy"] > 0.9


def test_callbacks_see_every_round():
    seen = []
    run = fit("fedexp", callbacks=[seen.append])
    assert [event.round for event in seen] == [0, 1, 2]
    assert torch.equal(seen[-1].x, run.x)
    assert torch.equal(seen[-1].output, run.output)
    torch.testing.assert_close(seen[2].output, (seen[2].x + seen[1].x) / 2)
    assert [event.row for event in seen] == run.history


def test_all_clients_and_twenty_steps_are_the_default():
    run = tf.fit(linear(), labelled(), "fedavg", rounds=1, device="cpu")
    assert run.history[0]["gradients"] == 4 * 20
    assert run.settings["cohort"] == 4
    assert run.x.dtype == torch.float32


def test_validation_is_kept_from_training():
    fed = labelled(rows=10)
    run = fit(fed=fed, evaluate=tf.Evaluate(validation=0.2), batch=None, eval_every=2)
    rest, (x, y) = fed.hold_out(0.2, seed=0)
    assert rest.sizes.tolist() == [8] * 4
    assert torch.equal(fit(fed=rest, batch=None).x, run.x)
    found = float((run.predict(x, raw=True).argmax(1) == y).double().mean())
    assert run.history[-1]["validation_accuracy"] == pytest.approx(found)
    assert "validation_accuracy" not in run.history[0]
    assert "validation_loss" in run.history[1]


@pytest.mark.parametrize("every", [1, 2])
def test_early_stopping(every, tmp_path):
    settings = grouped(validation=0.5, patience=2, rounds=20, eval_every=every)
    run = fit(STILL, out=tmp_path, **settings)
    assert run.status == "stopped early"
    assert len(run.history) == 3 * every  # the first is the best so far, two more are not better
    again = fit(STILL, out=tmp_path, **settings)
    assert (again.status, len(again.history)) == ("stopped early", 3 * every)
    assert torch.equal(again.x, run.x)
    assert tf.Run.load(tmp_path).status == "stopped early"


def test_patience_survives_an_interruption(tmp_path):
    settings = grouped(validation=0.5, patience=3, rounds=20, out=tmp_path)

    def press(event):
        if event.round == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        fit(STILL, callbacks=[press], **settings)
    run = fit(STILL, **settings)
    assert (run.status, len(run.history)) == ("stopped early", 4)


def swinging(keep_best, **settings):
    """A step too long, so that the validation loss swings up and away."""
    problem, seen = Quadratics(), []
    method = tf.methods.get("fedavg", lr=2.02 / problem.smoothness)
    run = problem.fit(
        method,
        evaluate=tf.Evaluate(validation=0.25, keep_best=keep_best),
        steps=1,
        rounds=8,
        start=[5.0, -4.0],
        callbacks=[seen.append],
        **settings,
    )
    return run, seen


def test_keep_best_ships_the_best_round(tmp_path):
    run, seen = swinging(True, out=tmp_path)
    losses = [row["validation_loss"] for row in run.history]
    best = losses.index(min(losses))
    assert best < len(losses) - 1
    assert torch.equal(run.output, seen[best].output)
    assert torch.equal(run.x, seen[-1].x)
    assert torch.equal(tf.Run.load(tmp_path).output, run.output)
    plain, seen = swinging(False)
    assert torch.equal(plain.output, seen[-1].output)


@pytest.mark.parametrize("name", tf.methods.names())
def test_every_method_starts_where_the_run_ended(name):
    """The clients' first memory too."""
    work = {"cohort": None, "rounds": 3, "preprocess": tf.Preprocess(scale=None)}
    first = fit("fedexp")
    again = fit(name, model=first, **work)
    assert torch.equal(again.x, fit(name, model=first.model, **work).x)
    assert not torch.equal(again.x, fit(name, **work).x)


def test_warm_start_from_a_run():
    first = fit("fedexp")
    again = fit(model=first)
    assert torch.equal(again.x, fit(model=first.model).x)
    loaded_in_float32 = fit(model=first, dtype=torch.float32)
    assert loaded_in_float32.x.dtype == torch.float32


def test_predict_and_model():
    run = fit("fedexp")
    module = run.model
    assert isinstance(module, nn.Linear)
    assert not module.training
    torch.testing.assert_close(run.predict(X, raw=True), module(X).detach())
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(flat, run.output)
    assert run.predict(X.float(), raw=True).dtype == torch.float64


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export(tmp_path, suffix):
    run = fit("fedexp")
    path = run.export(tmp_path / f"model{suffix}")
    state = load_file(path) if suffix == ".safetensors" else torch.load(path, weights_only=True)
    module = linear(seed=9)
    module.load_state_dict(state)
    torch.testing.assert_close(module(X).detach(), run.predict(X, raw=True))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_export_refuses_other_names(tmp_path):
    with pytest.raises(ArgumentError, match=r"must end in \.safetensors or \.pt, got .*model\.h5"):
        fit().export(tmp_path / "model.h5")


def test_the_folder(tmp_path):
    run = fit(out=tmp_path / "a" / "b", checkpoint_every=1, rounds=5)
    names = {p.name for p in run.path.iterdir()}
    assert names == {
        "settings.json",
        "history.jsonl",
        "checkpoint.json",
        "model.safetensors",
        "state-000004.safetensors",
        "state-000005.safetensors",
    }
    settings = json.loads((run.path / "settings.json").read_text())
    assert settings == run.settings
    assert settings["method"]["step"] == {"part": "Constant", "lr": 0.1, "balanced": False}
    rows = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    assert rows == run.history
    state = load_file(run.path / "model.safetensors")
    assert all(torch.equal(state[name], v) for name, v in run.model.state_dict().items())


def test_history_is_written_as_it_happens(tmp_path):
    lines = []
    fit(out=tmp_path, callbacks=[
        lambda event: lines.append((tmp_path / "history.jsonl").read_text().count("\n"))
    ])  # fmt: skip
    assert lines == [1, 2, 3]


def test_load(tmp_path):
    run = fit("fedexp", out=tmp_path)
    found = tf.Run.load(tmp_path)
    assert torch.equal(found.x, run.x)
    assert torch.equal(found.output, run.output)
    assert found.history == run.history
    assert (found.status, found.path) == ("finished", tmp_path)
    for use in (lambda: found.model, lambda: found.predict(X)):
        with pytest.raises(
            ArgumentError, match=r"Run\.load\(path, model=\.\.\.\) needs the module"
        ):
            use()
    with_model = tf.Run.load(tmp_path, linear(seed=3))
    assert torch.equal(with_model.predict(X, raw=True), run.predict(X, raw=True))
    assert torch.equal(fit(model=with_model).x, fit(model=run).x)


def test_load_refuses_what_is_not_the_run(tmp_path):
    fit(out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="must have the run's 8 trainable parameters, got 20"):
        tf.Run.load(tmp_path / "run", linear(features=4, classes=4))
    with pytest.raises(CheckpointError, match="is not a run folder"):
        tf.Run.load(tmp_path / "nothing")


def fall(event):
    raise CrashError


def test_load_before_the_first_checkpoint(tmp_path):
    with pytest.raises(CrashError):
        fit(out=tmp_path, callbacks=[fall])
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        tf.Run.load(tmp_path)


def test_a_run_that_crashed_before_its_first_checkpoint_begins_again(tmp_path):
    with pytest.raises(CrashError):
        fit(out=tmp_path, callbacks=[fall])
    run = fit(out=tmp_path)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]
    assert tf.Run.load(tmp_path).history == run.history


def test_load_with_a_loss_of_ones_own(tmp_path):
    def absolute(output, target):
        return (output[:, 0] - target).abs()

    run = fit(loss=absolute, out=tmp_path)
    assert run.settings["loss"] == "absolute"
    again = tf.Run.load(tmp_path, linear())
    assert torch.equal(again.predict(X, raw=True), run.predict(X, raw=True))


def test_divergence_is_said_and_the_state_before_is_kept(caplog, tmp_path):
    problem = Quadratics()
    method = tf.methods.get("fedavg", lr=1e150)
    run = problem.fit(method, start=[5.0, -4.0], out=tmp_path, rounds=10)
    assert run.status == "diverged"
    assert bool(torch.isfinite(run.x).all())
    assert len(run.history) < 10
    assert "Diverged in round" in caplog.text
    assert tf.Run.load(tmp_path).status == "diverged"
    again = problem.fit(method, start=[5.0, -4.0], out=tmp_path, rounds=10)
    assert (again.status, len(again.history)) == ("diverged", len(run.history))


def test_the_second_ctrl_c_stops_at_once():
    def press(event):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    with pytest.raises(KeyboardInterrupt) as stopped:
        fit(callbacks=[press])
    assert not isinstance(stopped.value, Interrupted)


def test_ctrl_c_without_a_folder_keeps_the_run():
    with pytest.raises(Interrupted) as stopped:
        fit(callbacks=[lambda event: signal.raise_signal(signal.SIGINT)])
    assert len(stopped.value.run.history) == 1
    assert stopped.value.run.predict(X, raw=True).shape == (24, 2)


def test_in_another_thread():
    out = []
    run_threads(lambda: out.append(fit()))
    assert torch.equal(out[0].x, fit().x)


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    """Every look at the clock is 3 s later than the last; a state is written when 5 s old."""
    now = itertools.count(step=3.0)
    clock = types.SimpleNamespace(monotonic=lambda: next(now), perf_counter=time.perf_counter)
    monkeypatch.setattr(trainer, "time", clock)
    with pytest.raises(CrashError):
        fit(rounds=9, out=tmp_path, callbacks=[lambda event: event.round == 6 and fall(event)])
    assert 0 < len(tf.Run.load(tmp_path).history) < 7


def test_weights_by_samples():
    """Two clients of 1 and 3 rows, one step: the mean move is the pooled gradient's."""
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    fed, model = tf.Federation(x, y, [0, 1, 1, 1]), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    method = tf.methods.get("fedavg", lr=0.01, weights="samples")
    run = fit(method, fed, model, rounds=1, steps=1, batch=None)
    assert float(run.x) == pytest.approx(0.01 * 2 * (1 + 2 + 3 + 4) / 4)
    method = tf.methods.get("fedavg", lr=0.1, weights="uniform")
    run = fit(method, fed, model, rounds=1, steps=1, batch=None)
    assert float(run.x) == pytest.approx(0.1 * 2 * (1 + 3) / 2)


def test_a_scalar_parameter():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.scale * self.body(x)

    run = fit(model=Scaled())
    assert run.predict(X, raw=True).shape == (24, 2)


class Watcher:
    def __init__(self):
        self.seen = []

    def begin(self, settings, history):
        self.seen.append(("begin", settings["rounds"], [row["round"] for row in history]))

    def __call__(self, event):
        self.seen.append(event.round)

    def end(self, run):
        self.seen.append(("end", None if run is None else run.status))


def test_callbacks_may_be_told_of_begin_and_end():
    watcher = Watcher()
    fit(rounds=2, callbacks=[watcher])
    assert watcher.seen == [("begin", 2, []), 0, 1, ("end", "finished")]


def test_a_resumed_run_tells_what_was_played_before(tmp_path):
    def press(event):
        signal.raise_signal(signal.SIGINT)

    watcher = Watcher()
    with pytest.raises(Interrupted):
        fit(rounds=3, out=tmp_path, callbacks=[press, watcher])
    assert watcher.seen == [("begin", 3, []), 0, ("end", "interrupted")]
    watcher.seen.clear()
    fit(rounds=3, out=tmp_path, callbacks=[watcher])
    assert watcher.seen == [("begin", 3, [0]), 1, 2, ("end", "finished")]
    watcher.seen.clear()
    fit(rounds=3, out=tmp_path, callbacks=[watcher])  # nothing left to play
    assert watcher.seen == [("begin", 3, [0, 1, 2]), ("end", "finished")]


def test_an_error_ends_everybody_who_was_begun():
    first, last = Watcher(), Watcher()

    def fall(event):
        raise RuntimeError("fell")

    with pytest.raises(RuntimeError, match="fell"):
        fit(rounds=3, callbacks=[first, fall, last])
    assert first.seen == [("begin", 3, []), 0, ("end", None)]
    assert last.seen == [("begin", 3, []), ("end", None)]
