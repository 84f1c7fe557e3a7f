import struct

import pytest
import torch

from tunefree.core import random
from tunefree.core.errors import ArgumentError, DataError
from tunefree.wire import RandK, Sender
from unit.wire.cases import LAYOUTS, layout, pack, rows_like, same_bits, sender


def test_keeps_the_subset_that_the_key_draws():
    lay, who = LAYOUTS["network"], sender(4)
    rows = rows_like(lay, 4)
    got = pack(RandK(0.3, unbiased=False), rows, lay, who).rows
    d = lay.size
    for j in range(4):
        keep = random.subset(who.keys[j], d, int(0.3 * d))
        assert torch.equal(got[j].nonzero().flatten(), keep)
        assert torch.equal(got[j][keep], rows[j][keep])


def test_unbiased_scales():
    lay, rows = layout((10,)), rows_like(layout((10,)))
    plain = pack(RandK(0.4, unbiased=False), rows, lay).rows
    torch.testing.assert_close(pack(RandK(0.4), rows, lay).rows, plain * 10 / 4)
    assert same_bits(pack(RandK(1.0), rows, lay).rows, rows)


def test_per_layer_keeps_of_each_and_scales_each():
    lay = layout((8,), (4,), (1,))
    got = pack(RandK(0.25, per_layer=True), torch.ones(50, 13), lay, sender(50)).rows
    for part, size, k in zip(torch.split(got, [8, 4, 1], 1), (8, 4, 1), (2, 1, 1), strict=True):
        assert ((part != 0).sum(1) == k).all()
        assert set(part[part != 0].tolist()) == {size / k}


def test_every_entry_has_its_turn():
    """1000 draws of 3 out of 12: each entry about 250 times, each pair about 45 times."""
    who = Sender(torch.arange(1000), 0, random.key(2, "wire", torch.arange(1000)))
    got = pack(RandK(0.25, unbiased=False), torch.ones(1000, 12), layout((12,)), who).rows
    assert ((got.sum(0) - 250).abs() < 5 * (1000 * 0.25 * 0.75) ** 0.5).all()
    pairs = (got.T @ got)[~torch.eye(12, dtype=torch.bool)]
    assert ((pairs - 1000 / 22).abs() < 5 * 43**0.5).all()


def test_only_values_travel():
    lay = layout((10,))
    row, who = torch.arange(1.0, 11.0), sender(1)
    keep = random.subset(who.keys[0], 10, 2)
    values = [5 * float(row[j]) for j in keep]
    assert RandK(0.2).encode(row, who, lay) == struct.pack("<d2f", 0.2, *values)
    packed = pack(RandK(0.2), row[None], lay, who)
    assert (packed.bytes, packed.counted) == (8 + 2 * 4, 64)


def test_the_decoder_need_not_know_ratio_and_scale():
    lay, row, who = LAYOUTS["network"], rows_like(LAYOUTS["network"])[0], sender(1)
    for wire in (RandK(0.1), RandK(0.7), RandK(0.7, unbiased=False)):
        arrived = RandK().decode(wire.encode(row, who, lay), row, who, lay)
        assert same_bits(arrived, pack(wire, row[None], lay, who).rows[0])


def test_another_key_draws_another_set():
    lay, rows = LAYOUTS["one layer"], rows_like(LAYOUTS["one layer"])
    a, b = (pack(RandK(0.2), rows, lay, sender(3, t)).rows for t in (1, 2))
    assert not torch.equal(a, b)
    assert len({tuple(v.nonzero().flatten().tolist()) for v in torch.cat([a, b])}) == 6


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5, float("nan")])
def test_malformed_ratio(ratio):
    with pytest.raises(DataError, match=r"in \(0, 1\]"):
        RandK().decode(struct.pack("<d2f", ratio, 1, 2), torch.zeros(10), sender(1), layout((10,)))


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.1, float("nan"), "0.1", None])
def test_ratios_refused(ratio):
    with pytest.raises(
        ArgumentError, match=r"RandK\(ratio=...\) must be a number in \(0, 1\], got"
    ):
        RandK(ratio)
