"""Broken and hostile uploads are refused with a line in the log; the round goes on without them."""

import dataclasses
import math
import struct
import tracemalloc

import pandas
import pytest
import torch

import tunefree as tf
from flower.local import CLIENTS, LocalTransport, settings, train
from tunefree.core.errors import DataError, TunefreeError
from tunefree.core.layout import Layout
from tunefree.core.plan import Plan, Round
from tunefree.flower import check
from tunefree.flower.exchange import TooFewError
from tunefree.flower.node import Node
from tunefree.flower.payload import EncodedArray, Payload, encode_dense, wrap_bytes
from tunefree.models.problem import Problem
from tunefree.testing._problem import SIZES, make_federation, make_net

D = 57
BAD = 2  # the client that cannot be trusted
FEDEXP, TOPK = tf.methods.get("fedexp"), tf.Method(wire="ef+topk:0.3")
FEDLIN = tf.methods.get("fedlin")


def delta(change):
    def broken(payload):
        arrays = payload.arrays | {"delta": change(payload.arrays["delta"])}
        return dataclasses.replace(payload, arrays=arrays)

    return broken


def fact(**changes):
    return lambda payload: dataclasses.replace(payload, header=payload.header | changes)


def said(part, **changes):
    return lambda p: dataclasses.replace(p, **{part: getattr(p, part) | changes})


def without(part, name):
    kept = lambda p: {k: v for k, v in getattr(p, part).items() if k != name}  # noqa: E731
    return lambda p: dataclasses.replace(p, **{part: kept(p)})


def vector(values):
    return delta(lambda raw: encode_dense(torch.as_tensor(values, dtype=torch.float64)))


BROKEN = {
    "longer": (delta(lambda r: encode_dense(torch.zeros(D + 1, dtype=torch.float64))), "shape"),
    "two axes": (delta(lambda r: encode_dense(torch.zeros(D, 1, dtype=torch.float64))), "shape"),
    "float32": (delta(lambda r: encode_dense(torch.zeros(D))), "dtype float64"),
    "an object": (delta(lambda r: dataclasses.replace(r, dtype="object")), "dtype float64"),
    "cut short": (delta(lambda r: dataclasses.replace(r, data=r.data[:-1])), "bytes"),
    "too many bytes": (delta(lambda r: dataclasses.replace(r, data=r.data * 2)), "bytes"),
    "a code": (delta(lambda r: wrap_bytes(r.data)), "plain numbers"),
    "NaN": (vector([math.nan] + [0.0] * (D - 1)), "finite"),
    "Inf": (vector([math.inf] + [0.0] * (D - 1)), "finite"),
    "absurd": (vector([1e9] * D), "length"),
    "unknown channel": (
        said("arrays", other=encode_dense(torch.zeros(D).double())),
        "unknown channel",
    ),
    "no channel": (without("arrays", "delta"), "lacks the channel"),
    "unknown scalar": (said("scalars", other=1.0), "unknown scalar"),
    "no scalar": (without("scalars", "delta_sq"), "lacks the scalar"),
    "NaN for a scalar": (said("scalars", delta_sq=math.nan), "finite"),
    "a list for a scalar": (said("scalars", delta_sq=[1.0]), "one number"),
    "another length than its vector's": (said("scalars", delta_sq=1e-3), "delta_sq"),
    "another round": (fact(round=1_000), "round"),
    "another client": (fact(client=3), "client"),
    "an old answer": (fact(version="0-00000000"), "version"),
    "NaN for a loss": (said("metrics", loss=[math.nan]), "loss"),
    "no loss": (without("metrics", "loss"), "loss"),
    "two losses": (said("metrics", loss=[1.0, 1.0]), "loss"),
    "steps below zero": (said("metrics", tally=[-1.0, 0.0, 0.0, 0.0]), "below zero"),
    "absurdly many steps": (said("metrics", tally=[1e300, 0.0, 0.0, 0.0]), "at most 1e"),
    "words for steps": (said("metrics", tally=["1", 0.0, 0.0, 0.0]), "tally"),
}
CODES = {
    "cut short": (lambda d: d[:-1], "bytes"),
    "nothing": (lambda d: b"", "bytes"),
    "too long": (lambda d: d + b"\0", "bytes"),
    "huge": (lambda d: b"\0" * (1 << 20), "no longer"),
    "another ratio": (lambda d: struct.pack("<d", 0.9) + d[8:], "bytes"),
    "a ratio above 1": (lambda d: struct.pack("<d", 2.0) + d[8:], "ratio"),
    "NaN for a ratio": (lambda d: struct.pack("<d", math.nan) + d[8:], "ratio"),
    "indices out of range": (lambda d: d[:8] + b"\xff" * 8 + d[16:], "mark|indices|bits"),
    "NaN for a value": (lambda d: d[:-8] + struct.pack("<d", math.nan), "finite"),
}


