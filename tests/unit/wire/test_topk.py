import struct

import numpy as np
import pytest
import torch

from helpers import RecordedOps
from tunefree.core.errors import ArgumentError, DataError
from tunefree.wire import TopK
from unit.wire.cases import DTYPES, LAYOUTS, crossed, layout, pack, rows_like, same_bits, sender

NAN = float("nan")


def oracle(v, sizes, ratio):
    """Sort each part by magnitude, first come first kept, and zero the rest."""
    out, at = [], 0
    for size in sizes:
        part = v[at : at + size]
        at += size
        order = sorted(range(size), key=lambda j: (-abs(part[j]), j))
        keep = set(order[: max(1, int(ratio * size))])
        out += [part[j] if j in keep else 0.0 for j in range(size)]
    return out


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.1, 0.34, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("per_layer", [True, False])
def test_agrees_with_sorting(ratio, per_layer):
    for lay in LAYOUTS.values():
        for digits in (9, 0):  # without and with many ties
            rows = rows_like(lay, m=4).mul(3).round(decimals=digits)
            sizes = [n for n in lay.sizes if n] if per_layer else [lay.size]
            got = pack(TopK(ratio, per_layer), rows, lay).rows
            assert got.tolist() == [oracle(v, sizes, ratio) for v in rows.tolist()]


def test_of_equal_magnitudes_the_first_is_kept():
    rows = torch.tensor([[1.0, -2.0, 2.0, -2.0, 1.0]])
    assert pack(TopK(0.4), rows, layout((5,))).rows.tolist() == [[0.0, -2.0, 2.0, 0.0, 0.0]]
    assert pack(TopK(0.2), rows, layout((5,))).rows.tolist() == [[0.0, -2.0, 0.0, 0.0, 0.0]]


def test_per_layer_and_global():
    lay = layout((2, 2), (2,))
    rows = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.5]])
    assert pack(TopK(0.5), rows, lay).rows.tolist() == [[5.0, 4.0, 0.0, 0.0, 1.0, 0.0]]
    whole = pack(TopK(0.5, per_layer=False), rows, lay).rows
    assert whole.tolist() == [[5.0, 4.0, 3.0, 0.0, 0.0, 0.0]]


def test_message_with_indices_by_hand():
    """8 entries, 2 kept: 3 bits for each index, lowest bit first, then the values."""
    row = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0, 0.0, -7.5, 1.0])
    data = TopK(0.25).encode(row, sender(1), layout((8,)))
    assert data == struct.pack("<d", 0.25) + bytes([1 | 6 << 3]) + struct.pack("<2f", 9.0, -7.5)
    data = TopK(0.25).encode(row.double(), sender(1), layout((8,)))
    assert data == struct.pack("<d", 0.25) + bytes([1 | 6 << 3]) + struct.pack("<2d", 9.0, -7.5)


def test_message_with_a_bitmap_by_hand():
    """8 entries, 4 kept: 12 bits of indices are more than a bitmap's 8."""
    row = torch.tensor([1.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0])
    data = TopK(0.5).encode(row, sender(1), layout((8,)))
    assert data == struct.pack("<d", 0.5) + bytes([0b10011001]) + struct.pack("<4f", 1, 2, 3, 4)


def test_indices_where_a_bitmap_is_no_shorter():
    """4 entries, 2 kept: 4 bits either way."""
    data = TopK(0.5).encode(torch.tensor([0.0, 1.0, 2.0, 0.0]), sender(1), layout((4,)))
    assert data == struct.pack("<d", 0.5) + bytes([1 | 2 << 2]) + struct.pack("<2f", 1, 2)


def test_layers_share_one_run_of_bits():
    """5 entries: 3 bits for 1 of them; 3 entries: 2 bits; 1 entry: none. Five bits, one byte."""
    lay = layout((5,), (3,), (1,))
    row = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 3.0])
    data = TopK(0.2).encode(row, sender(1), lay)
    assert data == struct.pack("<d", 0.2) + bytes([4 | 2 << 3]) + struct.pack("<3f", 1, 2, 3)


@pytest.mark.parametrize(
    ("ratio", "shapes", "size"),
    [
        (1.0, [(8,)], 8 + 0 + 8 * 4),  # everything: no indices
        (0.05, [(1,)], 8 + 0 + 4),
        (0.05, [(1000,)], 8 + 63 + 50 * 4),  # 50 x 10 bits
        (0.1, [(1000,)], 8 + 125 + 100 * 4),  # 100 x 10 bits = the bitmap's 1000
        (0.2, [(1000,)], 8 + 125 + 200 * 4),
        (0.05, [(1025,)], 8 + 71 + 51 * 4),  # 51 x 11 bits
        (0.05, [(30, 10), (10,)], 8 + 18 + 16 * 4),  # 15 x 9 + 1 x 4 bits
    ],
)
def test_costs_by_hand(ratio, shapes, size):
    lay = layout(*shapes)
    rows = rows_like(lay, m=2, dtype=torch.float32)
    packed = pack(TopK(ratio), rows, lay)
    assert packed.bytes == 2 * size
    assert [len(data) for data in crossed(TopK(ratio), rows, lay)[1]] == [size, size]


