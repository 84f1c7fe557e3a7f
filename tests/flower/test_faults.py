"""All that may fail in a real federation does; training goes on with those who answer."""

import json
import re
import subprocess
import sys
import time

import pytest
import torch
from examples.federation.demo import load_task
from examples.federation.loopback import RECONNECT_SECONDS, Loopback, num_threads

import tunefree as tf
from flower.real import CLIENTS, MINUTES, finished
from helpers import bound
from tunefree.flower.apps import write_app
from tunefree.rounds.server import init_server_state, run_round

pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
pytestmark = pytest.mark.federation

ROUNDS = 9
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


class Watcher:
    """Waits for what happens in a run."""

    def __init__(self, out, logs):
        self.out, self.logs = out, logs

    def rows(self):
        path = self.out / "history.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, happened, seconds=4 * MINUTES):
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, self.logs.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def played(self, rounds):
        self.until(lambda: len(self.rows()) >= rounds)

    def missed(self, client, why):
        """Wait until the server does without a client, from now on."""
        log, said = self.out / "federation.log", f"client {client} is absent: {why}"
        before = log.read_text().count(said)
        self.until(lambda: log.read_text().count(said) > before)


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
    task = load_task(app / "federation/task.py")
    given = {"rounds": rounds, "steps": 20, "batch": 50, "seed": 0, "device": "cpu"}
    job = bound(
            model=task.model(), federation=task.digits(CLIENTS), engine="loop", chunk=1,
            method=tf.methods.get("scaffold", lr=0.1), **given,
    )  # fmt: skip
    now = init_server_state(job.method, job.start, job.plan)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads())  # the last bits of sums depend on it
    try:
        for t in range(rounds):
            ids = torch.tensor([i for i in range(CLIENTS) if i not in missing.get(t, ())])
            now, _ = run_round(job.method, job.plan, now, job.pool, ids)
            job.pool.commit()
    finally:
        torch.set_num_threads(before)
    return now.x


def find_deadline():
    """Return a deadline for an answer: a node starts a process for it, and all share the cores."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tunefree"], check=True, timeout=MINUTES)
    return 12 + 4 * (time.monotonic() - began)


def test_faults(tmp_path):
    """All that may fail does, within one run; the result is that of those who answered."""
    app, flags, out = write_app(tmp_path / "app", "faults"), tmp_path / "flags", tmp_path / "run"
    flags.mkdir()
    plain = (app / "federation/task.py").read_text()
    (app / "federation/task.py").write_text(plain.replace("def load(", "def _load(") + FLAGGED)
    config = {"method": "scaffold", "set": "lr=0.1", "rounds": ROUNDS, "minimum": 1, "out": out}
    config |= {"deadline": find_deadline(), "wait": 240.0}
    loop = Loopback(tmp_path / "flower", CLIENTS)
    watch = Watcher(out, loop.home / "run.log")
    try:
        loop.start_link()
        for i in range(CLIENTS):
            loop.start_node(i, {"flags": str(flags)})
        first = loop.run(app, **config)
        watch.played(1)
        loop.kill_node(2)  # in the middle of a round, or before it reaches the node
        watch.missed(2, "no answer in time")
        (flags / "1.fail").touch()
        watch.missed(1, "<class 'RuntimeError'>:<'this client fails'>")
        (flags / "1.fail").unlink()
        loop.start_node(2, {"flags": str(flags)})
        (flags / "0.slow").touch()
        watch.missed(0, "no answer in time")
        (flags / "0.slow").unlink()
        watch.played(len(watch.rows()) + 1)
        loop.kill_link()
        first.wait(MINUTES)
        assert len(watch.rows()) < ROUNDS
        time.sleep(RECONNECT_SECONDS)
        loop.start_link()
        finished(loop.run(app, **config), 6 * MINUTES)
    finally:
        loop.stop()
    missing = away((out / "federation.log").read_text())
    run = tf.Run.load(out)
    assert run.status == "finished"
    assert [row["round"] for row in run.history] == list(range(ROUNDS))
    answered = [row["answered"] for row in run.history]
    assert answered == [CLIENTS - len(missing.get(t, ())) for t in range(ROUNDS)]
    assert answered[0] == CLIENTS
    assert set().union(*missing.values()) == {0, 1, 2}
    assert not any("lost" in row or "refused" in row for row in run.history)
    assert torch.equal(run.x, replayed(app, ROUNDS, missing))