class Tampering(LocalTransport):
    def __init__(self, home, method, change, kind="train"):
        super().__init__(home, method)
        self.change, self.kind = change, kind

    def after(self, i, payload, answer):
        if i != BAD or payload.header["kind"] != self.kind:
            return answer
        return self.change(answer)


def without_client(method, home, **given):
    """The same run with a client that is never there."""

    class Silent(LocalTransport):
        def after(self, i, payload, answer):
            return None if i == BAD and payload.header["kind"] != "hello" else answer

    return train(method, Silent(home, method), **given)


FEW = {"cohort": None, "rounds": 2, "steps": 1}


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    """What a client really sends in round 0, and how the server reads it."""

    def of(method):
        transport = LocalTransport(tmp_path_factory.mktemp("genuine"), method)
        train(method, transport, **FEW | {"rounds": 1})
        ((asked, answer),) = [
            (q, a) for i, q, a in transport.log if i == BAD and q.header["kind"] == "train"
        ]
        problem = Problem(make_net(), "cross_entropy", torch.float64)
        request = {"client": BAD, "round": 0, "version": asked.header["version"]}
        t = Round(Plan(CLIENTS, CLIENTS, 1, 1.0, problem.layout, 7, 4), 0)

        def read(payload):
            check.check_request(payload, **request)
            return check.read_upload(payload, method, problem.start, t, 1e4)

        return answer, read

    return {"fedexp": of(FEDEXP), "topk": of(TOPK)}


def test_what_clients_really_send_is_let_in(genuine):
    for answer, read in genuine.values():
        assert read(answer).rows["delta"].shape == (1, D)


@pytest.mark.parametrize("name", BROKEN)
def test_refused(name, genuine):
    change, why = BROKEN[name]
    answer, read = genuine["fedexp"]
    with pytest.raises(check.RefusedError, match=why):
        read(change(answer))


@pytest.mark.parametrize("name", CODES)
def test_refused_codes(name, genuine):
    change, why = CODES[name]
    answer, read = genuine["topk"]
    with pytest.raises(check.RefusedError, match=why):
        read(delta(lambda raw: wrap_bytes(change(raw.data)))(answer))


@pytest.mark.parametrize(
    ("method", "change"),
    [
        (FEDEXP, BROKEN["NaN"][0]),
        (FEDEXP, BROKEN["another round"][0]),
        (TOPK, delta(lambda raw: wrap_bytes(raw.data[:-1]))),
    ],
)
def test_the_round_goes_on_without_it(method, change, tmp_path, caplog):
    run = train(method, Tampering(tmp_path / "bad", method, change), **FEW)
    assert torch.equal(run.x, without_client(method, tmp_path / "none", **FEW).x)
    lines = [r.getMessage() for r in caplog.records if f"client {BAD} is refused" in r.getMessage()]
    assert len(lines) == 2
    assert [(row["answered"], row["refused"]) for row in run.history] == [(CLIENTS - 1, 1)] * 2


