import pytest
import torch

from tunefree.core.errors import ArgumentError
from tunefree.wire import QSGD, Choose, Dense, ErrorFeedback, RandK, Sign, TopK
from unit.wire.cases import LAYOUTS, rows_like, same_bits, sender


def slower(client, t):
    """Each client its own ratio, halved every round; one client signs, one sends all."""
    if client == 2:
        return Dense()
    if client == 7 and t > 0:
        return Sign()
    return TopK(min(1.0, 0.1 + client / 40) / 2**t)


@pytest.mark.parametrize("t", [0, 1, 2])
def test_each_row_by_its_own_wire(t):
    lay = LAYOUTS["network"]
    rows, who = rows_like(lay, 6), sender(6, t)
    packed = Choose(slower).pack(rows, {}, who, lay)
    total = counted = 0
    for j, client in enumerate(who.ids.tolist()):
        alone = slower(client, t).pack(rows[j : j + 1], {}, who.row(j), lay)
        assert same_bits(packed.rows[j], alone.rows[0])
        total, counted = total + alone.bytes, counted + alone.counted
    assert (packed.bytes, packed.counted, packed.own) == (total, counted, {})


def test_ratios_change_by_round():
    lay, rows = LAYOUTS["one layer"], rows_like(LAYOUTS["one layer"])
    kept = [
        (Choose(slower).pack(rows[1:2], {}, sender(3, t).row(2), lay).rows != 0).sum()
        for t in (0, 1, 2)
    ]
    assert kept == [14, 7, 3]  # client 12: 37 entries at 0.4, 0.2, 0.1


def test_equal_wires_are_packed_together():
    calls = []

    class Counting(TopK):
        def pack(self, rows, own, sender, layout):
            calls.append(len(rows))
            return super().pack(rows, own, sender, layout)

    lay = LAYOUTS["network"]
    rule = Choose(lambda client, t: Counting(0.1 if client < 12 else 0.5))
    rule.pack(rows_like(lay, 6), {}, sender(6), lay)
    assert sorted(calls) == [2, 4]


def test_both_ends_ask_for_the_client_and_the_round():
    asked = []

    def rule(client, t):
        asked.append((client, t))
        return RandK(0.5)

    lay, who = LAYOUTS["one layer"], sender(3, 8).row(1)
    row = rows_like(lay)[0]
    wire = Choose(rule)
    wire.decode(wire.encode(row, who, lay), row, who, lay)
    assert asked == [(7, 8), (7, 8)]
    assert all(type(client) is int for client, _ in asked)


def test_with_error_feedback_the_error_outlives_the_choice():
    lay, wire = LAYOUTS["one layer"], ErrorFeedback(Choose(slower))
    total, own = torch.zeros(2, 37).double(), {"error": torch.zeros(2, 37).double()}
    meant = torch.zeros_like(total)
    for t in range(4):
        rows = rows_like(lay, 2, seed=t)
        packed = wire.pack(rows, own, sender(2, t), lay)
        own, total, meant = packed.own, total + packed.rows, meant + rows
    torch.testing.assert_close(total + own["error"], meant)


def test_memory_is_refused():
    wire = Choose(lambda client, t: ErrorFeedback(TopK()))
    lay, rows = LAYOUTS["one layer"], rows_like(LAYOUTS["one layer"])
    words = r"Cannot use ErrorFeedback in Choose\. .* use ErrorFeedback\(Choose\(...\)\)\."
    with pytest.raises(ArgumentError, match=words):
        wire.pack(rows, {}, sender(), lay)
    with pytest.raises(ArgumentError, match=words):
        wire.encode(rows[0], sender(1), lay)
    with pytest.raises(ArgumentError, match=words):
        wire.decode(b"", rows[0], sender(1), lay)


@pytest.mark.parametrize("bad", [None, "topk", TopK])
def test_the_rule_must_return_wires(bad):
    rows = rows_like(LAYOUTS["one layer"])
    with pytest.raises(ArgumentError, match=r"Choose\(rule=...\) must return a Wire, got"):
        Choose(lambda client, t: bad).pack(rows, {}, sender(), LAYOUTS["one layer"])


@pytest.mark.parametrize("bad", [None, "topk", QSGD(), 3])
def test_the_rule_must_be_a_function(bad):
    with pytest.raises(ArgumentError, match=r"Choose\(rule=...\) must be a function of client and"):
        Choose(bad)
