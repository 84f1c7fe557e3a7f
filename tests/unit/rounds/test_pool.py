"""What a query asks whom, and what it costs."""

import pytest
import torch

from helpers import tensor
from tunefree.rounds.pool import QueryRequest
from tunefree.wire import Ledger

from .pool import IDS

POINTS = [tensor(1.0, 2.0), tensor(3.0, 4.0)]


@pytest.mark.parametrize(("who", "ids"), [("cohort", [2, 0]), ("all", [0, 1, 2, 3])])
def test_who_is_asked(who, ids):
    assert QueryRequest(IDS, 0, "loss", POINTS, who).ids(4).tolist() == ids


@pytest.mark.parametrize(
    ("sent", "bytes"),
    [(None, {"point 0": 48, "point 1": 48}), ({"lr": tensor(0.1)}, {"lr": 24}), ({}, {})],
    ids=["points", "what they follow from", "nothing"],
)
def test_points_are_counted_unless_they_follow_from_something_else(sent, bytes):
    ledger = Ledger()
    QueryRequest(IDS, 0, "loss", POINTS, sent=sent).count_down(3, ledger)
    assert ledger.down == bytes
    assert ledger.bytes_up == 0


@pytest.mark.parametrize(("what", "shape"), [("grad", (2,)), ("loss", ()), ("moments", (5,))])
def test_an_answer_of_zeros(what, shape):
    zeros = QueryRequest(IDS, 0, what, POINTS).zero_answer(POINTS[0])
    assert torch.equal(zeros, torch.zeros(shape, dtype=torch.float64))