def test_what_is_refused_is_counted_apart(tmp_path):
    change, _ = BROKEN["unknown scalar"]
    run = train(FEDEXP, Tampering(tmp_path, FEDEXP, change), **FEW)
    assert run.history[0]["bytes_up.refused"] == 8 * (D + 2)
    assert run.history[0]["bytes_up"] == 8 * (D + 1) * (CLIENTS - 1) + 8 * (D + 2)


def test_probes_are_looked_at_too(tmp_path):
    nan = encode_dense(torch.full((D,), math.nan, dtype=torch.float64))
    broken = said("arrays", **{"point 0": nan})
    run = train(FEDLIN, Tampering(tmp_path, FEDLIN, broken, "probe"), **FEW)
    assert torch.isfinite(run.x).all()
    assert [row["answered"] for row in run.history] == [CLIENTS - 1] * 2  # not asked again


def test_the_rest_must_be_enough(tmp_path):
    change, _ = BROKEN["NaN"]
    with pytest.raises(TooFewError, match="5 of the 6 answers"):
        train(FEDEXP, Tampering(tmp_path, FEDEXP, change), minimum=CLIENTS, **FEW)


def test_everyone_is_needed_where_the_method_says_so(tmp_path):
    method = tf.methods.get("fedcanon2")
    change, _ = BROKEN["NaN"]
    with pytest.raises(TooFewError):
        train(method, Tampering(tmp_path, method, change), minimum=1, **FEW)


@pytest.mark.parametrize(
    "wire", ["topk:0.3", "randk:0.3", "qsgd:7", "natural", "sign", "lowrank:2"]
)
def test_decoding_takes_no_more_memory_than_the_model(wire):
    """Whatever the bytes say: garbage of any length never makes arrays of other sizes than d's."""
    layout = Layout(("w",), ((200, 100),))
    method, x = tf.Method(wire=wire), torch.zeros(layout.size)
    t = Round(Plan(3, 3, 5, 1.0, layout), 0)
    draw = torch.Generator().manual_seed(0)
    peak = 0
    for length in (0, 3, 8, 64, 4_000, 80_000, 90_000, 10_000_000):
        data = torch.randint(256, (length,), generator=draw, dtype=torch.uint8).numpy().tobytes()
        for head in (b"", struct.pack("<d", 1.0), struct.pack("<H", 65535), b"\xff" * 8):
            sent = Payload(
                {"client": 0, "round": 0, "version": "v"}, {"delta": wrap_bytes(head + data)}
            )
            tracemalloc.start()
            with pytest.raises(check.RefusedError):
                check.read_upload(sent, method, x, t, 1e4)
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peak < 40 * x.nbytes


def test_a_declared_shape_makes_nothing():
    raw = EncodedArray("float32", (1 << 50,), "dense", b"")
    sent = Payload({"client": 0, "round": 0, "version": "v"}, {"delta": raw})
    t = Round(Plan(1, 1, 1, 1.0, Layout(("w",), ((3,),))), 0)
    with pytest.raises(check.RefusedError, match="shape"):
        check.read_upload(sent, tf.Method(), torch.zeros(3), t, 1e4)


def test_settings_are_checked():
    for bad in ({"minimum": 9}, {"minimum": 0}, {"lost": "zero"}, {"largest": 0}, {"rounds": 0}):
        with pytest.raises(ValueError):
            settings(FEDEXP, **bad)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ((torch.zeros(2, 3), ["a", "b"]), "targets must be integers 0, 1, ..., got 'a'"),
        (pandas.DataFrame({"a": ["x", "y"], "label": [0, 1]}), "column 'a' has categories, of wh"),
    ],
)
def test_nodes_cannot_number_classes_or_categories_alone(data, sentence, tmp_path):
    node = Node(make_net, lambda config: data, {"partition-id": 0, "memory": str(tmp_path)})
    with pytest.raises(DataError, match=sentence):
        node.reply(Payload({"kind": "hello"}))


