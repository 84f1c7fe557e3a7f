"""Ctrl-C before the first round is over: at once, without a traceback, and the folder resumes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tunefree as tf
from helpers import fit, start_process
from tunefree.core.errors import Interrupted
from tunefree.training import client_data


def press():
    signal.raise_signal(signal.SIGINT)


def test_while_the_engine_is_chosen(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(client_data, "Simulation", lambda setup: press())
        with pytest.raises(
            Interrupted, match=r"Stopped by Ctrl-C after 0 rounds. Call fit"
        ) as stop:
            fit(out=tmp_path / "run")
    assert stop.value.__cause__ is None
    assert stop.value.__suppress_context__
    assert (stop.value.run.status, stop.value.run.history) == ("interrupted", [])
    run, whole = fit(out=tmp_path / "run"), fit()
    assert torch.equal(run.x, whole.x)
    assert tf.Run.load(tmp_path / "run").settings["engine"] == whole.settings["engine"]
    with monkeypatch.context() as patch:  # a run that has rounds has them still
        patch.setattr(client_data, "Simulation", lambda setup: press())
        with pytest.raises(Interrupted, match="after 3 rounds") as stop:
            fit(out=tmp_path / "run")
        assert len(stop.value.run.history) == 3
        with pytest.raises(Interrupted):
            fit()


class Pressing(tf.server.Average):
    """Presses Ctrl-C in a round, once."""

    def __init__(self, at, then=None):
        super().__init__()
        object.__setattr__(self, "calls", {"at": at, "then": then})

    def step(self, x, mean, state, t, query):
        if self.calls["at"] == t.index:
            self.calls["at"] = None
            press()
            if self.calls["then"] is not None:
                raise self.calls["then"]
        return super().step(x, mean, state, t, query)


def pressing(at, then=None):
    return tf.Method(step=tf.clients.Constant(0.1), server=Pressing(at, then))


@pytest.mark.parametrize(
    ("at", "then", "rounds"),
    [(0, None, 0), (1, None, 2), (1, RuntimeError("the compiler was killed"), 1)],
    ids=["first", "later", "compiler"],
)
def test_in_a_round(at, then, rounds, tmp_path):
    method = pressing(at, then)
    with pytest.raises(Interrupted, match=f"Stopped by Ctrl-C after {rounds} rounds") as stop:
        fit(method, out=tmp_path)
    assert len(stop.value.run.history) == rounds
    assert torch.equal(fit(method, out=tmp_path).x, fit(pressing(None)).x)


def test_an_error_without_ctrl_c_is_an_error():
    class Broken(tf.server.Average):
        def step(self, *given):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fit(tf.Method(step=tf.clients.Constant(0.1), server=Broken()))


CAUGHT = """
from tunefree.core.errors import Interrupted

try:
    try:
        exec("raise KeyboardInterrupt")  # as in the middle of `@dataclass`
    except KeyboardInterrupt:
        raise Interrupted("Stopped by Ctrl-C.", None) from None
except Interrupted as stop:
    print(stop)
"""


def test_a_program_that_catches_it_ends_with_its_own_status():
    words = [sys.executable, "-c", CAUGHT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Stopped by Ctrl-C.\n", "")


COMPILING = """
import torch
import tunefree as tf

x, y = torch.randn(60, 30), torch.randint(4, (60,))
model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 4))
fed = tf.Federation(x, y, torch.arange(60) % 6)
try:
    tf.fit(model, fed, rounds=5, out="run", compile=True, device="cpu")
except tf.core.errors.Interrupted as stop:
    print(stop)
"""


@pytest.mark.slow
@pytest.mark.compiled_engines
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_while_compiling(seconds, tmp_path):
    cache = tmp_path / "cache"
    given = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    words = [sys.executable, "-c", COMPILING]
    with start_process(words, cwd=tmp_path, env=given, start_new_session=True) as process:
        while not cache.exists():
            assert process.poll() is None, process.communicate(timeout=60)
            time.sleep(0.05)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("Stopped by Ctrl-C after 0 rounds. Call fit again")
    assert "Traceback" not in err
    assert (Path(tmp_path) / "run" / "settings.json").exists()
