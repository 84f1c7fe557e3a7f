"""What outlives a process: the server's checkpoints and the clients' memory, each counted once."""

import os
import shutil
from contextlib import ExitStack

import pytest
import torch

import tunefree as tf
from every.cases import timeless
from flower.local import CLIENTS, LocalTransport, train
from helpers import CrashError
from tunefree.core import lock
from tunefree.core.errors import DataError, ResumeError, TunefreeError
from tunefree.core.lock import lock_folder
from tunefree.core.random import cohort
from tunefree.flower.exchange import TooFewError
from tunefree.flower.memory import MemoryStore
from tunefree.flower.serve import SERVER_LOCK
from tunefree.rounds.server import init_server_state, run_round
from tunefree.testing._problem import bind_trial, make_federation

SCAFFOLD, CANON = tf.methods.get("scaffold"), tf.methods.get("fedcanon", wire="ef+topk:0.3")
KINDS = {"scaffold": SCAFFOLD, "prepares": tf.methods.get("comparfrefl"), "echoes": CANON}
ONE = 2  # the client to whom things happen


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Each kind of method, undisturbed."""
    home = tmp_path_factory.mktemp("calm")
    return {k: train(m, LocalTransport(home / k, m)) for k, m in KINDS.items()}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def same(a, b):
    assert torch.equal(a.x, b.x)
    assert [row["train_loss"] for row in a.history] == [row["train_loss"] for row in b.history]


def crash(event):
    """The server dies after round 1, before its checkpoint: the round must be played again."""
    if event.round == 1:
        raise CrashError


def test_a_new_server_continues(kind, calm, tmp_path):
    method, transport = KINDS[kind], LocalTransport(tmp_path / "nodes", KINDS[kind])
    with pytest.raises(CrashError):
        train(method, transport, out=tmp_path / "run", callbacks=[crash])
    run = train(method, LocalTransport(tmp_path / "nodes", method), out=tmp_path / "run")
    same(run, calm[kind])
    assert timeless(run.history) == timeless(calm[kind].history)


def test_a_server_that_dies_within_a_round(kind, calm, tmp_path):
    class Dying(LocalTransport):
        def before(self, i, payload):
            if payload.header.get("round") == 1 and len(self.log) % 3 == 2:
                raise CrashError  # some of the cohort have worked, others have not
            return payload

    method = KINDS[kind]
    with pytest.raises(CrashError):
        train(method, Dying(tmp_path / "nodes", method), out=tmp_path / "run")
    same(
        train(method, LocalTransport(tmp_path / "nodes", method), out=tmp_path / "run"), calm[kind]
    )


def test_every_message_finds_a_new_process_and_comes_twice(kind, calm, tmp_path):
    class Forgetful(LocalTransport):
        def before(self, i, payload):
            self.node(i).reply(payload)
            self._nodes.clear()
            return payload

    same(train(KINDS[kind], Forgetful(tmp_path, KINDS[kind])), calm[kind])


def test_a_late_answer_leaves_no_trace(kind, tmp_path):
    """The client has done its work; the server has not counted it, so it never was."""

    class Late(LocalTransport):
        def after(self, i, payload, answer):
            late = (i, payload.header["kind"], payload.header.get("round")) == (ONE, "train", 1)
            return None if late else answer

    class Cut(LocalTransport):
        def before(self, i, payload):
            cut = (i, payload.header["kind"], payload.header.get("round")) == (ONE, "train", 1)
            return None if cut else payload

    method = KINDS[kind]
    runs = [train(method, P(tmp_path / P.__name__, method), cohort=None) for P in (Late, Cut)]
    same(*runs)
    assert [row["answered"] for row in runs[0].history] == [CLIENTS, CLIENTS - 1, CLIENTS]
    assert runs[0].history[1]["absent"] == 1


def test_means_that_did_not_come_back_come_later(calm, tmp_path):
    class Deaf(LocalTransport):
        def before(self, i, payload):
            lost = payload.header["kind"] == "keep" and (i + payload.header["round"]) % 2
            return None if lost else payload

    same(train(CANON, Deaf(tmp_path / "a", CANON)), calm["echoes"])
    with pytest.raises(CrashError):
        train(CANON, Deaf(tmp_path / "b", CANON), out=tmp_path / "run", callbacks=[crash])
    same(train(CANON, Deaf(tmp_path / "b", CANON), out=tmp_path / "run"), calm["echoes"])


@pytest.mark.parametrize("method", [SCAFFOLD, CANON, tf.methods.get("feddyn")])
def test_the_absent_count_as_in_the_papers(method, tmp_path):
    """Five of six answer: the same as a simulated cohort of those five, weights and all."""

    class Silent(LocalTransport):
        def before(self, i, payload):
            return None if i == ONE and payload.header["kind"] != "hello" else payload

    run = train(method, Silent(tmp_path, method), cohort=None, rounds=3)
    job = bind_trial(method, cohort=None, rounds=3, engine=tf.Engine(backend="loop", chunk=1))
    now, everyone = init_server_state(method, job.start, job.plan), torch.arange(CLIENTS)
    for _ in range(3):
        now, _ = run_round(method, job.plan, now, job.pool, everyone[everyone != ONE])
        job.pool.commit()
    assert torch.equal(run.x, now.x)


class Wiped(LocalTransport):
    """Client ONE's disk is lost, or damaged, after round 0."""

    def __init__(self, home, method, damage=None):
        super().__init__(home, method)
        self.damage = damage

    def before(self, i, payload):
        if payload.header.get("round") == 1 and i == ONE and not getattr(self, "gone", False):
            self.gone = True
            if self.damage is None:
                shutil.rmtree(self.home / str(ONE))
            else:
                (path,) = (self.home / str(ONE)).rglob("0-*.memory")
                path.write_bytes(self.damage(path.read_bytes()))
        return payload