def test_the_servers_run_predicts_labels(tmp_path):
    fed, run = make_federation(), train(FEDEXP, LocalTransport(tmp_path, FEDEXP), rounds=1)
    found = run.predict(fed.test[0])
    assert found.shape == (len(fed.test[1]),)
    assert set(found.tolist()) <= set(range(int(fed.y.max()) + 1))
    assert run.predict_proba(fed.test[0]).sum(1) == pytest.approx(1)


class Boasting(LocalTransport):
    """Client 3 claims 2^40 samples and sends ones."""

    claims = 2**40

    def after(self, i, payload, answer):
        if i != 3 or isinstance(answer, str):
            return answer
        if payload.header["kind"] == "hello":
            return dataclasses.replace(answer, header=answer.header | {"samples": self.claims})
        if payload.header["kind"] == "train":
            delta = encode_dense(torch.ones(57, dtype=torch.float64))
            return dataclasses.replace(answer, arrays=answer.arrays | {"delta": delta})
        return answer


@pytest.mark.parametrize("batch", [4, None])
def test_a_client_that_claims_many_samples(batch, tmp_path, caplog):
    """It counts for ten times the median of six claims, and others do not pad batches to its."""
    made = tf.methods.get("fedavg", lr=1e-6, weights="samples")
    given = {"rounds": 1, "cohort": None, "batch": batch}
    run = train(made, Boasting(tmp_path / "limited", made), **given)
    share = 50 / (sum(SIZES) - SIZES[3] + 50)
    start = settings(made).model.state_dict()
    moved = run.x - torch.cat([v.flatten() for v in start.values()]).double()
    torch.testing.assert_close(moved, torch.full_like(moved, share), rtol=0, atol=1e-4)
    said = "Client 3 states 1099511627776 samples and counts for 50, the limit"
    assert said in caplog.text
    median = train(made, Boasting(tmp_path / "median", made), aggregate="median", **given)
    away = median.x - torch.cat([v.flatten() for v in start.values()]).double()
    assert away.abs().max() < 1e-4


def test_claims_are_fixed_before_round_0(tmp_path, caplog):
    """A client that states another number when it returns is refused."""
    made = tf.methods.get("fedavg", lr=0.1, weights="samples")
    given = {"cohort": None, "out": tmp_path / "run"}
    train(made, LocalTransport(tmp_path, made), rounds=2, **given)
    (tmp_path / "run" / "checkpoint.json").unlink()
    run = train(made, Boasting(tmp_path, made), rounds=2, **given)
    assert "client 3 had 12 samples when the run began, now it has 1099511627776" in caplog.text
    assert [row["answered"] for row in run.history] == [5, 5]


def test_what_a_client_says_is_logged_in_one_short_line(tmp_path, caplog):
    """A name of 100 kB, and one that would draw on the terminal."""
    name = "\x1b[31m\n" + "x" * 100_000

    class Shouting(LocalTransport):
        def after(self, i, payload, answer):
            if i != BAD or isinstance(answer, str):
                return answer
            if payload.header["kind"] == "hello":
                self.there.setdefault(999, BAD)
                return answer
            return dataclasses.replace(answer, arrays=answer.arrays | {name: wrap_bytes(b"x")})

    class Foreign(Shouting):
        def after(self, i, payload, answer):
            if i == BAD and payload.header["kind"] == "hello":
                return name
            return answer

    train(FEDEXP, Shouting(tmp_path / "a", FEDEXP), rounds=1, cohort=None)
    with pytest.raises(TunefreeError, match="did not come"):
        train(FEDEXP, Foreign(tmp_path / "b", FEDEXP), rounds=1)
    assert "unknown channel" in caplog.text
    assert "did not identify itself" in caplog.text
    for record in caplog.records:
        assert len(record.getMessage()) < 500
        assert record.getMessage().isprintable()
