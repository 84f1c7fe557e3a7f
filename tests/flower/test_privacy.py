"""Over a federation: noise as in a simulation, and sums under masks with clients that vanish."""

import importlib.util
import json
import math
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import given as given_
from hypothesis import settings as settings_
from hypothesis import strategies as st

import tunefree as tf
from flower import local
from flower.local import CLIENTS, LocalTransport, train
from flower.test_parity import simulated
from helpers import CrashError, run_threads
from tunefree.clients import Constant, Scaffold
from tunefree.core.errors import ArgumentError, DataError, ResumeError, TunefreeError
from tunefree.flower import secagg_client
from tunefree.flower.exchange import TooFewError
from tunefree.flower.memory import MemoryStore
from tunefree.flower.node import Node
from tunefree.flower.payload import encode_dense, wrap_bytes
from tunefree.flower.secagg_client import MaskLog, SecAggClient, SecAggTerms
from tunefree.flower.secagg_server import MaskedRounds
from tunefree.privacy import (
    Bounds,
    Privacy,
    ProtocolClient,
    ProtocolError,
    ProtocolServer,
    Secure,
)
from tunefree.server import Average
from tunefree.testing._problem import make_net

METHODS = {  # of each family, and those that ask clients in the middle of a round
    "fedavg": {"lr": 0.1},
    "scaffold": {"lr": 0.1, "weights": "samples"},
    "fedexp": {"lr": 0.1},
    "fedadam": {},
    "parfrefl": {},
    "fedcanon": {"lr": 0.1, "penalty": "l1:0.01"},
    "auto": {},
    "fedlin": {},
    "fedproxlod": {},
    "comparfrefl": {},
}


class Asks(Average):
    """A server rule that asks for the loss after the training."""

    def step(self, x, mean, state, t, query):
        query("loss", [x + mean["delta"]])
        return super().step(x, mean, state, t, query)


def method(name):
    return tf.methods.get(name, **METHODS[name])


def test_noise_is_that_of_the_simulation(tmp_path, caplog):
    made = method("fedexp")
    scalars = {"delta_sq": (0.0, 3.0), "loss": (0.0, 3.0), "lr": (0.0, 1.0)}
    bounds = Bounds(vectors={"delta": 0.5}, scalars=scalars)
    given = {"noise": 0.1, "clients": CLIENTS, "cohort": 4, "bounds": bounds, "seed": 1}
    if importlib.util.find_spec("dp_accounting") is not None:
        given["delta"] = 1e-3
    alone = simulated(made, aggregate=Privacy(**given))
    spread = train(made, LocalTransport(tmp_path, made), aggregate=Privacy(**given))
    assert torch.equal(alone.x, spread.x)
    for a, b in zip(alone.history, spread.history, strict=True):
        assert a["train_loss"] == b["train_loss"]
        assert a.get("epsilon") == b.get("epsilon")
        assert ("epsilon" in b) == ("delta" in given)
    assert "can subtract this run's noise" in caplog.text


def test_secret_cohorts_are_refused(tmp_path):
    """Every node is told the seed, so that epsilon would be far below the true one."""
    bounds = Bounds(vectors={"delta": 0.5}, scalars={"loss": (0.0, 3.0), "lr": (0.0, 1.0)})
    given = {"noise": 1.0, "clients": CLIENTS, "cohort": 4, "bounds": bounds}
    made, private = method("fedavg"), Privacy(**given, cohorts="secret")
    with pytest.raises(ArgumentError, match="needs cohorts='known': nodes are told the run's seed"):
        train(made, LocalTransport(tmp_path, made), aggregate=private)


class Vanishing(LocalTransport):
    """Client 3 is not heard any more from a message of round 1 on, until round 2."""

    kind = "none"

    def after(self, i, payload, answer):
        kinds = ["keys", "shares", "train", "opened"]
        kind = payload.header.get("kind")
        gone = kind in kinds and kinds.index(kind) >= kinds.index(self.kind)
        return None if i == 3 and payload.header.get("round") == 1 and gone else answer


