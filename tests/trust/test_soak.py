"""A day of a federation: nodes leave, return, restart and lie, and the server is killed.

Time is simulated: a round begins every minute, every exchange takes five seconds and every pause
thirty, so that a day is 1440 rounds. Invariants are checked in every round:

- rounds follow each other, in the history and in the checkpoint, and every number is finite;
- of a cohort at most its size answer, and at least the minimum, unless the round is lost;
- the server's control is the mean of the clients' controls on their disks (SCAFFOLD), so that no
  upload counted twice or was lost on one side only;
- under masks no client masks a round twice, whatever was restarted;
- open files, and files of a node, do not become more.
"""

import json
import os
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tunefree as tf
from flower.local import CLIENTS, LocalTransport, train
from helpers import CrashError
from tunefree.flower import exchange
from tunefree.flower.exchange import TooFewError
from tunefree.flower.memory import FIRST, MemoryStore
from tunefree.flower.payload import EncodedArray, encode_dense, wrap_bytes
from tunefree.privacy import Secure
from tunefree.training.folder import RunFolder

MINUTE, DAY = 60.0, 86_400.0
SCAFFOLD = tf.methods.get("scaffold", lr=0.02)
COHORT, MINIMUM = 5, 3
D = 57


class World(LocalTransport):
    """Nodes that come and go, lie and restart; a clock; a server that is killed."""

    def __init__(self, home, seed, hostile):
        super().__init__(home, SCAFFOLD)
        self.home, self.random, self.hostile = home, random.Random(seed), hostile
        self.clock, self.counts, self.number = 0.0, Counter(), 1000
        self.away = {}  # client: when it returns
        self.masked = set()

    def monotonic(self):
        return self.clock

    def advance(self, seconds):
        self.clock += seconds
        for number, i in list(self.there.items()):
            if self.random.random() < seconds / 3600:  # a node leaves once an hour
                del self.there[number]
                self.away[i] = self.clock + self.random.expovariate(1 / 600)
                self.counts["nodes left"] += 1
        for i, back in list(self.away.items()):
            if back <= self.clock:
                del self.away[i]
                self.return_node(i)

    def return_node(self, i):
        """A node returns, often in another process and always with another number."""
        self.number += 1
        self.there[self.number] = i
        if self.random.random() < 0.7:
            self._nodes.pop(i, None)
            self.counts["nodes restarted"] += 1

    def pause(self):
        self.advance(30.0)

    def exchange(self, payloads, seconds):
        self.advance(5.0)
        if self.random.random() < 1 / 400:
            self.counts["server killed in an exchange"] += 1
            raise CrashError
        return super().exchange({n: p for n, p in payloads.items() if n in self.there}, seconds)

    def before(self, i, payload):
        return None if self.random.random() < 0.005 else payload  # lost on its way

    def after(self, i, payload, answer):
        if isinstance(answer, str):
            return answer
        if "masked" in answer.arrays:
            key = i, payload.header["run"], payload.header["round"]
            assert key not in self.masked, "a client masked a round twice"
            self.masked.add(key)
        if self.random.random() < 0.005:
            self.counts["answers lost"] += 1
            return None
        if i in self.hostile and payload.header["kind"] != "hello" and self.random.random() < 0.15:
            self.counts["lies"] += 1
            return self.lie(answer)
        return answer

    def lie(self, answer):
        """An answer that has to be refused, or that spoils a sum."""
        header, arrays = answer.header, answer.arrays
        wrong = [
            replace(answer, header=header | {"version": "0-00000000"}),
            replace(answer, header=header | {"round": 10**9}),
            replace(answer, header=header | {"client": 0}),
            replace(answer, arrays={}),
            replace(answer, metrics={}, arrays={"x" * 100_000: wrap_bytes(b"x")}),
        ]
        for name, array in arrays.items():
            for change in (self.flip, self.cut, self.infinite):
                wrong.append(replace(answer, arrays=arrays | {name: change(array)}))
        return self.random.choice(wrong)

    def flip(self, array):
        if array.form == "dense":
            return encode_dense(torch.full((D,), 1e300, dtype=torch.float64))
        data = bytearray(array.data)
        for _ in range(3):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return wrap_bytes(bytes(data))

    def cut(self, array):
        return EncodedArray(array.dtype, array.shape, array.form, array.data[:-1])

    def infinite(self, array):
        if array.form == "dense":
            return encode_dense(torch.full((D,), float("nan"), dtype=torch.float64))
        return wrap_bytes(array.data + b"x")


