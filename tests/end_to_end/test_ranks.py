"""Several processes under torchrun's launcher do what one does; only sums differ, by rounding.

`python -m torch.distributed.run` starts an interpreter for each process. Here the same launcher
forks them from one that has imported everything, which takes half of the time.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

import tunefree as tf
from every.cases import representatives
from tunefree import cli
from tunefree.testing._problem import make_federation, make_net

WORDS = ["run", "--method", "scaffold", "--rounds", "3", "--clients", "6", "--cohort", "4",
         "--steps", "2", "--device", "cpu", "--dtype", "float64", "--json", "--out"]  # fmt: skip
SCRIPT = f"""
import sys
import torch
import torch._dynamo  # the first batched gradient imports it
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import tunefree as tf
from tunefree import cli
from tunefree.testing._problem import make_federation, make_net

class CrashError(Exception):
    pass

def train(name, out):
    method = tf.methods.get(name)
    tf.fit(make_net(0), make_federation(), method, rounds=3, cohort=None if method.full else 3,
           steps=2, batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=3, engine="loop",
           out=out, checkpoint_every=1)

def crash(self, x, mean, state, t, query):
    if t.index == 2:
        raise CrashError
    return step(self, x, mean, state, t, query)

def work(folder):
    for name in names:
        train(name, f"{{folder}}/all/{{name}}")
    if not whole:
        return
    server.step = crash
    try:
        train("scaffold", f"{{folder}}/crash")
        raise AssertionError("it did not crash")
    except CrashError:
        server.step = step
    train("scaffold", f"{{folder}}/crash")
    try:
        cli.main({WORDS!r} + [f"{{folder}}/command"])
    except SystemExit as end:
        assert not end.code

whole, names = sys.argv[3] == "whole", sys.argv[4:]
server = type(tf.methods.get("scaffold").server)
step = server.step
config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=int(sys.argv[2]), start_method="fork",
    rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
)
elastic_launch(config, work)(sys.argv[1])
"""
SIZE = 3  # with three clients in a round, a process has none at times


def launch(folder, what, names):
    """Start several processes that train these methods; return what they printed."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "train.py"), str(folder), str(SIZE), what, *names]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Return the folder of one launch of several processes, and what it printed."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, launch(folder, "whole", representatives())


def alone(name):
    method = tf.methods.get(name)
    return tf.fit(
        make_net(0), make_federation(), method, rounds=3, cohort=None if method.full else 3,
        steps=2, batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=3, engine="loop",
    )  # fmt: skip


def agrees(folder, run):
    found = tf.Run.load(folder)
    torch.testing.assert_close(found.x, run.x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.output, run.output, rtol=1e-9, atol=1e-12)
    for a, b in zip(found.history, run.history, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-9, abs=1e-12), name


def test_every_part_and_family(launched):
    for name in representatives():
        agrees(launched[0] / "all" / name, alone(name))
    settings = json.loads((launched[0] / "all" / "scaffold" / "settings.json").read_text())
    assert settings["processes"] == SIZE


@pytest.mark.slow
def test_every_other_method(tmp_path):
    names = [name for name in tf.methods.names() if name not in representatives()]
    launch(tmp_path, "methods", names)
    for name in names:
        agrees(tmp_path / "all" / name, alone(name))


def test_resumed_after_a_crash(launched):
    """The memory of all processes is in the one checkpoint."""
    agrees(launched[0] / "crash", alone("scaffold"))


def test_the_command_line(launched, tmp_path):
    folder, printed = launched
    said = json.loads(printed)  # once, not once a process
    assert said["status"] == "finished"
    with pytest.raises(SystemExit, match="0"):
        cli.main([*WORDS, str(tmp_path / "one")])
    a, b = (tf.Run.load(path).x for path in (tmp_path / "one", folder / "command"))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
