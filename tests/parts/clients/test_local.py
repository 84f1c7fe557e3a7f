"""The bends: what directions add to a client's loss, and to its gradient."""

import pytest
import torch

from tunefree.clients import LocalProblem, LocalResult, Plain, Plan, Proximal, Round, Scaffold, Sum
from tunefree.core.layout import Layout

PLAN = Plan(clients=4, cohort=2, rounds=5, steps=3.0, layout=Layout(("w",), ((2,),)))
NOW = Round(PLAN, 0, fraction=0.5)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


TILT = rows([1.0, -2.0], [0.5, 3.0])
A, B = rows(1.0, 1.0), rows(-3.0, 0.5)
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
    y, g = rows([0.3, -1.0], [2.0, 5.0]), rows([1.0, 2.0], [3.0, 4.0])
    close(BENDS[name].correct(g, y), g + gradient(BENDS[name], y))


def test_no_bend_is_none():
    y, g = rows([0.3, -1.0]), rows([1.0, 2.0])
    for name in ("none", "no pull"):
        assert torch.equal(BENDS[name].correct(g, y), g)
        assert float(BENDS[name].value(y)) == 0.0


def test_by_hand():
    y = rows([0.0, 0.0], [1.0, 1.0])
    close(BENDS["both"].value(y), rows(9.25, 3.5 + 16.25))
    close(BENDS["both"].correct(torch.zeros_like(y), y), rows([7.0, -3.0], [8.5, 4.0]))


@pytest.mark.parametrize("one", BENDS)
@pytest.mark.parametrize("other", BENDS)
def test_sums_are_closed(one, other):
    """Gradients add up; values add up but for a constant."""
    a, b = BENDS[one], BENDS[other]
    y, z = rows([0.3, -1.0], [2.0, 5.0]), rows([7.0, 0.1], [-2.0, 1.0])
    g = rows([1.0, 2.0], [3.0, 4.0])
    total = a + b
    assert isinstance(total, LocalProblem)
    close(total.correct(g, y), a.correct(b.correct(g, y), y))
    apart = (a.value(z) + b.value(z)) - (a.value(y) + b.value(y))
    close(torch.as_tensor(total.value(z) - total.value(y)), torch.as_tensor(apart))


def test_sum_of_three():
    y, g = rows([0.3, -1.0], [2.0, 5.0]), torch.zeros(2, 2, dtype=torch.float64)
    total = BENDS["pull"] + BENDS["both"] + BENDS["tilt"]
    close(total.correct(g, y), 2 * TILT + 0.5 * (y - A) + 2 * (y - B))


def test_directions_bend_as_they_say():
    x = rows(1.0, 2.0)
    y, g = rows([3.0, 3.0], [0.0, 0.0]), rows([1.0, 1.0], [1.0, 1.0])
    assert torch.equal(Plain().local_problem(x, {}, {}, NOW).correct(g, y), g)
    close(Proximal(0.5).local_problem(x, {}, {}, NOW).correct(g, y), rows([2.0, 1.5], [0.5, 0.0]))
    down, own = {"control": rows(1.0, 0.0)}, {"control": rows([0.0, 0.0], [2.0, 2.0])}
    close(Scaffold().local_problem(x, down, own, NOW).correct(g, y), rows([2.0, 1.0], [0.0, -1.0]))


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_by_hand(option):
    part, x = Scaffold(option), rows(0.0, 0.0)
    own, shared = part.init(x, PLAN)
    assert torch.equal(own["control"], x)
    mean, full = rows([1.0, 2.0], [3.0, 4.0]), rows([5.0, 6.0], [7.0, 8.0])
    work = LocalResult(*(rows(0.0) for _ in range(6)), {}, grad_mean=mean, grad_full=full)
    before = rows([1.0, 1.0], [0.0, 0.0])
    sent, kept = part.upload(work, x, {}, {"control": before}, NOW)
    new = full if option == "I" else mean
    close(sent["control"], new - before)
    close(part.update_memory(sent, sent, {}, kept, NOW)["control"], new)
    halved = {"control": sent["control"] / 2}  # by a wire: both ends know the same half
    close(part.update_memory(sent, halved, {}, kept, NOW)["control"], (new + before) / 2)
    after = part.update_shared({"control": rows(4.0, 8.0)}, shared, Round(PLAN, 0, fraction=0.5))
    close(after["control"], rows(2.0, 4.0))  # absent clients count as no change


def test_sum_keeps_the_parts_apart():
    part = Sum(Scaffold(), Proximal(0.5))
    x = rows(0.0, 1.0)
    own, shared = part.init(x, PLAN)
    assert own.keys() == shared.keys() == {"0.control"}
    assert part.uploads == ("control",)
    assert part.records == ("grad_mean",)
    down = part.down({"0.control": rows(1.0, 1.0)})
    y, g = rows([2.0, 2.0]), rows([0.0, 0.0])
    bent = part.local_problem(x, down, {"0.control": rows([0.5, 0.0])}, NOW).correct(g, y)
    close(bent, rows([0.5 + 1.0, 1.0 + 0.5]))
