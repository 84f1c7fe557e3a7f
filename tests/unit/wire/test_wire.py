import struct

import pytest
import torch

from tunefree.core import random
from tunefree.core.errors import DataError
from tunefree.wire import Dense, Ledger, Sender, Wire
from unit.wire.cases import layout, pack, sender


def encode(row):
    return Dense().encode(row, sender(1), layout(tuple(row.shape)))


def decode(data, like):
    return Dense().decode(data, like, sender(1), layout(tuple(like.shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_costs_what_it_encodes_to(dtype):
    rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed = pack(Dense(), rows, layout((7,)))
    assert packed.rows is rows
    assert packed.own == {}
    assert packed.bytes == 3 * 7 * rows.element_size()
    assert packed.bytes == sum(len(encode(row)) for row in rows)
    assert packed.counted == 8 * packed.bytes
    for row in rows:
        back = decode(encode(row), row)
        assert torch.equal(back, row)
        assert back.dtype == dtype


def test_dense_is_little_endian():
    row = torch.tensor([1.5, -2.0], dtype=torch.float32)
    assert encode(row) == struct.pack("<2f", 1.5, -2.0)
    assert encode(row.double()) == struct.pack("<2d", 1.5, -2.0)


def test_dense_keeps_every_bit():
    row = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 5e-324], dtype=torch.float64)
    back = decode(encode(row), row)
    assert torch.equal(back.view(torch.int64), row.view(torch.int64))


def test_dense_takes_rows_that_are_not_contiguous():
    rows = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(decode(encode(rows[:, 1]), rows[:, 1]), rows[:, 1])


@pytest.mark.parametrize("length", [0, 15, 17])
def test_dense_refuses_another_length(length):
    like = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(DataError, match=f"must have 16 bytes for 2 numbers .* got {length}"):
        decode(b"x" * length, like)


def test_what_is_decoded_can_be_written():
    back = decode(bytes(8), torch.zeros(2))
    back += 1
    assert back.tolist() == [1.0, 1.0]


def test_one_of_several_senders():
    ids = torch.tensor([4, 9, 2])
    who = Sender(ids, 5, random.key(0, "wire", 5, ids))
    one = who.row(1)
    assert (one.ids.tolist(), one.round) == ([9], 5)
    assert int(one.keys) == int(random.key(0, "wire", 5, 9))
    assert who.rows([2, 0]).ids.tolist() == [2, 4]
    assert torch.equal(who.rows([2, 0]).keys, who.keys[[2, 0]])


def test_a_wire_without_its_hooks_cannot_be_made():
    class Half(Wire):
        def pack(self, rows, own, sender, layout):
            return rows

    with pytest.raises(TypeError, match="decode"):
        Half()


def test_ledger():
    ledger = Ledger()
    ledger.send_down({"x": torch.zeros(5), "lr": torch.zeros(())}, receivers=3)
    ledger.send_down({"x": torch.zeros(5, dtype=torch.float64)}, receivers=1)
    ledger.send_up("delta", 60)
    ledger.send_up("delta", 20)
    ledger.send_up("delta_sq", 4)
    assert dict(ledger.down) == {"x": 3 * 20 + 40, "lr": 3 * 4}
    assert dict(ledger.up) == {"delta": 80, "delta_sq": 4}
    assert (ledger.bytes_down, ledger.bytes_up) == (112, 84)


def test_ledgers_are_separate():
    Ledger().send_up("delta", 5)
    assert Ledger().bytes_up == 0
