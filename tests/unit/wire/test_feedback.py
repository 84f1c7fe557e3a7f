from dataclasses import dataclass

import pytest
import torch

from tunefree.core.errors import ArgumentError
from tunefree.wire import (
    QSGD,
    Choose,
    Dense,
    ErrorFeedback,
    LowRank,
    Natural,
    Packed,
    RandK,
    Sign,
    TopK,
    Wire,
)
from unit.wire.cases import LAYOUTS, by_turns, layout, memory, rows_like, same_bits, sender

INNER = [
    Dense(),
    TopK(0.1),
    TopK(0.1, per_layer=False),
    RandK(0.2, unbiased=False),
    QSGD(8),
    Natural(),
    Sign(),
    LowRank(),
    Choose(by_turns),
]


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_what_arrived_and_what_is_kept_are_what_was_meant(inner):
    """sum_t q_i + e_i = sum_t v_i, whoever is absent; the absent keep their error."""
    lay, wire, n = LAYOUTS["network"], ErrorFeedback(inner), 5
    everyone = sender(n)
    error = memory(wire, rows_like(lay, n))["error"]
    meant, arrived = torch.zeros_like(error), torch.zeros_like(error)
    present = [[0, 1, 2, 3, 4], [3, 1], [0], [4, 2, 3], [1, 0, 4], [2], [0, 1, 2, 3, 4]]
    for t, cohort in enumerate(present):
        rows = rows_like(lay, len(cohort), seed=t)
        who = sender(n, t).rows(cohort)
        assert torch.equal(who.ids, everyone.ids[cohort])
        packed = wire.pack(rows, {"error": error[cohort]}, who, lay)
        meant[cohort] += rows
        arrived[cohort] += packed.rows
        before = error.clone()
        error[cohort] = packed.own["error"]
        absent = [j for j in range(n) if j not in cohort]
        assert torch.equal(error[absent], before[absent])
        torch.testing.assert_close(arrived + error, meant, rtol=0, atol=1e-12)


def test_by_hand():
    """Keep 1 of 3: what was dropped comes first as soon as it is largest."""
    lay, wire = layout((3,)), ErrorFeedback(TopK(0.4))
    own = {"error": torch.zeros(1, 3)}
    rows = torch.tensor([[4.0, 3.0, 1.0]])
    for arrived, error in (
        ([4.0, 0.0, 0.0], [0.0, 3.0, 1.0]),
        ([0.0, 6.0, 0.0], [4.0, 0.0, 2.0]),
        ([8.0, 0.0, 0.0], [0.0, 3.0, 3.0]),
        ([0.0, 6.0, 0.0], [4.0, 0.0, 4.0]),
    ):
        packed = wire.pack(rows, own, sender(1), lay)
        assert packed.rows.tolist() == [arrived]
        assert packed.own["error"].tolist() == [error]
        own = packed.own


def test_sends_what_the_inner_wire_sends():
    lay = LAYOUTS["network"]
    rows, error = rows_like(lay, seed=1), rows_like(lay, seed=2)
    wire, own = ErrorFeedback(TopK(0.2)), {"error": error}
    packed = wire.pack(rows, own, sender(), lay)
    plain = TopK(0.2).pack(rows + error, {}, sender(), lay)
    assert same_bits(packed.rows, plain.rows)
    assert (packed.bytes, packed.counted) == (plain.bytes, plain.counted)
    assert torch.equal(wire.corrected(rows, own), rows + error)
    for j in range(3):
        data = wire.encode(wire.corrected(rows, own)[j], sender().row(j), lay)
        assert same_bits(wire.decode(data, rows[j], sender().row(j), lay), packed.rows[j])


def test_lossless_leaves_no_error():
    lay = LAYOUTS["network"]
    own = {"error": torch.zeros(3, lay.size, dtype=torch.float64)}
    packed = ErrorFeedback(Dense()).pack(rows_like(lay), own, sender(), lay)
    assert torch.equal(packed.own["error"], own["error"])


@dataclass(frozen=True)
class Delayed(Wire):
    """Sends the last round's vector."""

    def init(self, x):
        return {"last": torch.zeros_like(x)}

    def corrected(self, rows, own):
        return own["last"]

    def pack(self, rows, own, sender, layout):
        return Packed(own["last"], 0, 0, {"last": rows})

    def encode(self, row, sender, layout):
        return Dense().encode(row, sender, layout)

    def decode(self, data, like, sender, layout):
        return Dense().decode(data, like, sender, layout)


def test_memory_of_the_inner_wire():
    lay, wire = layout((2,)), ErrorFeedback(Delayed())
    own = memory(wire, torch.zeros(1, 2))
    assert own.keys() == {"error", "inner.last"}
    total = torch.zeros(1, 2)
    for v in ([1.0, 0.0], [0.0, 2.0], [3.0, 0.0]):
        rows = torch.tensor([v])
        corrected = wire.corrected(rows, own)
        packed = wire.pack(rows, own, sender(1), lay)
        assert torch.equal(packed.rows, corrected)
        own, total = packed.own, total + packed.rows
    assert torch.equal(total + own["error"], torch.tensor([[4.0, 2.0]]))


@pytest.mark.parametrize("inner", [None, "topk", TopK, 0.1])
def test_inner_must_be_a_wire(inner):
    with pytest.raises(ArgumentError, match=r"ErrorFeedback\(inner=...\) must be a Wire, got"):
        ErrorFeedback(inner)


def test_once_is_enough():
    with pytest.raises(ArgumentError, match=r"Cannot use ErrorFeedback around ErrorFeedback\."):
        ErrorFeedback(ErrorFeedback(TopK()))
