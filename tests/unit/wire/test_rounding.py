"""QSGD, Natural and Sign."""

import math
import struct

import pytest
import torch

from tunefree.core import random
from tunefree.core.errors import ArgumentError, DataError
from tunefree.wire import QSGD, Natural, Sender, Sign
from unit.wire.cases import DTYPES, layout, pack, rows_like, same_bits, sender


def draws(count):
    return Sender(torch.arange(count), 0, random.key(3, "wire", torch.arange(count)))


# QSGD


def test_qsgd_on_the_grid_is_exact():
    """|v| = 5: the entries are 3/5 and 4/5 of it, whole multiples of a fifth."""
    rows = torch.tensor([[3.0, -4.0]])
    assert pack(QSGD(5), rows, layout((2,))).rows.tolist() == [[3.0, -4.0]]


def test_qsgd_rounds_to_a_neighbour_with_the_right_odds():
    """|v| = 5, s = 2: 3 lies a fifth of the way from 2.5 to 5, and 4 three fifths."""
    rows = torch.tensor([[3.0, -4.0]], dtype=torch.float64).expand(4000, 2).contiguous()
    got = pack(QSGD(2), rows, layout((2,)), draws(4000)).rows
    assert set(got[:, 0].tolist()) == {2.5, 5.0}
    assert set(got[:, 1].tolist()) == {-2.5, -5.0}
    assert float((got[:, 0] == 5).double().mean()) == pytest.approx(0.2, abs=0.03)
    assert float((got[:, 1] == -5).double().mean()) == pytest.approx(0.6, abs=0.03)


def test_qsgd_buckets_have_their_own_norms():
    lay = layout((2, 2), (1,))
    rows = torch.tensor([[3.0, 4.0, 0.3, -0.4, 7.0]], dtype=torch.float64)
    got = pack(QSGD(5, bucket=2), rows, lay).rows
    torch.testing.assert_close(got, rows)
    assert pack(QSGD(5, bucket=2), rows, lay).bytes == 2 + 3 * 8 + math.ceil(5 * 4 / 8)
    assert pack(QSGD(5, bucket=None), rows, lay).bytes == 2 + 8 + math.ceil(5 * 4 / 8)


def test_qsgd_message_by_hand():
    """A sign and three bits: 3 is +3 of 5, -4 is -4 of 5."""
    data = QSGD(5).encode(torch.tensor([3.0, -4.0]), sender(1), layout((2,)))
    assert data == struct.pack("<Hf", 5, 5.0) + bytes([3 | (8 + 4) << 4])


@pytest.mark.parametrize(
    ("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (15, 5), (16, 6), (65535, 17)]
)
def test_qsgd_cost(levels, bits):
    lay = layout((10, 10), (1,))
    packed = pack(QSGD(levels, bucket=50), rows_like(lay, 2, torch.float32), lay)
    assert packed.counted == 2 * (3 * 32 + 101 * bits)
    assert packed.bytes == 2 * (2 + 3 * 4 + math.ceil(101 * bits / 8))


def test_qsgd_the_decoder_need_not_know_the_levels():
    lay, row = layout((40,)), rows_like(layout((40,)))[0]
    for levels in (1, 7, 300):
        data = QSGD(levels).encode(row, sender(1), lay)
        back = QSGD().decode(data, row, sender(1), lay)
        assert same_bits(back, pack(QSGD(levels), row[None], lay, sender(1)).rows[0])


def test_qsgd_draws_follow_the_key():
    lay, rows = layout((50,)), rows_like(layout((50,)))
    a, b = (pack(QSGD(2), rows, lay, sender(3, t)).rows for t in (1, 2))
    assert not torch.equal(a, b)
    assert same_bits(a, pack(QSGD(2), rows, lay, sender(3, 1)).rows)


def test_entries_draw_apart():
    """Half of the equal entries are rounded up, not all or none; whatever their bucket."""
    rows = torch.full((1, 400), 1.5, dtype=torch.float64)
    for wire in (QSGD(10, bucket=16), Natural()):  # 10 / 4 = 2.5 levels
        got = pack(wire, rows, layout((200,), (200,))).rows[0]
        up = (got > 1.5).reshape(25, 16)
        assert 150 < int(up.sum()) < 250
        assert len({tuple(part.tolist()) for part in up}) > 20
        assert not torch.equal(got[:200], got[200:])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<Hf", 0, 5.0) + bytes(1), "at least one level"),
        (struct.pack("<Hf", 5, 5.0) + bytes([6]), "levels up to 5 and norms from 0"),
        (struct.pack("<Hf", 5, -5.0) + bytes([1]), "levels up to 5 and norms from 0"),
        (struct.pack("<Hf", 3, 5.0) + bytes([1 << 7]), "beyond its end"),
        (struct.pack("<Hf", 65535, 5.0) + bytes(1), "must have 11 bytes"),
        (b"\1", "at least 2 bytes"),
    ],
)
def test_qsgd_malformed(data, words):
    with pytest.raises(DataError, match=words):
        QSGD().decode(data, torch.zeros(2), sender(1), layout((2,)))


@pytest.mark.parametrize("levels", [0, -1, 2.5, "15", None, True, 65536])
def test_qsgd_levels_refused(levels):
    with pytest.raises(ArgumentError, match=r"QSGD\(levels=...\) must be"):
        QSGD(levels)


@pytest.mark.parametrize("bucket", [0, -1, 2.5, "512"])
def test_qsgd_buckets_refused(bucket):
    with pytest.raises(ArgumentError, match=r"QSGD\(bucket=...\) must be an int >= 1"):
        QSGD(bucket=bucket)


