"""What servers and nodes of a federation get: parcels, terms, letters of a secure sum."""

import json
from random import Random

import torch

import tunefree as tf
from trust.fuzz.mutate import edited, odd_json
from trust.fuzz.target import Target, chosen, kept_head, target
from tunefree.core.layout import Layout
from tunefree.core.plan import Plan, Round
from tunefree.flower import check
from tunefree.flower.parcel import Payload, Raw, dense, unpacked
from tunefree.flower.terms import ProtocolTerms, digest_method
from tunefree.privacy import letters

LAYOUT = Layout(("w", "b"), ((3, 2), (2,)))
X = torch.zeros(LAYOUT.size, dtype=torch.float64)
ROUND = Round(Plan(3, 2, 5, 2.0, LAYOUT, 0), 0)
ASKED = check.RequestContext(1, 0, "0-5f0c9a3e")
METHODS = (tf.methods.get("fedexp"), tf.Method(wire="topk:0.3"), tf.methods.get("scaffold"))


def said(parcel: Payload) -> bytes:
    arrays = {n: [a.dtype, list(a.shape), a.form, a.data.hex()] for n, a in parcel.arrays.items()}
    parts = (parcel.facts, arrays, parcel.scalars, parcel.measured)
    return json.dumps(parts).encode()


def heard(data: bytes) -> Payload:
    """Return the parcel of a text; what Flower's records cannot hold becomes something they can."""
    try:
        facts, arrays, scalars, measured = json.loads(data)
        raw = {
            str(n): Raw(str(d), tuple(map(int, shape)), str(form), bytes.fromhex(code))
            for n, (d, shape, form, code) in arrays.items()
        }
        return Payload(*(dict(part) for part in (facts,)), raw, dict(scalars), dict(measured))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise tf.errors.DataError("Flower would not carry this.") from None


def answer(method: tf.Method) -> Payload:
    names = method.channels(False)
    arrays = {}
    for name in names:
        if name in method.vectors:
            wire = check.wire_at(method, name, ROUND)
            row = torch.ones_like(X)
            ids = torch.tensor([ASKED.client])
            if wire.lossless:
                arrays[name] = dense(row)
            else:
                code = wire.encode(row, check.sender(name, ids, ROUND), LAYOUT)
                arrays[name] = Raw("uint8", (len(code),), "wire", code)
    scalars = {name: float(X.numel()) for name in names if name not in method.vectors}
    tally = [1.0] * len(check.TALLY)
    measured = {"loss": [1.0], "lr": [0.1], "tally": tally, "passes": 1.0, "counted": 8.0}
    return Payload(dict(vars(ASKED)), arrays, scalars, measured)


@target("message upload")
def _upload() -> Target:
    def read(data: bytes) -> None:
        method = METHODS[(data[0] if data else 0) % len(METHODS)]
        found = check.upload(heard(data[1:]), ASKED, method, X, ROUND, 1e4)
        assert all(bool(torch.isfinite(v).all()) for v in found.rows.values())

    return Target(read, chosen([said(answer(m)) for m in METHODS]), kept_head(odd_json))


@target("message probe")
def _probe() -> Target:
    facts, measured = dict(vars(ASKED)), {"passes": 1.0}
    grad = Payload(facts, {"point 0": dense(X)}, {}, measured)
    loss = Payload(facts, {}, {"point 0": 1.0}, measured)

    def read(data: bytes) -> None:
        what = ("grad", "loss")[(data[0] if data else 0) % 2]
        check.probed(heard(data[1:]), ASKED, what, [X], 1e4)

    return Target(read, chosen([said(grad), said(loss)]), kept_head(odd_json))


@target("message broadcast")
def _broadcast() -> Target:
    def read(data: bytes) -> None:
        parcel = heard(data)
        unpacked(parcel.arrays, parcel.scalars, X)

    return Target(read, [said(Payload({}, {"x": dense(X)}, {"mu": 0.5}, {}))], odd_json)


@target("message terms")
def _terms() -> Target:
    method = tf.methods.get("fedavg", lr=0.1)
    words = {"name": "fedavg", "set": {"lr": 0.1}}
    made = ProtocolTerms(
        3, 2, 5, 2.0, 0, 4, False, 4, 2, None, "mse", "float32", None, words,
        digest_method(method), "0123456789abcdef",
    )  # fmt: skip

    def read(data: bytes) -> None:
        found = ProtocolTerms.read(data.decode("utf-8", "replace"))
        found.choose(None)
        found.plan(LAYOUT)
        found.cut  # noqa: B018

    return Target(read, [made.text().encode()], odd_json)


@target("message letters")
def _letters() -> Target:
    terms = letters.ProtocolTerms(bytes(16), 2, 4)
    row = [(i, bytes([i]) * letters.KEYS) for i in range(3)]
    seeds = [letters.write("roster", terms, letters.SERVER, letters.rows(row))]

    def read(data: bytes) -> None:
        body = letters.read("roster", terms, letters.SERVER, data)
        found = letters.read_rows("roster", body, letters.KEYS, 2**20)
        assert all(len(part) == letters.KEYS for part in found.values())

    def change(data: bytes, random: Random) -> bytes:
        return (
            data[:25] + edited(data[25:], random) if random.random() < 0.8 else edited(data, random)
        )

    return Target(read, seeds, change)