class Watch:
    """A callback that checks the invariants after every round, and kills the server."""

    def __init__(self, world, out, masked):
        self.world, self.out, self.masked = world, out, masked
        self.answered, self.files, self.checked = Counter(), [], 0

    def __call__(self, event):
        row, world = event.row, self.world
        assert torch.isfinite(event.x).all()
        self.answered[row["answered"]] += 1
        assert row["answered"] <= COHORT
        assert row["answered"] >= MINIMUM or row.get("round_lost") == 1
        self.check_folder(event.round)
        world.advance(max(0.0, (event.round + 1) * MINUTE - world.clock))
        if world.random.random() < 1 / 100:
            world.counts["server killed after a round"] += 1
            raise CrashError

    def check_folder(self, t):
        """The checkpoint of the round before; this one is written after the callbacks."""
        found = RunFolder(self.out).load_checkpoint()
        if found is None:
            return
        rounds, tensors, facts = found
        assert rounds <= t + 1
        assert facts["status"] == "unfinished"
        rows = [row["round"] for row in RunFolder(self.out).read_history()]
        assert rows == list(range(t + 1))
        state = json.loads(bytes(tensors["nodes"].tolist()))
        run = json.loads((self.out / "nodes.json").read_text())["run"]
        total = torch.zeros(D, dtype=torch.float64)
        for i in range(CLIENTS):
            version = state["versions"].get(str(i), FIRST)
            if version != FIRST:
                store = MemoryStore(self.world.home / str(i), run, i)
                own = store.read(version)
                assert own is not None, "a committed memory is missing"
                total += own["direction.control"]
                assert len(list(store.path.iterdir())) < 10
        mean, control = total / CLIENTS, tensors["direction.control"]
        slack = 1e-6 if self.masked else 1e-9
        assert float((mean - control).abs().max()) <= slack * (1 + float(control.abs().max()))
        self.files.append(len(os.listdir("/proc/self/fd")))
        self.checked += 1


def soak(home, rounds, masked, monkeypatch, seed=0):
    """Train for so many minutes; return the figures."""
    out, world = home / "run", World(home / "nodes", seed, hostile={2, 4})
    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=world.monotonic))
    watch = Watch(world, out, masked)
    given = {"cohort": COHORT, "minimum": MINIMUM, "rounds": rounds, "wait": 3600.0}
    given |= {"out": out, "secure": Secure(threshold=3) if masked else None, "callbacks": [watch]}
    while True:
        try:
            run = train(SCAFFOLD, world, **given)
            break
        except CrashError:
            world.counts["server restarts"] += 1
        except TooFewError:
            world.counts["too few answered"] += 1
        world._nodes.clear()
    lost = sum(row.get("round_lost", 0) for row in run.history)
    assert [row["round"] for row in run.history] == list(range(rounds))
    assert run.status == "finished"
    kept = tf.Run.load(out)
    assert torch.equal(kept.x, run.x)
    assert [row["answered"] for row in kept.history] == [row["answered"] for row in run.history]
    assert watch.files[-1] <= watch.files[0] + 2
    return {
        "masked": masked,
        "rounds": rounds,
        "simulated hours": round(world.clock / 3600, 2),
        **dict(sorted(world.counts.items())),
        "refused answers": sum(row.get("refused", 0) for row in run.history),
        "rounds lost": lost,
        "answered": dict(sorted(watch.answered.items())),
        "rounds checked": watch.checked,
        "open files": [watch.files[0], watch.files[-1]],
        "first and last loss": [run.history[0]["train_loss"], run.history[-1]["train_loss"]],
    }


@pytest.mark.parametrize("masked", [False, True])
def test_half_an_hour(masked, tmp_path, monkeypatch):
    if masked:
        pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    found = soak(tmp_path, 30, masked, monkeypatch)
    assert found["lies"] > 0
    assert found["rounds checked"] > 25


@pytest.mark.trust
@pytest.mark.parametrize("masked", [False, True])
def test_a_day(masked, tmp_path, monkeypatch):
    if masked:
        pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    found = soak(tmp_path, int(DAY / MINUTE), masked, monkeypatch)
    print(json.dumps(found))
    assert found["simulated hours"] >= 24
    assert found["server restarts"] > 5
    assert found["rounds lost"] < (0.2 if masked else 1e-9) * found["rounds"]