# Natural


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_natural_keeps_powers_of_two_and_zero(dtype):
    top = torch.finfo(dtype).max
    power = math.ldexp(1, math.frexp(top)[1] - 1)
    values = [0.0, 1.0, -1.0, 0.5, -(2.0**-40), 2.0**40, power, torch.finfo(dtype).tiny]
    rows = torch.tensor([values], dtype=dtype)
    assert same_bits(pack(Natural(), rows, layout((8,))).rows, rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_natural_rounds_to_a_neighbour_with_the_right_odds(dtype):
    """2.5 lies a quarter of the way from 2 to 4; -0.75 half of the way from -0.5 to -1."""
    rows = torch.tensor([[2.5, -0.75]], dtype=dtype).expand(4000, 2)
    got = pack(Natural(), rows, layout((2,)), draws(4000)).rows
    assert set(got[:, 0].tolist()) == {2.0, 4.0}
    assert set(got[:, 1].tolist()) == {-0.5, -1.0}
    assert float((got[:, 0] == 4).double().mean()) == pytest.approx(0.25, abs=0.03)
    assert float((got[:, 1] == -1).double().mean()) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("dtype", "places"), [(torch.float32, 23), (torch.float64, 52)])
def test_natural_odds_are_exact(dtype, places):
    """Up if the fraction is above the draw of as many bits: f / 2^places, not one part more."""
    who = sender(1)
    draw = int(random.bits(who.keys[0], torch.tensor(0))) % 2**places
    for fraction, got in ((draw, 1.0), (draw + 1, 2.0)):
        rows = torch.tensor([[1 + fraction / 2**places]], dtype=torch.float64).to(dtype)
        assert pack(Natural(), rows, layout((1,)), who).rows.item() == got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_natural_at_the_ends(dtype):
    """Below the least normal number: it or zero, unbiased. At the largest: never infinity."""
    tiny = torch.finfo(dtype).tiny
    rows = torch.tensor([[tiny / 4, torch.finfo(dtype).max]], dtype=dtype).expand(2000, 2)
    got = pack(Natural(), rows, layout((2,)), draws(2000)).rows
    assert set(got[:, 0].tolist()) == {0.0, tiny}
    assert float((got[:, 0] > 0).double().mean()) == pytest.approx(0.25, abs=0.05)
    assert got[:, 1].isfinite().all()


def test_natural_message_by_hand():
    """float32: eight bits of exponent, 127 for one, then the sign."""
    data = Natural().encode(torch.tensor([1.0, -2.0]), sender(1), layout((2,)))
    assert data == (127 | (128 | 1 << 8) << 9).to_bytes(3, "little")
    data = Natural().encode(torch.tensor([1.0, -2.0]).double(), sender(1), layout((2,)))
    assert data == (1023 | (1024 | 1 << 11) << 12).to_bytes(3, "little")


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 9), (torch.float64, 12)])
def test_natural_cost(dtype, bits):
    lay = layout((10, 10), (1,))
    packed = pack(Natural(), rows_like(lay, 2, dtype), lay)
    assert packed.counted == 2 * 101 * bits
    assert packed.bytes == 2 * math.ceil(101 * bits / 8)


def test_natural_malformed():
    like = torch.zeros(2)
    with pytest.raises(DataError, match="beyond its end"):
        Natural().decode(bytes([0, 0, 255]), like, sender(1), layout((2,)))
    with pytest.raises(DataError, match="must have 3 bytes, got 4"):
        Natural().decode(bytes(4), like, sender(1), layout((2,)))


# Sign


def test_sign_by_hand():
    lay = layout((2, 2), (2,))
    rows = torch.tensor([[1.0, -2.0, 3.0, 0.0, -0.5, -1.5]])
    packed = pack(Sign(), rows, lay)
    assert packed.rows.tolist() == [[1.5, -1.5, 1.5, 1.5, -1.0, -1.0]]
    assert (packed.bytes, packed.counted) == (2 * 4 + 1, 2 * 32 + 6)
    data = Sign().encode(rows[0], sender(1), lay)
    assert data == struct.pack("<2f", 1.5, 1.0) + bytes([0b110010])
    assert pack(Sign(per_layer=False), 3 * rows, lay).rows[0].unique().tolist() == [-4.0, 4.0]


@pytest.mark.parametrize("per_layer", [True, False])
def test_sign_error_is_the_stated_one(per_layer):
    """|C(v) - v|^2 = sum over parts of |v|^2 - |v|_1^2 / d."""
    lay = layout((7,), (3, 2))
    rows = rows_like(lay, 20)
    off = (pack(Sign(per_layer), rows, lay).rows - rows).square().sum(1)
    parts = torch.split(rows, [7, 6] if per_layer else [13], 1)
    told = sum(v.square().sum(1) - v.abs().sum(1) ** 2 / v.shape[1] for v in parts)
    torch.testing.assert_close(off, told)


def test_sign_malformed():
    lay, like = layout((2,)), torch.zeros(2)
    with pytest.raises(DataError, match="scales of a sign message must be at least 0"):
        Sign().decode(struct.pack("<fB", -1.0, 1), like, sender(1), lay)
    with pytest.raises(DataError, match="beyond its end"):
        Sign().decode(struct.pack("<fB", 1.0, 4), like, sender(1), lay)
    with pytest.raises(DataError, match="must have 5 bytes, got 6"):
        Sign().decode(bytes(6), like, sender(1), lay)