@pytest.mark.parametrize("damage", [None, lambda b: b[:-1], lambda b: b[:-1] + b"x", lambda b: b""])
def test_a_lost_memory_is_seen_and_refused(damage, tmp_path, caplog):
    transport = Wiped(tmp_path, SCAFFOLD, damage)
    run = train(SCAFFOLD, transport, cohort=None)
    assert [(r["answered"], r.get("lost", 0)) for r in run.history] == [(6, 0), (5, 1), (5, 1)]
    assert f"client {ONE} is lost" in caplog.text
    assert not any(i == ONE and q.header.get("base") == "" and q.header["round"] > 0
                   for i, q, _ in transport.log)  # fmt: skip


def test_a_lost_memory_may_begin_anew(tmp_path, caplog):
    method = KINDS["prepares"]
    transport = Wiped(tmp_path, method)
    run = train(method, transport, cohort=None, lost="renew")
    assert [(r["answered"], r.get("renewed", 0)) for r in run.history] == [(6, 0), (6, 1), (6, 0)]
    asked = [(q.header["round"], q.header["base"][:2]) for i, q, a in transport.log
             if i == ONE and q.header["kind"] == "train"]  # fmt: skip
    assert asked == [(-1, ""), (0, "-1"), (1, "0-"), (-1, ""), (1, "-1"), (2, "1-")]
    assert "begins anew" in caplog.text


def test_everyone_prepares_or_nobody_begins(tmp_path):
    class Silent(LocalTransport):
        def before(self, i, payload):
            return None if i == ONE and payload.header["kind"] == "train" else payload

    method = KINDS["prepares"]
    with pytest.raises(TooFewError, match="Round -1 has 5 of the 6"):
        train(method, Silent(tmp_path, method), minimum=1)


def test_a_client_that_raises_is_absent(tmp_path, caplog):
    class Raising(LocalTransport):
        def before(self, i, payload):
            if i == ONE and payload.header["kind"] == "train":
                payload.header["terms"] = "{}"
            return payload

    run = train(SCAFFOLD, Raising(tmp_path, SCAFFOLD), cohort=None)
    assert [(r["answered"], r["absent"]) for r in run.history] == [(5, 1)] * 3
    assert "cannot be read" in caplog.text


def test_a_node_returns_under_another_number(calm, tmp_path):
    class Returning(LocalTransport):
        def exchange(self, payloads, seconds):
            said = super().exchange(payloads, seconds)
            if any(p.header["kind"] == "train" for p in payloads.values()):
                self.there = {n + 1000: i for n, i in self.there.items()}  # all restart
            return said

    same(train(SCAFFOLD, Returning(tmp_path, SCAFFOLD)), calm["scaffold"])


def test_two_nodes_cannot_be_one_client(tmp_path, caplog):
    transport = LocalTransport(tmp_path, SCAFFOLD)
    transport.there[500] = ONE
    train(SCAFFOLD, transport, rounds=1)
    assert "Node 500 is refused: client 2 is on node 102 already" in caplog.text


