"""A real SuperLink and SuperNodes on this machine; minutes, run by `make test-federation`."""

import json
import re
import subprocess
import time

import pytest
import torch

import tunefree as tf
from tunefree.engines.flower.demo import _task, federated, simulated
from tunefree.engines.flower.loopback import REFUSED, Loopback, new
from tunefree.fit import options
from tunefree.job import bind
from tunefree.rounds import begin, play

pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
pytestmark = pytest.mark.federation

CLIENTS, MINUTES = 3, 60.0
FAMILIES = {
    "server": ("fedexp", ("lr=0.1",)),
    "controls": ("scaffold", ("lr=0.1",)),
    "composite": ("fedcanon", ("lr=0.1", "penalty=l1:1e-4")),
    "self-setting": ("auto", ()),
    "compressed": ("comparfrefl", ()),
}
FLAGGED = """
import os
import time


def load(config):
    flag = os.path.join(config["flags"], str(config["partition-id"]))
    if os.path.exists(flag + ".fail"):
        raise RuntimeError("this client fails")
    while os.path.exists(flag + ".slow"):
        time.sleep(0.2)
    return _load(config)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("federation")


def finished(process, seconds):
    assert process.wait(seconds) == 0


@pytest.fixture(scope="module")
def families(place):
    """One method of each family, one after another over the same nodes."""
    app = new(place / "app", "families")
    with Loopback(place / "flower", CLIENTS) as loop:
        for family, (method, words) in FAMILIES.items():
            out = place / family
            config = {"method": method, "set": " ".join(words), "rounds": 2, "out": out}
            finished(loop.run(app, **config), 5 * MINUTES)
    return place


@pytest.mark.parametrize("family", FAMILIES)
def test_parity(family, families):
    method, words = FAMILIES[family]
    real, alone = tf.Run.load(families / family), simulated(families, method, words, 2, 0)
    assert real.status == "finished"
    assert torch.equal(real.x, alone.x)
    assert [r["train_loss"] for r in real.history] == [r["train_loss"] for r in alone.history]
    assert [r["bytes_up"] for r in real.history] == [r["bytes_up"] for r in alone.history]


def test_the_demo(tmp_path):
    real = federated(tmp_path, "fedavg", ("lr=0.1",), 2, 3)
    assert torch.equal(real.x, simulated(tmp_path, "fedavg", ("lr=0.1",), 2, 3).x)


def test_tls_and_registered_nodes(tmp_path):
    """Encrypted, with node keys; a node whose key nobody registered takes no part."""
    app, out = new(tmp_path / "app", "secure"), tmp_path / "run"
    with Loopback(tmp_path / "flower", 2, secure=True) as loop:
        key = loop.home / "key-9"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True)
        loop.start_node(9)
        config = {"method": "scaffold", "set": "lr=0.1", "rounds": 2, "clients": 2, "out": out}
        finished(loop.run(app, **config), 5 * MINUTES)
        stranger = (loop.home / "node-9.log").read_text(errors="replace")
    real = tf.Run.load(out)
    assert real.status == "finished"
    assert "Node" not in (out / "federation.log").read_text()  # it was never seen
    assert "Received successfully" not in stranger
    assert torch.equal(real.x, simulated(tmp_path, "scaffold", ("lr=0.1",), 2, 0, 2).x)


class Watcher:
    """Waits for rounds to be over, and knows who was away in which."""

    def __init__(self, out, logs):
        self.out, self.logs = out, logs

    def rows(self):
        path = self.out / "history.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, rounds, seconds=4 * MINUTES):
        end = time.monotonic() + seconds
        while len(self.rows()) < rounds:
            assert time.monotonic() < end, self.logs.read_text(errors="replace")[-3000:]
            time.sleep(0.3)


def away(text):
    """Return who did not count in each round, from the log in the run's folder."""
    out, open_round, ended = {}, None, set()
    for line in text.splitlines():
        if "The server starts." in line and open_round is not None:
            out.pop(open_round, None)  # it was broken off
        found = re.search(r"Round (\d+): (?:client (\d+) is (?:absent|refused|lost)|loss)", line)
        if found is None:
            continue
        t, i = int(found[1]), found[2]
        if t in ended:  # over, and played again: its checkpoint was not written any more
            ended.discard(t)
            out.pop(t, None)
        if i is None:
            ended.add(t)
            open_round = None
        else:
            out.setdefault(t, set()).add(int(i))
            open_round = t
    return out


def replayed(app, rounds, missing):
    """The same run in this process, with those who answered as cohorts."""
    task = _task(app / "federation/task.py")
    given = {"rounds": rounds, "steps": 20, "batch": 50, "seed": 0, "device": "cpu"}
    job = bind(
        options(
            model=task.model(), federation=task.digits(CLIENTS), engine="loop", chunk=1,
            method=tf.methods.get("scaffold", lr=0.1), **given,
        )
    )  # fmt: skip
    now, everyone = begin(job.method, job.start, job.plan), torch.arange(CLIENTS)
    for t in range(rounds):
        ids = torch.tensor([i for i in range(CLIENTS) if i not in missing.get(t, ())])
        now, _ = play(job.method, job.plan, now, job.crew, ids, everyone)
        job.crew.commit()
    return now.x


def test_faults(tmp_path):
    """All that may fail does, within one run; the result is that of those who answered."""
    app, flags, out = new(tmp_path / "app", "faults"), tmp_path / "flags", tmp_path / "run"
    flags.mkdir()
    plain = (app / "federation/task.py").read_text()
    (app / "federation/task.py").write_text(plain.replace("def load(", "def _load(") + FLAGGED)
    config = {"method": "scaffold", "set": "lr=0.1", "rounds": 7, "minimum": 1, "out": out}
    config |= {"deadline": 40.0, "wait": 240.0}
    loop = Loopback(tmp_path / "flower", CLIENTS)
    watch = Watcher(out, loop.home / "run.log")
    try:
        loop.start_link()
        for i in range(CLIENTS):
            loop.start_node(i, {"flags": str(flags)})
        first = loop.run(app, **config)
        watch.until(1)
        loop.kill_node(2)  # in the middle of round 1, or before it reaches the node
        watch.until(2)
        time.sleep(REFUSED)
        loop.start_node(2, {"flags": str(flags)})
        (flags / "1.fail").touch()  # and another raises
        watch.until(3)
        (flags / "1.fail").unlink()
        (flags / "0.slow").touch()
        watch.until(4)
        (flags / "0.slow").unlink()
        watch.until(5)
        loop.kill_link()
        first.wait(MINUTES)
        assert len(watch.rows()) < 7
        time.sleep(REFUSED)
        loop.start_link()
        finished(loop.run(app, **config), 6 * MINUTES)
    finally:
        loop.stop()
    missing = away((out / "federation.log").read_text())
    run = tf.Run.load(out)
    assert run.status == "finished"
    assert [row["round"] for row in run.history] == list(range(7))
    answered = [row["answered"] for row in run.history]
    assert answered == [CLIENTS - len(missing.get(t, ())) for t in range(7)]
    assert answered[0] == CLIENTS
    assert 2 in missing[1]
    assert any(1 in missing.get(t, ()) for t in (2, 3))  # whichever round the flag fell into
    assert any(0 in missing.get(t, ()) for t in (3, 4))
    assert not any("lost" in row or "refused" in row for row in run.history)
    assert torch.equal(run.x, replayed(app, 7, missing))
