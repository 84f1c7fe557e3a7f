import struct

import pytest
import torch

import tunefree as tf
from tunefree.errors import DataError
from tunefree.wire import Dense, Ledger


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_costs_what_it_encodes_to(dtype):
    rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    out, size = Dense().pack(rows)
    assert out is rows
    assert size == 3 * 7 * rows.element_size()
    assert size == sum(len(Dense().encode(row)) for row in rows)
    for row in rows:
        back = Dense().decode(Dense().encode(row), row)
        assert torch.equal(back, row)
        assert back.dtype == dtype


def test_dense_is_little_endian():
    row = torch.tensor([1.5, -2.0], dtype=torch.float32)
    assert Dense().encode(row) == struct.pack("<2f", 1.5, -2.0)
    assert Dense().encode(row.double()) == struct.pack("<2d", 1.5, -2.0)


def test_dense_keeps_every_bit():
    row = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 5e-324], dtype=torch.float64)
    back = Dense().decode(Dense().encode(row), row)
    assert torch.equal(back.view(torch.int64), row.view(torch.int64))


def test_dense_takes_rows_that_are_not_contiguous():
    rows = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(Dense().decode(Dense().encode(rows[:, 1]), rows[:, 1]), rows[:, 1])


@pytest.mark.parametrize("length", [0, 15, 17])
def test_dense_refuses_another_length(length):
    like = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(DataError, match=f"must have 16 bytes for 2 numbers .* got {length}"):
        Dense().decode(b"x" * length, like)


def test_what_is_decoded_can_be_written():
    like = torch.zeros(2)
    back = Dense().decode(bytes(8), like)
    back += 1
    assert back.tolist() == [1.0, 1.0]


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


def test_pack_sends_vectors_through_the_wire_and_scalars_as_they_are():
    class Halves:
        def pack(self, rows):
            return rows / 2, 11

        def encode(self, row):
            return bytes(11)

        def decode(self, data, like):
            return like / 2

    ledger = Ledger()
    sent = {"delta": torch.ones(2, 3), "delta_sq": torch.ones(2)}
    out = tf.rounds.pack(tf.Method(wire=Halves()), sent, ledger)
    assert out["delta"].tolist() == [[0.5] * 3] * 2
    assert out["delta_sq"].tolist() == [1.0, 1.0]
    assert dict(ledger.up) == {"delta": 11, "delta_sq": 8}