def test_papers_count_values_alone():
    lay = layout((30, 10), (10,))
    assert pack(TopK(0.05), rows_like(lay, 3, torch.float32), lay).counted == 3 * 16 * 32
    assert pack(TopK(0.05), rows_like(lay, 3), lay).counted == 3 * 16 * 64


@pytest.mark.parametrize("per_layer", [True, False])
def test_the_decoder_need_not_know_the_ratio(per_layer):
    lay = LAYOUTS["network"]
    row = rows_like(lay)[0]
    for ratio in (0.01, 0.1, 0.3, 0.7, 1.0):
        data = TopK(ratio, per_layer).encode(row, sender(1), lay)
        other = TopK(0.5, per_layer).decode(data, row, sender(1), lay)
        assert same_bits(other, TopK(ratio, per_layer).decode(data, row, sender(1), lay))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positively_homogeneous(dtype):
    lay = LAYOUTS["network"]
    rows = rows_like(lay, 5, dtype)
    for wire in (TopK(0.2), TopK(0.2, per_layer=False)):
        kept = pack(wire, rows, lay).rows
        for a in (0.5, 1024.0, 2.0**-20):  # exact products
            assert same_bits(pack(wire, a * rows, lay).rows, a * kept)


def test_keeping_all_is_the_identity():
    lay = LAYOUTS["network"]
    rows = rows_like(lay)
    assert same_bits(pack(TopK(1.0), rows, lay).rows, rows)


def test_idempotent():
    lay = LAYOUTS["network"]
    once = pack(TopK(0.3), rows_like(lay), lay).rows
    assert same_bits(pack(TopK(0.3), once, lay).rows, once)


def message(ratio, bits, values):
    return struct.pack("<d", ratio) + bytes(bits) + struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (message(0.25, [6 | 1 << 3], [1, 2]), "ascend below 8"),  # falling
        (message(0.25, [3 | 3 << 3], [1, 2]), "ascend below 8"),  # twice the same
        (message(0.25, [1 | 6 << 3 | 1 << 6], [1, 2]), "beyond its end"),
        (message(0.5, [0b11111001], [1, 2, 3, 4]), "must mark 4 entries, got 6"),
        (message(0.5, [0], [1, 2, 3, 4]), "must mark 4 entries, got 0"),
        (message(0.0, [0], [1]), r"must be in \(0, 1\], got 0.0"),
        (message(1.5, [], [1] * 12), r"must be in \(0, 1\], got 1.5"),
        (message(-0.25, [0], [1, 2]), r"must be in \(0, 1\]"),
        (message(NAN, [0], [1, 2]), r"must be in \(0, 1\], got nan"),
        (message(1e300, [], []), r"must be in \(0, 1\]"),
        (message(0.25, [1 | 6 << 3], [1]), "must have 17 bytes, got 13"),
        (message(0.25, [1 | 6 << 3], [1, 2, 3]), "must have 17 bytes, got 21"),
        (b"\0" * 7, "at least 8 bytes, got 7"),
    ],
)
def test_malformed(data, words):
    with pytest.raises(DataError, match=words):
        TopK(0.25).decode(data, torch.zeros(8), sender(1), layout((8,)))


def test_an_index_past_the_layer():
    lay = layout((5,), (3,))
    good = TopK(0.2).encode(torch.arange(8.0), sender(1), lay)
    for bits in (5 | 2 << 3, 7 | 2 << 3, 4 | 3 << 3):
        bad = good[:8] + bytes([bits]) + good[9:]
        with pytest.raises(DataError, match="ascend below"):
            TopK(0.2).decode(bad, torch.zeros(8), sender(1), lay)


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.1, NAN, float("inf"), "0.1", None, True])
def test_ratios_refused(ratio):
    with pytest.raises(ArgumentError, match=r"TopK\(ratio=...\) must be a number in \(0, 1\], got"):
        TopK(ratio)


def test_numbers_of_other_kinds():
    lay, rows = layout((10,)), rows_like(layout((10,)))
    for ratio in (np.float64(0.3), np.float32(0.25), 1):
        wire = TopK(ratio)
        assert same_bits(crossed(wire, rows, lay)[0], pack(wire, rows, lay).rows)


def test_entries_are_selected_and_not_sorted(monkeypatch):
    """One selection for each layer, by NumPy: a sort or PyTorch's topk takes many times as long."""
    called, partition = [], np.partition
    monkeypatch.setattr(np, "partition", lambda *a, **k: called.append(a) or partition(*a, **k))
    lay = layout((784, 120), (120,), (120, 48), (48,))
    rows = rows_like(lay, 10, torch.float32)
    with RecordedOps() as recorded:
        pack(TopK(0.05), rows, lay)
    assert len(called) == 4
    assert not {"topk", "sort", "argsort", "msort"} & set(recorded.names)
