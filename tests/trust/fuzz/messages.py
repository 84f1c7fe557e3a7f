"""What servers and nodes of a federation get: payloads, terms, messages of secure aggregation."""

import json
from random import Random

import torch

import tunefree as tf
from trust.fuzz.mutate import edited, odd_json
from trust.fuzz.target import Target, chosen, kept_head, target
from tunefree.core.errors import DataError
from tunefree.core.layout import Layout
from tunefree.core.plan import Plan, Round
from tunefree.flower import check
from tunefree.flower.payload import EncodedArray, Payload, encode_dense, unpack_channels
from tunefree.flower.terms import RunTerms, digest_method
from tunefree.privacy import messages
from tunefree.training.config import RunConfig

LAYOUT = Layout(("w", "b"), ((3, 2), (2,)))
X = torch.zeros(LAYOUT.size, dtype=torch.float64)
ROUND = Round(Plan(3, 2, 5, 2.0, LAYOUT, 0), 0)
ASKED = {"client": 1, "round": 0, "version": "0-5f0c9a3e"}
METHODS = (tf.methods.get("fedexp"), tf.Method(wire="topk:0.3"), tf.methods.get("scaffold"))


def said(payload: Payload) -> bytes:
    arrays = {n: [a.dtype, list(a.shape), a.form, a.data.hex()] for n, a in payload.arrays.items()}
    parts = (payload.header, arrays, payload.scalars, payload.metrics)
    return json.dumps(parts).encode()


def heard(data: bytes) -> Payload:
    """Return the payload of a text, or refuse what Flower's records cannot hold."""
    try:
        header, arrays, scalars, measured = json.loads(data)
        raw = {
            str(n): EncodedArray(str(d), tuple(map(int, shape)), str(form), bytes.fromhex(code))
            for n, (d, shape, form, code) in arrays.items()
        }
        return Payload(*(dict(part) for part in (header,)), raw, dict(scalars), dict(measured))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise DataError("Flower would not carry this.") from None


def answer(method: tf.Method) -> Payload:
    names = method.channels(False)
    arrays = {}
    for name in names:
        if name in method.vectors:
            wire = check.wire_for_round(method, name, ROUND)
            row = torch.ones_like(X)
            ids = torch.tensor([ASKED["client"]])
            if wire.lossless:
                arrays[name] = encode_dense(row)
            else:
                code = wire.encode(row, check.make_sender(name, ids, ROUND), LAYOUT)
                arrays[name] = EncodedArray("uint8", (len(code),), "wire", code)
    scalars = {name: float(X.numel()) for name in names if name not in method.vectors}
    tally = [1.0] * len(check.WORK_COUNTS)
    measured = {"loss": [1.0], "lr": [0.1], "tally": tally, "passes": 1.0, "counted": 8.0}
    return Payload(dict(ASKED), arrays, scalars, measured)


@target("message upload")
def _upload() -> Target:
    def read(data: bytes) -> None:
        method = METHODS[(data[0] if data else 0) % len(METHODS)]
        payload = heard(data[1:])
        check.check_request(payload, **ASKED)
        found = check.read_upload(payload, method, X, ROUND, 1e4)
        assert all(bool(torch.isfinite(v).all()) for v in found.rows.values())

    return Target(read, chosen([said(answer(m)) for m in METHODS]), kept_head(odd_json))


@target("message probe")
def _probe() -> Target:
    header, measured = dict(ASKED), {"passes": 1.0}
    grad = Payload(header, {"point 0": encode_dense(X)}, {}, measured)
    loss = Payload(header, {}, {"point 0": 1.0}, measured)

    def read(data: bytes) -> None:
        what = ("grad", "loss")[(data[0] if data else 0) % 2]
        payload = heard(data[1:])
        check.check_request(payload, **ASKED)
        check.read_probe(payload, what, [X], 1e4)

    return Target(read, chosen([said(grad), said(loss)]), kept_head(odd_json))


@target("message broadcast")
def _broadcast() -> Target:
    def read(data: bytes) -> None:
        payload = heard(data)
        unpack_channels(payload.arrays, payload.scalars, X)

    return Target(read, [said(Payload({}, {"x": encode_dense(X)}, {"mu": 0.5}, {}))], odd_json)


@target("message terms")
def _terms() -> Target:
    method = tf.methods.get("fedavg", lr=0.1)
    words = {"name": "fedavg", "set": {"lr": 0.1}}
    config = RunConfig(rounds=5, cohort=2, steps=2, batch=4, loss="mse")
    made = RunTerms(
        clients=3,
        steps=2.0,
        held=False,
        width=4,
        options=config.record(node=True),
        named=words,
        method=digest_method(method),
        model="0123456789abcdef",
        start="0" * 64,
        deep=False,
    )

    def read(data: bytes) -> None:
        found = RunTerms.read(data.decode("utf-8", "replace"))
        found.choose(None)
        found.plan(LAYOUT)
        found.config.batch_plan  # noqa: B018

    return Target(read, [made.text().encode()], odd_json)


@target("message secure aggregation")
def _secagg() -> Target:
    terms = messages.ProtocolTerms(bytes(16), 2, 4)
    row = [(i, bytes([i]) * messages.KEYS) for i in range(3)]
    seeds = [messages.encode_message("roster", terms, messages.SERVER, messages.encode_rows(row))]

    def read(data: bytes) -> None:
        body = messages.decode_message("roster", terms, messages.SERVER, data)
        found = messages.decode_rows("roster", body, messages.KEYS, 2**20)
        assert all(len(part) == messages.KEYS for part in found.values())

    def change(data: bytes, random: Random) -> bytes:
        return (
            data[:25] + edited(data[25:], random) if random.random() < 0.8 else edited(data, random)
        )

    return Target(read, seeds, change)