@pytest.mark.parametrize("name", METHODS)
def test_under_masks_a_federation_is_the_plain_one(name, tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method(name)
    made = replace(made, weights=made.weights or "uniform")  # the same on both sides
    transport = LocalTransport(tmp_path / "masked", made)
    plain = train(made, LocalTransport(tmp_path / "plain", made))
    masked = train(made, transport, secure=Secure())
    torch.testing.assert_close(plain.x, masked.x, rtol=0, atol=1e-10)
    assert masked.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"])
    for _, asked, said in transport.log:
        if asked.header["kind"] in ("train", "probe"):
            assert set(said.arrays) == {"masked"}
            assert not said.scalars
            assert set(said.metrics) <= {"tally", "passes"}
    assert masked.history[0]["bytes_up.masked"] > 0


@pytest.mark.parametrize("kind", ["keys", "shares", "train", "opened"])
def test_a_client_that_vanishes(kind, tmp_path):
    """Before its numbers arrive the mean is without it, after that it counts."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("scaffold")
    transport = Vanishing(tmp_path / "masked", made)
    transport.kind = kind
    masked = train(made, transport, secure=Secure(threshold=4), cohort=None, rounds=3)
    other = Vanishing(tmp_path / "plain", made)
    other.kind = "train" if kind != "opened" else "opened"
    plain = train(made, other, cohort=None, rounds=3)
    torch.testing.assert_close(plain.x, masked.x, rtol=0, atol=1e-10)
    assert masked.history[1]["answered"] == CLIENTS - (kind != "opened")


def test_too_few_to_unmask_keeps_the_state(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedavg")
    transport = Vanishing(tmp_path, made)
    transport.kind = "opened"
    with pytest.raises(TooFewError, match="Round 1"):
        train(made, transport, secure=Secure(threshold=6), cohort=None)


def test_a_wire_that_saves_nothing_is_said(tmp_path, caplog):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("comparfrefl")
    row = train(made, LocalTransport(tmp_path, made), secure=Secure(bits=32), rounds=1).history[0]
    assert "but sends whole vectors" in caplog.text
    assert row["bytes_up.masked"] > 4 * 4 * 57  # whole vectors of everybody in the cohort
    assert row["counted_up"] == row["bytes_up.masked"]


def test_bounds_by_name(tmp_path):
    """Each channel has its own, points that of what is measured there."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedlin")
    names = dict.fromkeys((*made.vectors, *made.scalars, "loss", "lr"), 64.0)
    train(made, LocalTransport(tmp_path / "all", made), secure=Secure(bound=names | {"grad": 64.0}))
    with pytest.raises(ArgumentError, match="none for the channel 'grad'"):
        train(made, LocalTransport(tmp_path / "few", made), secure=Secure(bound=names))


def test_what_masks_cannot_hide_is_refused(tmp_path):
    for name, given, said in (
        ("fedavg", {"aggregate": Secure()}, "aggregate or secure"),
        ("parfrefl", {"lost": "renew"}, "prepare alone"),
    ):
        made = method(name)
        with pytest.raises(ArgumentError, match=said):
            train(made, LocalTransport(tmp_path, made), secure=Secure(), **given)


@pytest.mark.parametrize("threshold", [2, 7])
def test_a_threshold_that_no_round_can_have_is_refused_before_round_0(threshold, tmp_path):
    made = method("fedavg")
    transport = LocalTransport(tmp_path, made)
    with pytest.raises(ArgumentError, match=r"above half of a round's 4 clients, and at most all"):
        train(made, transport, secure=Secure(threshold=threshold))
    assert {asked.header["kind"] for _, asked, _ in transport.log} == {"hello"}


class Shy(LocalTransport):
    """Client 3 hides among at least five."""

    def node(self, i):
        node = super().node(i)
        node._config |= {"least": 5} if i == 3 else {}
        return node


