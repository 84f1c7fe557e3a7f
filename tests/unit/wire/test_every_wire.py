"""What holds for all wires: the simulation's rows and bytes are the real ones."""

from dataclasses import fields, is_dataclass

import pytest
import torch

from tunefree.core import random
from tunefree.core.errors import DataError
from tunefree.wire import (
    QSGD,
    Choose,
    Dense,
    ErrorFeedback,
    LowRank,
    Natural,
    RandK,
    Sender,
    Sign,
    TopK,
)
from unit.wire.cases import (
    DTYPES,
    LAYOUTS,
    WIRES,
    crossed,
    layout,
    memory,
    pack,
    rows_like,
    same_bits,
    sender,
)

HARD = {
    "normal": lambda v: v,
    "zeros": torch.zeros_like,
    "equal": lambda v: torch.full_like(v, -0.5),
    "one entry": lambda v: torch.where(torch.arange(v.shape[1]) == v.shape[1] // 2, v, 0),
    "signed zeros": lambda v: torch.where(v < 0, -0.0, 0.0).to(v.dtype),
    "huge": lambda v: v * 1e30,
    "tiny": lambda v: v * 1e-38,  # partly below the least normal float32
}


@pytest.fixture(params=WIRES, ids=str)
def wire(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_bytes_and_rows_are_the_real_ones(wire, name, dtype):
    lay = LAYOUTS[name]
    for change in HARD.values():
        rows = change(rows_like(lay, dtype=dtype))
        packed = pack(wire, rows, lay)
        arrived, messages = crossed(wire, rows, lay)
        assert same_bits(packed.rows, arrived)
        assert packed.bytes == sum(len(data) for data in messages)
        assert packed.rows.isfinite().all()
        assert 0 < packed.counted <= 8 * packed.bytes


def test_all_rounds_of_all_clients(wire):
    lay = LAYOUTS["network"]
    for t in range(-1, 4):
        rows, who = rows_like(lay, m=5, seed=t + 1), sender(5, t)
        packed = pack(wire, rows, lay, who)
        arrived, messages = crossed(wire, rows, lay, who)
        assert same_bits(packed.rows, arrived)
        assert packed.bytes == sum(map(len, messages))


def test_rows_do_not_see_each_other(wire):
    lay, rows, who = LAYOUTS["network"], rows_like(LAYOUTS["network"], m=6), sender(6)
    own = {n: torch.randn_like(v) for n, v in memory(wire, rows).items()}
    together = wire.pack(rows, own, who, lay)
    order = [4, 0, 5, 2, 1, 3]
    mixed = wire.pack(rows[order], {n: v[order] for n, v in own.items()}, who.rows(order), lay)
    assert same_bits(mixed.rows, together.rows[order])
    for j in range(6):
        one = wire.pack(rows[j : j + 1], {n: v[j : j + 1] for n, v in own.items()}, who.row(j), lay)
        assert same_bits(one.rows[0], together.rows[j])
        assert all(torch.equal(one.own[n][0], together.own[n][j]) for n in own)


def test_nothing_given_is_changed(wire):
    lay, rows = LAYOUTS["network"], rows_like(LAYOUTS["network"])
    own, who = memory(wire, rows), sender()
    before = [v.clone() for v in (rows, who.ids, who.keys, *own.values())]
    wire.pack(rows, own, who, lay)
    wire.decode(wire.encode(rows[0], who.row(0), lay), rows[0], who.row(0), lay)
    for old, now in zip(before, (rows, who.ids, who.keys, *own.values()), strict=True):
        assert torch.equal(old, now)


def test_memory_keeps_its_form(wire):
    lay, rows = LAYOUTS["network"], rows_like(LAYOUTS["network"], dtype=torch.float32)
    own = memory(wire, rows)
    after = pack(wire, rows, lay, own=own).own
    assert after.keys() == own.keys()
    for name, value in after.items():
        assert (value.shape, value.dtype) == (own[name].shape, own[name].dtype)


def test_strided_rows(wire):
    lay = LAYOUTS["network"]
    rows = rows_like(lay)
    strided = torch.stack([rows, rows], -1)[..., 0]
    assert not strided.is_contiguous()
    assert same_bits(pack(wire, strided, lay).rows, pack(wire, rows, lay).rows)
    assert crossed(wire, strided, lay)[1] == crossed(wire, rows, lay)[1]


def test_not_a_number_is_not_lost(wire):
    """A client that diverged must be seen to have diverged."""
    lay = LAYOUTS["network"]
    for bad in (float("nan"), float("inf"), float("-inf")):
        rows = torch.full((1, lay.size), bad, dtype=torch.float64)
        packed = pack(wire, rows, lay)
        assert not packed.rows.isfinite().all()
        arrived, messages = crossed(wire, rows, lay)
        assert torch.equal(packed.rows.isfinite(), arrived.isfinite())
        assert packed.bytes == len(messages[0])


def test_other_lengths_are_refused(wire):
    lay, rows = LAYOUTS["network"], rows_like(LAYOUTS["network"])
    data = crossed(wire, rows, lay)[1][0]
    for bad in (b"", data[:1], data[:-1], data + b"\0", data + data, bytes(10**6)):
        with pytest.raises(DataError, match=r"must have|message") as error:
            wire.decode(bad, rows[0], sender().row(0), lay)
        assert str(error.value).endswith(".")


def test_promises_are_numbers(wire):
    for lay in LAYOUTS.values():
        q = wire.contraction(lay)
        assert q is None or 0 <= q < 1
        assert isinstance(wire.unbiased, bool)
        assert not wire.lossless or (q == 0 and wire.unbiased)


def test_lossless_is_lossless(wire):
    rows = rows_like(LAYOUTS["network"])
    if wire.lossless:
        assert same_bits(pack(wire, rows, LAYOUTS["network"]).rows, rows)
    assert wire.lossless == isinstance(wire, Dense)


def test_wires_are_values(wire):
    assert is_dataclass(wire)
    again = type(wire)(**{f.name: getattr(wire, f.name) for f in fields(wire)})
    assert again == wire
    assert hash(again) == hash(wire)


def expected(wire, rows, lay, draws=4000):
    """Every draw of one row: what arrives (draws, d)."""
    keys = random.key(1, "wire", torch.arange(draws))
    who = Sender(torch.arange(draws), 0, keys)
    many = rows.expand(draws, -1).contiguous()
    return wire.pack(many, {}, who, lay).rows


SMALL = layout((6, 4), (5,), (1,))
UNBIASED = [
    Dense(),
    RandK(0.3),
    RandK(0.5, per_layer=True),
    QSGD(1),
    QSGD(3, bucket=8),
    QSGD(15),
    Natural(),
]


@pytest.mark.parametrize("wire", UNBIASED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unbiased(wire, dtype):
    assert wire.unbiased
    row = rows_like(SMALL, 1, dtype)
    got = expected(wire, row, SMALL)
    error = (got.mean(0) - row[0]).abs()
    assert (error <= 5 * got.std(0) / len(got) ** 0.5 + 1e-3).all()


@pytest.mark.parametrize(
    "wire", [TopK(0.3), RandK(0.3, unbiased=False), Sign(), LowRank(), Choose(lambda i, t: TopK())]
)
def test_biased(wire):
    assert not wire.unbiased
    row = rows_like(SMALL, 1)
    got = expected(wire, row, SMALL, 1000)
    assert ((got.mean(0) - row[0]).abs() > 6 * got.std(0) / 1000**0.5 + 1e-6).any()


CONTRACTIONS = [
    (Dense(), 0),
    (TopK(0.25), 1 - 1 / 5),  # 6 of 24, 1 of 5, 1 of 1
    (TopK(0.25, per_layer=False), 1 - 7 / 30),
    (TopK(1.0), 0),
    (RandK(0.25, unbiased=False), 1 - 7 / 30),
    (RandK(0.25, unbiased=False, per_layer=True), 1 - 1 / 5),
    (RandK(0.25), None),  # 30/7 - 1 is above 1
    (RandK(0.6), 30 / 18 - 1),
    (RandK(0.6, per_layer=True), 24 / 14 - 1),
    (RandK(0.8, per_layer=True), 24 / 19 - 1),
    (QSGD(15), 30 / 900),
    (QSGD(3, bucket=8), 8 / 36),
    (QSGD(1), None),
    (QSGD(2, bucket=3), 3 / 16),
    (Natural(), 1 / 8),
    (Sign(), 1 - 1 / 24),
    (Sign(per_layer=False), 1 - 1 / 30),
    (LowRank(), 1 - 1 / 4),
    (LowRank(2), 1 - 2 / 4),
    (LowRank(3), 0),  # 3 (6 + 4) numbers are more than 24
    (ErrorFeedback(TopK(0.25)), None),
    (Choose(lambda i, t: TopK(0.25)), None),
]


@pytest.mark.parametrize(("wire", "q"), CONTRACTIONS, ids=str)
def test_contraction_by_hand(wire, q):
    assert wire.contraction(SMALL) == pytest.approx(q, abs=1e-15)


def vectors():
    """Vectors that are hard for one wire or another."""
    yield from rows_like(SMALL, 4)
    yield rows_like(SMALL, 1)[0].exp()
    yield torch.ones(30, dtype=torch.float64)
    yield torch.eye(30, dtype=torch.float64)[26]
    yield torch.eye(30, dtype=torch.float64)[3]
    yield 4 / 3 * torch.ones(30, dtype=torch.float64)  # the worst for powers of two
    yield torch.cat([torch.eye(6, 4, dtype=torch.float64).reshape(-1), torch.zeros(6)])


@pytest.mark.parametrize("wire", [wire for wire, q in CONTRACTIONS if q is not None], ids=str)
def test_contracts(wire):
    q = wire.contraction(SMALL)
    for v in vectors():
        off = (expected(wire, v[None], SMALL, 2000) - v).square().sum(1) / v.square().sum()
        assert off.mean() <= q + 4 * off.std() / 2000**0.5 + 1e-12


@pytest.mark.parametrize(
    ("wire", "worst"),
    [
        (TopK(0.25), torch.cat([torch.zeros(24), torch.ones(5), torch.zeros(1)])),
        (TopK(0.25, per_layer=False), torch.ones(30)),
        (RandK(0.25, unbiased=False), torch.ones(30)),
        (RandK(0.6), torch.ones(30)),
        (Natural(), 4 / 3 * torch.ones(30)),
        (Sign(), torch.eye(30)[3]),
        (Sign(per_layer=False), torch.eye(30)[3]),
        (LowRank(), torch.cat([torch.eye(6, 4).reshape(-1), torch.zeros(6)])),
        (LowRank(2), torch.cat([torch.eye(6, 4).reshape(-1), torch.zeros(6)])),
    ],
    ids=str,
)
def test_no_smaller_constant_would_do(wire, worst):
    v = worst.double()
    off = (expected(wire, v[None], SMALL) - v).square().sum(1) / v.square().sum()
    assert float(off.mean()) == pytest.approx(wire.contraction(SMALL), rel=0.05)
