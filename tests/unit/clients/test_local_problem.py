"""The bends: what directions add to a client's loss, and to its gradient."""

import pytest
import torch

from helpers import assert_close, tensor
from tunefree.clients import (
    LocalProblem,
    LocalResult,
    Plain,
    Plan,
    Proximal,
    Round,
    Scaffold,
    Sum,
    Upload,
)
from tunefree.core.layout import Layout

PLAN = Plan(clients=4, cohort=2, rounds=5, steps=3.0, layout=Layout(("w",), ((2,),)))
NOW = Round(PLAN, 0, fraction=0.5)


TILT = tensor([1.0, -2.0], [0.5, 3.0])
A, B = tensor(1.0, 1.0), tensor(-3.0, 0.5)
BENDS = {
    "none": LocalProblem(),
    "tilt": LocalProblem(shift=TILT),
    "pull": LocalProblem(mu=0.5, anchor=A),
    "both": LocalProblem(shift=TILT, mu=2.0, anchor=B),
    "no pull": LocalProblem(mu=0.0, anchor=A),
}


def gradient(bend, y):
    y = y.clone().requires_grad_()
    total = bend.value(y)
    return (
        torch.zeros_like(y) if isinstance(total, float) else torch.autograd.grad(total.sum(), y)[0]
    )


@pytest.mark.parametrize("name", ["tilt", "pull", "both"])
def test_the_bend_is_the_gradient_of_the_value(name):
    y, g = tensor([0.3, -1.0], [2.0, 5.0]), tensor([1.0, 2.0], [3.0, 4.0])
    assert_close(BENDS[name].correct(g, y), g + gradient(BENDS[name], y))


def test_no_bend_is_none():
    y, g = tensor([0.3, -1.0]), tensor([1.0, 2.0])
    for name in ("none", "no pull"):
        assert torch.equal(BENDS[name].correct(g, y), g)
        assert float(BENDS[name].value(y)) == 0.0


def test_by_hand():
    y = tensor([0.0, 0.0], [1.0, 1.0])
    assert_close(BENDS["both"].value(y), tensor(9.25, 3.5 + 16.25))
    assert_close(BENDS["both"].correct(torch.zeros_like(y), y), tensor([7.0, -3.0], [8.5, 4.0]))


@pytest.mark.parametrize("one", BENDS)
@pytest.mark.parametrize("other", BENDS)
def test_sums_are_closed(one, other):
    """Gradients add up; values add up but for a constant."""
    a, b = BENDS[one], BENDS[other]
    y, z = tensor([0.3, -1.0], [2.0, 5.0]), tensor([7.0, 0.1], [-2.0, 1.0])
    g = tensor([1.0, 2.0], [3.0, 4.0])
    total = a + b
    assert isinstance(total, LocalProblem)
    assert_close(total.correct(g, y), a.correct(b.correct(g, y), y))
    apart = (a.value(z) + b.value(z)) - (a.value(y) + b.value(y))
    assert_close(torch.as_tensor(total.value(z) - total.value(y)), torch.as_tensor(apart))


def test_sum_of_three():
    y, g = tensor([0.3, -1.0], [2.0, 5.0]), torch.zeros(2, 2, dtype=torch.float64)
    total = BENDS["pull"] + BENDS["both"] + BENDS["tilt"]
    assert_close(total.correct(g, y), 2 * TILT + 0.5 * (y - A) + 2 * (y - B))


def test_directions_bend_as_they_say():
    x = tensor(1.0, 2.0)
    y, g = tensor([3.0, 3.0], [0.0, 0.0]), tensor([1.0, 1.0], [1.0, 1.0])
    assert torch.equal(Plain().local_problem(x, {}, {}, NOW).correct(g, y), g)
    assert_close(
        Proximal(0.5).local_problem(x, {}, {}, NOW).correct(g, y), tensor([2.0, 1.5], [0.5, 0.0])
    )
    down, own = {"control": tensor(1.0, 0.0)}, {"control": tensor([0.0, 0.0], [2.0, 2.0])}
    assert_close(
        Scaffold().local_problem(x, down, own, NOW).correct(g, y), tensor([2.0, 1.0], [0.0, -1.0])
    )


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_by_hand(option):
    part, x = Scaffold(option), tensor(0.0, 0.0)
    own, shared = part.init(x, PLAN)
    assert torch.equal(own["control"], x)
    mean, full = tensor([1.0, 2.0], [3.0, 4.0]), tensor([5.0, 6.0], [7.0, 8.0])
    work = LocalResult(x, {}, *(tensor(0.0) for _ in range(6)), {}, grad_mean=mean, grad_full=full)
    before = tensor([1.0, 1.0], [0.0, 0.0])
    sent, kept = part.upload(work, {"control": before}, NOW)
    new = full if option == "I" else mean
    assert_close(sent["control"], new - before)
    assert_close(part.update_memory(Upload(sent, sent, {}), kept, NOW)["control"], new)
    halved = {"control": sent["control"] / 2}  # by a wire: both ends know the same half
    kept = part.update_memory(Upload(sent, halved, {}), kept, NOW)
    assert_close(kept["control"], (new + before) / 2)
    after = part.update_shared({"control": tensor(4.0, 8.0)}, shared, Round(PLAN, 0, fraction=0.5))
    assert_close(after["control"], tensor(2.0, 4.0))  # absent clients count as no change


def test_sum_keeps_the_parts_apart():
    part = Sum(Scaffold(), Proximal(0.5))
    x = tensor(0.0, 1.0)
    own, shared = part.init(x, PLAN)
    assert own.keys() == shared.keys() == {"0.control"}
    assert part.uploads == ("control",)
    assert part.records == ("grad_mean",)
    down = part.down({"0.control": tensor(1.0, 1.0)})
    y, g = tensor([2.0, 2.0]), tensor([0.0, 0.0])
    bent = part.local_problem(x, down, {"0.control": tensor([0.5, 0.0])}, NOW).correct(g, y)
    assert_close(bent, tensor([0.5 + 1.0, 1.0 + 0.5]))
