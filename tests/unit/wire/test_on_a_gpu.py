"""Wires on a GPU give the bits that they give on the CPU."""

import pytest
import torch

from unit.wire.cases import DTYPES, LAYOUTS, WIRES, crossed, layout, memory, rows_like, same_bits
from unit.wire.cases import sender as from_

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU; the same code runs on the CPU elsewhere"
)


@pytest.mark.parametrize("wire", WIRES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits(wire, dtype):
    for lay in (*LAYOUTS.values(), layout((300, 170), (300,), (16, 8, 3, 3))):
        check(wire, dtype, lay)


def check(wire, dtype, lay):
    rows, who = rows_like(lay, 4, dtype), from_(4)
    here = wire.pack(rows, memory(wire, rows), who, lay)
    there = wire.pack(rows.cuda(), memory(wire, rows.cuda()), who, lay)
    assert there.rows.is_cuda
    assert same_bits(there.rows.cpu(), here.rows)
    assert (there.bytes, there.counted) == (here.bytes, here.counted)
    assert all(same_bits(there.own[name].cpu(), here.own[name]) for name in here.own)
    arrived, messages = crossed(wire, rows.cuda(), lay)
    assert arrived.is_cuda
    assert same_bits(arrived, there.rows)
    assert messages == crossed(wire, rows, lay)[1]