def test_a_node_insists_on_masks_and_on_company(tmp_path, caplog):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedavg")
    for kind, given, said in (
        ("clear", {}, "only under secure aggregation"),
        ("few", {"secure": Secure(), "cohort": 4, "rounds": 3}, "hides among 5"),
    ):
        caplog.clear()
        transport = Shy(tmp_path / kind, made)
        run = train(made, transport, **{"cohort": None, "rounds": 1} | given)
        assert said in caplog.text
        assert min(row["answered"] for row in run.history) == (CLIENTS if not given else 4) - 1
        sent = {
            n for i, _, a in transport.log if i == 3 and not isinstance(a, str) for n in a.arrays
        }
        assert not sent & {"delta", "masked"}
    crowd = train(made, Shy(tmp_path / "many", made), secure=Secure(), cohort=None, rounds=1)
    assert crowd.history[0]["answered"] == CLIENTS


def interrupted(event):
    if event.round == 1:
        raise CrashError


def masked_run(home, transport=None, **more):
    made = method("scaffold")
    transport = LocalTransport(home / "nodes", made) if transport is None else transport
    given = {"secure": Secure(), "cohort": None, "rounds": 4, "out": home / "run"} | more
    return train(made, transport, **given)


def masks_of(transport):
    """Every masked vector that was sent: client, round and bytes."""
    return [
        (i, asked.header["round"], said.arrays["masked"].data)
        for i, asked, said in transport.log
        if not isinstance(said, str) and "masked" in said.arrays
    ]


def test_a_masked_round_is_not_replayed(tmp_path):
    """The server stops after the sum of round 1, before it is saved: the round is lost."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    with pytest.raises(CrashError):
        masked_run(tmp_path, callbacks=[interrupted])
    transport = LocalTransport(tmp_path / "nodes", method("scaffold"))
    run = masked_run(tmp_path, transport)
    assert run.status == "finished"
    assert [row.get("round_lost", 0) for row in run.history] == [0, 1, 0, 0]
    assert run.history[1]["answered"] == 0
    assert {t for _, t, _ in masks_of(transport)} == {2, 3}
    assert [row["answered"] for row in run.history[2:]] == [CLIENTS] * 2


def test_clients_remember_what_they_masked(tmp_path, caplog):
    """Also if a server wants it again: it lost its record, or it is another run of one seed."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    with pytest.raises(CrashError):
        masked_run(tmp_path, callbacks=[interrupted])
    (tmp_path / "run" / "masked.json").unlink()
    transport = LocalTransport(tmp_path / "nodes", method("scaffold"))
    with pytest.raises(TooFewError, match="Round 1"):
        masked_run(tmp_path, transport)
    assert "masked its numbers for this round before" in caplog.text
    assert not masks_of(transport)
    with pytest.raises(TooFewError, match="Round 0"):
        masked_run(tmp_path, transport, out=tmp_path / "again")
    assert not masks_of(transport)
    with pytest.raises(TooFewError, match="Round 0"):  # the same vectors, in other terms
        masked_run(tmp_path, transport, out=tmp_path / "longer", rounds=9)
    assert not masks_of(transport)
    masked_run(tmp_path, transport, out=tmp_path / "other", seed=8)
    assert masks_of(transport)


def test_numbers_of_a_node_are_checked(tmp_path):
    for config, said in (
        ({"partition-id": "x"}, r"--node-config\(partition-id=\.\.\.\) must be an int >= 0"),
        ({"client-id": -1}, r"client-id=\.\.\.\) must be an int >= 0, got -1"),
        ({"partition-id": float("inf")}, "must be an int"),
    ):
        with pytest.raises(ArgumentError, match=said):
            Node(make_net, None, config | {"memory": str(tmp_path)})


