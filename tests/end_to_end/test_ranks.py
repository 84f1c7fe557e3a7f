"""Several processes under torchrun do what one does; only sums differ, by rounding."""

import json
import os
import subprocess
import sys

import pytest
import torch

import tunefree as tf
from tunefree import cli
from tunefree.testing._problem import federation, net

SCRIPT = """
import sys
import torch
import tunefree as tf
from tunefree.testing._problem import SIZES, federation, net

def crash(event):
    if event.round == 1:
        raise SystemExit(3)

folder, *names = sys.argv[1:]
crashing = folder.endswith("crash")
for name in names:
    method = tf.methods.get(name)
    tf.fit(net(0), federation(), method, rounds=3, cohort=None if method.full else 3, steps=2,
           batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=3, engine="loop",
           out=f"{folder}/{name}", checkpoint_every=1, callbacks=[crash] if crashing else [])
"""


def torchrun(*words, size=2):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launch, f"--nproc-per-node={size}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "train.py"
    path.write_text(SCRIPT)
    return path


def alone(name, **settings):
    method = tf.methods.get(name)
    return tf.fit(
        net(0), federation(), method, rounds=3, cohort=None if method.full else 3, steps=2,
        batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=3, engine="loop", **settings,
    )  # fmt: skip


def agrees(folder, run):
    found = tf.Run.load(folder)
    torch.testing.assert_close(found.x, run.x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.output, run.output, rtol=1e-9, atol=1e-12)
    for a, b in zip(found.history, run.history, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-9, abs=1e-12), name


def test_every_method(script):
    names = tf.methods.names()
    done = torchrun(script, script.parent / "all", *names)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in names:
        agrees(script.parent / "all" / name, alone(name))
    settings = json.loads((script.parent / "all" / "fedavg" / "settings.json").read_text())
    assert settings["processes"] == 2


def test_resumed_after_a_crash_with_processes_that_have_no_client_at_times(script):
    """Memory of all processes is in the one checkpoint; three of them, three clients a round."""
    folder, calm = script.parent / "crash", script.parent / "calm"
    assert torchrun(script, folder, "scaffold", size=3).returncode != 0
    folder.rename(calm)
    done = torchrun(script, calm, "scaffold", size=3)
    assert done.returncode == 0, done.stderr[-2000:]
    agrees(calm / "scaffold", alone("scaffold"))


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("run", "--method", "scaffold", "--rounds", 3, "--clients", 6, "--cohort", 4,
             "--steps", 2, "--device", "cpu", "--dtype", "float64", "--json")  # fmt: skip
    done = torchrun("-m", "tunefree", *words, "--out", "two")
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)  # once, not once a process
    assert said["status"] == "finished"
    with pytest.raises(SystemExit, match="0"):
        cli.main([*map(str, words), "--out", "one"])
    a, b = (tf.Run.load(tmp_path / name).x for name in ("one", "two"))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