def test_a_strange_node_is_refused(tmp_path, caplog):
    class Strange(LocalTransport):
        def after(self, i, payload, answer):
            if payload.header["kind"] == "hello" and i == ONE:
                answer.header["client"] = 77
            return answer

    with pytest.raises(TunefreeError, match="1 of 6 clients did not come"):
        train(SCAFFOLD, Strange(tmp_path, SCAFFOLD))
    assert "Node 102 is refused: client 77" in caplog.text


def test_other_data_is_another_run(tmp_path, caplog):
    with pytest.raises(CrashError):
        train(
            SCAFFOLD,
            LocalTransport(tmp_path / "n", SCAFFOLD),
            out=tmp_path / "r",
            callbacks=[crash],
        )
    transport = LocalTransport(tmp_path / "n", SCAFFOLD)
    transport.fed = make_federation(order=(1, 0, 2, 3, 4, 5))
    run = train(SCAFFOLD, transport, out=tmp_path / "r", minimum=1)
    assert "had 3 samples when the run began" in caplog.text
    ids = [set(cohort(7, t, CLIENTS, 4).tolist()) for t in (1, 2)]
    assert [row["answered"] for row in run.history[1:]] == [len(c - {0, 1}) for c in ids]


def test_a_folder_of_another_run_is_not_touched(tmp_path):
    job = bind_trial(SCAFFOLD)
    tf.training.folder.RunFolder(tmp_path / "r").start(job.settings)
    with pytest.raises(ResumeError, match="is no federation's"):
        train(SCAFFOLD, LocalTransport(tmp_path / "n", SCAFFOLD), out=tmp_path / "r")
    assert not (tmp_path / "r/nodes.json").exists()


def test_two_servers_do_not_share_a_folder(tmp_path):
    out = tmp_path / "r"
    out.mkdir()

    def serve():
        return train(SCAFFOLD, LocalTransport(tmp_path / "n", SCAFFOLD), out=out, rounds=1)

    with (
        lock_folder(out, name=SERVER_LOCK),
        pytest.raises(ResumeError, match=f"being written by process {os.getpid()}"),
    ):
        serve()
    assert not (out / "nodes.json").exists()
    assert serve().status == "finished"
    assert not (out / SERVER_LOCK).exists()


def test_a_server_waits_for_another_to_end(tmp_path, monkeypatch):
    """The other one ends while this one sleeps between two attempts."""
    other = ExitStack()
    other.enter_context(lock_folder(tmp_path, name=SERVER_LOCK))
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: other.close())
    run = train(
        SCAFFOLD, LocalTransport(tmp_path / "n", SCAFFOLD), out=tmp_path, wait=60.0, rounds=1
    )
    assert run.status == "finished"


def test_the_store(tmp_path):
    store = MemoryStore(tmp_path, "0" * 32, 3)
    for t in range(6):
        store.write(f"{t}-0000000{t}", {"c": torch.tensor([float(t)])})
        store.prune("1-00000001")
    names = {p.name for p in store.path.iterdir()}
    assert names == {f"{t}-0000000{t}.memory" for t in (1, 3, 4, 5)}
    assert store.read("4-00000004")["c"].tolist() == [4.0]
    assert store.read("0-00000000") is None
    for bad in ("../../x", "4", "4-0000000g", "4-00000004/../5-00000005", ""):
        with pytest.raises(DataError):
            store.read(bad)
    with pytest.raises(DataError):
        MemoryStore(tmp_path, "../other", 3)


def test_a_silent_node_is_asked_ever_more_seldom(tmp_path):
    class Mute(LocalTransport):
        asked = 0

        def nodes(self):
            return [*super().nodes(), 999]

        def exchange(self, payloads, seconds):
            self.asked += payloads.pop(999, None) is not None
            return super().exchange(payloads, seconds)

    transport = Mute(tmp_path, SCAFFOLD)
    run = train(SCAFFOLD, transport, rounds=12, steps=1)
    assert run.status == "finished"
    assert transport.asked == 3  # at the 1st, 3rd and 7th of 13 meetings


def test_a_client_that_is_behind_has_answered(tmp_path):
    class Deaf(LocalTransport):
        def before(self, i, payload):
            return None if payload.header["kind"] == "keep" and i == ONE else payload

    run = train(CANON, Deaf(tmp_path, CANON), cohort=None, rounds=2)
    assert [(r["answered"], r["behind"], r.get("absent")) for r in run.history] == [
        (6, 1, None)
    ] * 2