def test_a_preparation_is_not_replayed(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("parfrefl")
    given = {"secure": Secure(), "out": tmp_path / "run", "rounds": 2}

    def crash(event):
        raise CrashError

    with pytest.raises(CrashError):
        train(made, LocalTransport(tmp_path / "nodes", made), callbacks=[crash], **given)
    with pytest.raises(ResumeError, match="preparation before round 0 was interrupted"):
        train(made, LocalTransport(tmp_path / "nodes", made), **given)


class Changing(LocalTransport):
    """What client 3 says in round 1 of a kind is changed."""

    kind = change = None

    def after(self, i, payload, answer):
        is_it = i == 3 and payload.header.get("kind") == self.kind
        if not is_it or payload.header.get("round") != 1 or isinstance(answer, str):
            return answer
        ((name, array),) = answer.arrays.items()
        data = bytearray(array.data)
        self.change(data)
        return replace(answer, arrays={name: wrap_bytes(bytes(data))})


def flip_share(data):
    data[25 + 4 + 5 + 20] ^= 1


def spoil_deals(data):
    """Change every sealed share: nobody can open it."""
    width = 4 + 148 + 64
    for at in range(25 + 96 + 4, len(data), width):
        data[at + 4] ^= 1


def add_much(data):
    data[-1] ^= 0x40  # the top byte of the last number


@pytest.mark.parametrize(
    ("kind", "change", "lost"),
    [("opened", flip_share, 0), ("shares", spoil_deals, 1), ("train", add_much, 1)],
)
def test_a_client_that_sends_wrong_messages_does_not_stop_the_run(kind, change, lost, tmp_path):
    """A wrong share is left out; what spoils a sum costs its round, and a dealer its place."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    transport = Changing(tmp_path / "nodes", method("scaffold"))
    transport.kind, transport.change = kind, change
    run = masked_run(tmp_path, transport)
    assert run.status == "finished"
    assert [row.get("round_lost", 0) for row in run.history] == [0, lost, 0, 0]
    left = CLIENTS - (change is spoil_deals)
    assert run.history[-1]["answered"] == left
    if not lost:
        calm = masked_run(tmp_path / "calm")
        torch.testing.assert_close(run.x, calm.x, rtol=0, atol=1e-10)


def test_a_round_that_is_lost_after_training_commits_nothing(tmp_path):
    """A query after the training cannot be unmasked: the server does not step, and clients keep
    the memory that they had."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = tf.Method(direction=Scaffold(), step=Constant(0.1), server=Asks())
    seen = []

    class Late(LocalTransport):
        def after(self, i, payload, answer):
            header = payload.header
            if header.get("kind") == "train":
                seen.append((header["round"], header["base"]))
            if i == 3 and header.get("kind") == "probe" and header["round"] == 1:
                data = bytearray(answer.arrays["masked"].data)
                add_much(data)
                return replace(answer, arrays={"masked": wrap_bytes(bytes(data))})
            return answer

    run = train(made, Late(tmp_path, made), secure=Secure(), cohort=None, rounds=3)
    assert [row.get("round_lost", 0) for row in run.history] == [0, 1, 0]
    assert {base for t, base in seen if t == 2} == {base for t, base in seen if t == 1}


class Spoiling(LocalTransport):
    """Client 3 adds far too much, in every round."""

    def after(self, i, payload, answer):
        if i == 3 and payload.header.get("kind") == "train" and not isinstance(answer, str):
            data = bytearray(answer.arrays["masked"].data)
            add_much(data)
            return replace(answer, arrays={"masked": wrap_bytes(bytes(data))})
        return answer


def test_rounds_are_not_lost_for_ever(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    with pytest.raises(TooFewError, match=r"beyond the sum of bounds .* 3 rounds were lost"):
        masked_run(tmp_path, Spoiling(tmp_path / "nodes", method("scaffold")), rounds=9)


class TwoFaced(LocalTransport):
    """A server that tells client 3 something else."""

    def before(self, i, payload):
        header = payload.header
        if i != 3 or "secure" not in header:
            return payload
        return self.lie(payload)


class OtherModel(TwoFaced):
    def lie(self, payload):
        arrays = {
            n: encode_dense(torch.zeros(57, dtype=torch.float64)) if n == "down.x" else a
            for n, a in payload.arrays.items()
        }
        return replace(payload, arrays=arrays)


class LowerThreshold(TwoFaced):
    def lie(self, payload):
        if payload.header["kind"] != "opened":
            return payload
        text = json.loads(payload.header["secure"])
        header = payload.header | {"secure": json.dumps(text | {"threshold": 4})}
        return replace(payload, header=header)


def test_a_client_that_is_sent_another_model_stays_masked(tmp_path):
    """Its gradient alone would be left in the sum if the others' models gave none."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    with pytest.raises(TooFewError, match=r"Round 2 cannot be unmasked: .*beyond the sum"):
        masked_run(tmp_path, OtherModel(tmp_path / "nodes", method("scaffold")))


def test_a_client_opens_nothing_under_other_terms(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    transport = LowerThreshold(tmp_path / "nodes", method("scaffold"))
    run = masked_run(tmp_path, transport, rounds=1)
    said = [a for i, asked, a in transport.log if i == 3 and asked.header["kind"] == "opened"]
    assert said == ["The terms of the session have changed since it began."]
    assert run.history[0]["answered"] == CLIENTS


class OtherScale(TwoFaced):
    """With inputs of zeros, gradients of a first layer are zero: those of the others are left."""

    def lie(self, payload):
        if "scale" not in payload.arrays:
            return payload
        zeros = torch.stack([torch.zeros(5), torch.full((5,), 1e30)]).double()
        return replace(payload, arrays=payload.arrays | {"scale": encode_dense(zeros)})


def test_a_client_that_is_sent_other_scales_stays_masked(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    transport = OtherScale(tmp_path / "nodes", method("scaffold"))
    with pytest.raises(TooFewError, match=r"Round 2 cannot be unmasked: .*beyond the sum"):
        masked_run(tmp_path, transport, preprocess=tf.Preprocess(scale="standard"))


def test_all_clients_are_sent_the_same_first_model(tmp_path):
    """It makes the first memory of clients that join later; some methods start from that."""
    sent = []

    class OtherStart(LocalTransport):
        def before(self, i, payload):
            if "start.x" not in payload.arrays or i == 3:
                return payload
            sent.append(i)
            other = encode_dense(torch.zeros(57, dtype=torch.float64))
            return replace(payload, arrays=payload.arrays | {"start.x": other})

    made = method("scaffold")
    transport = OtherStart(tmp_path, made)
    run = train(made, transport, cohort=3, minimum=1, rounds=4)
    assert sent
    said = [a for _, asked, a in transport.log if isinstance(a, str)]
    assert set(said) == {"The first model that was sent is not that of the run's terms."}
    assert min(row["answered"] for row in run.history) < 3


class LowKey(LocalTransport):
    """Client 3 sends a public key with which nobody can agree on a secret."""

    def after(self, i, payload, answer):
        if i != 3 or payload.header["kind"] != "keys" or isinstance(answer, str):
            return answer
        data = bytearray(answer.arrays["keys"].data)
        data[-32:] = bytes(32)
        return replace(answer, arrays={"keys": wrap_bytes(bytes(data))})


def test_a_key_that_agrees_with_nobody_stops_nobody(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    run = masked_run(tmp_path, LowKey(tmp_path / "nodes", method("scaffold")), rounds=2)
    assert [row["answered"] for row in run.history] == [CLIENTS - 1] * 2
    assert [row["refused"] for row in run.history] == [1, 1]


def test_a_record_that_was_cut_short_hides_nothing(tmp_path):
    """A disk that is full, or a crash, leaves half a line; the next one is read nevertheless."""
    record = MaskLog(MemoryStore(tmp_path, "0" * 16, 3))
    record.add(b"a" * 32)
    with (tmp_path / "masked-3.log").open("ab") as file:
        file.write(b"61" * 5)
    record.add(b"b" * 32)
    for key in (b"a" * 32, b"b" * 32):
        with pytest.raises(ProtocolError, match="does not do so twice"):
            record.check(key)
    record.check(b"c" * 32)


def test_a_node_answers_one_message_at_a_time(tmp_path, monkeypatch):
    """Both processes would read the state before one of them takes it: two sets of shares."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    store, terms = MemoryStore(tmp_path, "0" * 16, 0), SecAggTerms.create(Secure(), 3, {"d": (2,)})
    server = ProtocolServer(terms.terms)
    node = SecAggClient(store, terms, 3, "0" * 16, 0)
    server.receive_keys(0, node.answer("keys", b""))
    for i in (1, 2):
        server.receive_keys(i, ProtocolClient(i, terms.terms).advertise())
    both, real = threading.Event(), secagg_client.read_file
    reads = []

    def read(path, *limits):
        data = real(path, *limits)
        if path.name == "session.json":
            reads.append(path)
            both.wait(1.0) if len(reads) == 1 else both.set()
        return data

    monkeypatch.setattr(secagg_client, "read_file", read)
    roster, said = server.roster(), []

    def ask():
        try:
            said.append(SecAggClient(store, terms, 3, "0" * 16, 0).answer("shares", roster))
        except (TunefreeError, OSError) as error:
            said.append(str(error))

    run_threads(ask, ask)
    assert sorted(type(one).__name__ for one in said) == ["bytes", "str"]
    assert "Member 0 is 'shared', not 'advertised'." in said


class Leaving(LocalTransport):
    """Client 3 is not there in round 2."""

    def before(self, i, payload):
        return None if i == 3 and payload.header.get("round") == 2 else payload


def lost_round(name, home, monkeypatch, **given):
    """Round 1 is summed, but not saved; client 3 is gone in round 2, which has the same model."""
    monkeypatch.setattr(local, "make_net", lambda: make_net(dropout=0.0))
    made = method(name)
    given |= {"secure": Secure(threshold=4), "minimum": 4, "cohort": None, "rounds": 4}
    given |= {"out": home / "run"}
    with pytest.raises(CrashError):
        train(made, LocalTransport(home / "nodes", made), callbacks=[interrupted], **given)
    transport = Leaving(home / "nodes", made)
    try:
        return transport, train(made, transport, **given)
    except TooFewError as error:
        return transport, error


def test_after_a_lost_round_full_batches_are_not_summed_again(tmp_path, monkeypatch, caplog):
    """They give the same vectors as in the lost round, of which the server had the sum."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    transport, found = lost_round("fedavg", tmp_path, monkeypatch, batch=None)
    assert isinstance(found, TooFewError)
    assert not masks_of(transport)
    assert "or the same ones in another" in caplog.text


def test_after_a_lost_round_small_clients_wait_for_another_model(tmp_path, monkeypatch):
    """Clients 0 and 4 have no more samples than a batch; 3 leaves, so that 1, 2 and 5 are left."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    given = {"batch": 4, "steps": 2}
    transport, found = lost_round("fedavg", tmp_path / "few", monkeypatch, **given)
    assert isinstance(found, TooFewError)
    assert {i for i, t, _ in masks_of(transport) if t == 2} == {1, 2, 5}
    monkeypatch.setattr(Leaving, "before", LocalTransport.before)
    transport, run = lost_round("fedavg", tmp_path / "enough", monkeypatch, **given)
    assert {i for i, t, _ in masks_of(transport) if t == 2} == {1, 2, 3, 5}
    assert {i for i, t, _ in masks_of(transport) if t == 3} == set(range(CLIENTS))
    assert [row["answered"] for row in run.history] == [6, 0, 4, 6]


def test_after_a_lost_round_gradients_are_not_summed_again(tmp_path, monkeypatch):
    """The server has their sum from the lost round, and clients refuse to be asked again."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    monkeypatch.setattr(Leaving, "before", lambda self, i, payload: payload)
    given = {"batch": 4, "steps": 2}
    transport, run = lost_round("fedlin", tmp_path, monkeypatch, **given)
    asked = {p.header["round"] for _, p, _ in transport.log if p.header.get("kind") == "probe"}
    assert asked == {3}
    assert run.status == "finished"
    forgotten = tmp_path / "forgotten"
    monkeypatch.setattr(MaskedRounds, "keep", lambda self, question, means: None)
    transport, found = lost_round("fedlin", forgotten, monkeypatch, **given)
    assert isinstance(found, TooFewError)
    assert not masks_of(transport)


@pytest.mark.parametrize("name", ["fedrace", "feddog", "fedproxlod", "auto"])
def test_methods_that_begin_in_round_0_begin_after_a_lost_one(name, tmp_path):
    """They ask for a first scale or step size, without which nothing would move."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = tf.methods.get(name)

    def crash(event):
        raise CrashError

    given = {"secure": Secure(), "out": tmp_path / "run", "rounds": 3, "cohort": None}
    with pytest.raises(CrashError):
        train(made, LocalTransport(tmp_path / "nodes", made), callbacks=[crash], **given)
    run = train(made, LocalTransport(tmp_path / "nodes", made), **given)
    assert [row["answered"] for row in run.history] == [0, CLIENTS, CLIENTS]
    assert all(row["lr"] > 0 for row in run.history[1:])


def test_weights_that_hide_nobody_are_refused_before_round_0(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    torch.manual_seed(0)
    x, y = torch.randn(1005, 5).double(), torch.randint(3, (1005,))
    fed = tf.Federation(x, y, [0] * 1000 + [1, 2, 3, 4, 5], test=(x, y))
    transport = LocalTransport(tmp_path, method("scaffold"), fed)
    with pytest.raises(ArgumentError, match="1 of 6 clients have at least a tenth of the largest"):
        train(method("scaffold"), transport, secure=Secure(), fed=fed, claim_limit=None)


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """All that client 3 is asked in two runs with masks, of which one has another seed."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    out = []
    for seed in (7, 8):
        home = tmp_path_factory.mktemp("heard")
        transport = LocalTransport(home / "nodes", method("scaffold"))
        masked_run(home, transport, rounds=2, seed=seed, out=None)
        out += [asked for i, asked, _ in transport.log if i == 3]
    return out


@pytest.mark.parametrize("t", [1.0, "1", True, " 1", "1e0", math.nan, -2, 10**30, None])
def test_a_round_is_one_number(heard, tmp_path, t):
    """Written in another way, a question would not be known as the one that was answered."""
    (asked,) = [p for p in heard[: len(heard) // 2] if p.header.get("round") == 1][:1]
    node = LocalTransport(tmp_path, method("scaffold")).node(3)
    with pytest.raises(DataError, match="The round of a message must be an int"):
        node.reply(replace(asked, header=asked.header | {"round": t}))


CHANGES = ("", "", "round", "threshold", "run", "restart")


@given_(asked=st.lists(st.tuples(st.integers(0, 99), st.sampled_from(CHANGES)), max_size=30))
@settings_(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_node_that_is_asked_in_any_order(heard, tmp_path_factory, asked):
    """Twice, from another run, with changed terms, to a node that restarts: nothing in clear, and
    no round masked twice."""
    home = tmp_path_factory.mktemp("asked")
    transport = LocalTransport(home, method("scaffold"))
    sent = []
    for at, change in asked:
        payload = heard[at % len(heard)]
        header = dict(payload.header)
        if change == "round" and "round" in header:
            header["round"] = 1 - header["round"]
        elif change == "threshold" and "secure" in header:
            header["secure"] = json.dumps(json.loads(header["secure"]) | {"threshold": 4})
        elif change == "run" and "run" in header:
            header["run"] = "0" * 32
        elif change == "restart":
            transport = LocalTransport(home, method("scaffold"))
        try:
            said = transport.node(3).reply(replace(payload, header=header))
        except TunefreeError:
            continue
        assert set(said.arrays) <= {"keys", "shares", "masked", "opened"}
        assert not said.scalars
        if "masked" in said.arrays:
            sent.append((header["run"], header["round"]))
    assert len(set(sent)) == len(sent)
