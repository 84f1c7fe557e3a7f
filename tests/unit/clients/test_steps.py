import math

import pytest
import torch

from helpers import tensor
from tunefree.clients import (
    Adam,
    Armijo,
    Constant,
    DoG,
    LocalObjective,
    LocalResult,
    Momentum,
    Plan,
    Round,
    StepContext,
)
from tunefree.clients.loss_steps import Polyak
from tunefree.core.layout import Layout
from tunefree.core.vectors import row_sq


def context(phi, k=0, factor=1.0, share=1.0, down=None):
    now = Round(PLAN, 0, factor=factor)
    every = torch.full(phi.y.shape[:1], share, dtype=torch.float64)
    return StepContext(k, now, factor, every, torch.full_like(every, 3), phi, down or {})


def nowhere(y):
    """For steps that never look at the function."""
    return LocalObjective(loss=y.new_zeros(len(y)), extra=lambda z: 0.0, value=lambda z: 1 / 0, y=y)


def close(a, b, rtol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-14)


def test_constant():
    y, d = tensor([1.0, 2.0]), tensor([10.0, -10.0])
    new, lr, _ = Constant(0.1).take(y, d, context(nowhere(y), factor=0.5), {})
    close(new, tensor([0.5, 2.5]))
    close(lr, tensor(0.05))


def test_momentum():
    step, y = Momentum(lr=0.1, momentum=0.5), tensor([1.0])
    scratch = step.begin(y, {})
    for k, expected in enumerate([0.9, 0.75, 0.575]):  # v = 1, 1.5, 1.75
        y, _, scratch = step.take(y, tensor([1.0]), context(nowhere(y), k), scratch)
        close(y, tensor([expected]))


def test_momentum_takes_the_schedule():
    step, y = Momentum(lr=0.1, momentum=0.5), tensor([1.0])
    new, lr, _ = step.take(y, tensor([2.0]), context(nowhere(y), factor=0.5), step.begin(y, {}))
    close(new, tensor([0.9]))
    close(lr, tensor(0.05))


def test_adam_by_hand():
    step, y = Adam(lr=0.1, beta1=0.5, beta2=0.75, eps=1.0), tensor([0.0])
    scratch = step.begin(y, {})
    y, _, scratch = step.take(y, tensor([1.0]), context(nowhere(y), 0), scratch)
    close(y, tensor([-0.1 * 1 / (1 + 1)]))  # bias correction undoes both betas
    y, _, scratch = step.take(y, tensor([3.0]), context(nowhere(y), 1), scratch)
    m, s = 0.5 * 0.5 + 0.5 * 3, 0.75 * 0.25 + 0.25 * 9
    move = (m / (1 - 0.25)) / (math.sqrt(s / (1 - 0.5625)) + 1)
    close(y, tensor([-0.05 - 0.1 * move]))


def test_adam_is_torch_adam():
    step, y = Adam(lr=0.03), tensor([0.3, -2.0, 5.0])
    theirs = torch.nn.Parameter(y[0].clone())
    optimiser = torch.optim.Adam([theirs], lr=0.03)
    scratch = step.begin(y, {})
    for k in range(6):
        d = (y * 2 + math.sin(k)).detach()
        theirs.grad = d[0].clone()
        optimiser.step()
        y, _, scratch = step.take(y, d, context(nowhere(y), k), scratch)
        close(y[0], theirs.detach())


PLAN = Plan(clients=4, cohort=2, rounds=5, steps=3.0, layout=Layout(("w",), ((2,),)))


@pytest.mark.parametrize("weighted", [False, True])
def test_dog_by_hand(weighted):
    step, x = DoG(r_rel=1e-2, weighted=weighted), tensor(3.0, 4.0)
    own, shared = step.init(x, PLAN)
    assert own == {}
    asked = []

    def ask(what, at, who="cohort"):
        asked.append((what, len(at), who))
        return [tensor(2.0)[0]]

    shared = step.start_round(x, shared, Round(PLAN, 0, 0.5), ask)
    assert asked == [("grad_sq", 1, "cohort")]
    r, q = 0.06, 2 + 1e-8  # r = 0.01 (1 + 5)
    v = (r**2 if weighted else 1) * 3 * q
    lr = (r**2 if weighted else r) / math.sqrt(v)
    close(step.down(shared)["lr"], tensor(lr)[0])

    y = tensor([1.0, 1.0], [2.0, 2.0])
    new, used, _ = step.take(y, y, context(nowhere(y), factor=0.1, down=step.down(shared)), {})
    close(new, (1 - 0.1 * lr) * y)  # the schedule's factor
    close(used, tensor(0.1 * lr, 0.1 * lr))

    shared = step.update_shared(
        {"delta": tensor(0.3, 0.4), "grad_sq": tensor(7.0)[0]}, shared, Round(PLAN, 0, 0.5)
    )
    r = 0.5
    v += (r**2 if weighted else 1) * 7
    close(shared["r"], tensor(r)[0])
    close(shared["v"], tensor(v)[0])
    close(shared["lr"], tensor((r**2 if weighted else r) / math.sqrt(v))[0])

    # Back to the start: z returns, the distance does not; nobody is asked again.
    shared = step.start_round(x, shared, Round(PLAN, 1, 0.5), ask)
    assert len(asked) == 1
    shared = step.update_shared(
        {"delta": tensor(-0.3, -0.4), "grad_sq": tensor(0.0)[0]}, shared, Round(PLAN, 1, 1)
    )
    close(shared["z"], tensor(0.0, 0.0))
    close(shared["r"], tensor(r)[0])


def test_dog_sends_the_gradients_it_saw():
    x, sq = tensor(0.0), tensor(7.0)
    work = LocalResult(x, {}, *(tensor(1.0) for _ in range(6)), {}, grad_sq=sq)
    assert DoG().upload(work, {}, Round(PLAN, 0))[0] == {"grad_sq": tensor(7.0)}


def bowls(curvature, y):
    """f_i(y) = a_i |y|^2: a trial is accepted iff lr <= (1 - c) / a_i."""
    a = tensor(*curvature)

    def value(z):
        return a * z.square().sum(1)

    return 2 * a[:, None] * y, LocalObjective(loss=value(y), extra=lambda z: 0.0, value=value, y=y)


def test_armijo_backtracks_each_client_for_itself():
    step, y = Armijo(c=0.1, backtrack=0.5, max_lr=1.0), tensor([1.0], [1.0], [1.0])
    d, phi = bowls((1.0, 10.0, 0.5), y)
    new, lr, scratch = step.take(y, d, context(phi), step.begin(y, {}))
    close(lr, tensor(0.5, 0.0625, 1.0))  # 0.9, 0.09 and 1.8 are the limits
    close(new, tensor([0.0], [1 - 1.25], [0.0]))
    close(scratch["trials"], tensor(2.0, 5.0, 1.0))


@pytest.mark.parametrize(
    ("reset", "share", "first"),
    [
        ("keep", 0.5, 0.25),
        ("reset", 0.5, 1.0),
        ("grow", 0.5, 0.25 * 2**0.5),
        ("grow", 1.0, 0.5),
        ("grow", 7.0, 1.0),  # never above max_lr
    ],
)
def test_armijo_resets(reset, share, first):
    """On a flat function every trial is accepted, so that the first one shows."""
    step, y = Armijo(reset=reset, backtrack=0.5), tensor([1.0])
    d, phi = bowls((1e-3,), y)
    scratch = {"lr": tensor(0.25), "trials": tensor(3.0)}
    _, lr, after = step.take(y, d, context(phi, 1, share=share), scratch)
    close(lr, tensor(first))
    close(after["trials"], tensor(4.0))
    _, lr, _ = step.take(y, d, context(phi, 0, share=share), scratch)
    close(lr, tensor(1.0))  # a round begins at max_lr


def test_armijo_gives_up():
    y = tensor([1.0], [1.0])
    d, phi = bowls((10.0, 1.0), y)
    step = Armijo(backtrack=0.5, max_backtracks=2)
    new, lr, scratch = step.take(y, d, context(phi), step.begin(y, {}))
    close(lr, tensor(1e-6, 0.5))
    close(new, tensor([1 - 2e-5], [0.0]))
    close(scratch["trials"], tensor(3.0, 2.0))


def test_armijo_without_backtracks_takes_the_first_trial():
    y = tensor([1.0])
    d, phi = bowls((10.0,), y)
    step = Armijo(max_lr=0.7, max_backtracks=0)
    new, lr, scratch = step.take(y, d, context(phi), step.begin(y, {}))
    close(lr, tensor(0.7))
    close(new, tensor([1 - 14.0]))
    close(scratch["trials"], tensor(0.0))


def test_armijo_does_not_follow_a_vanishing_gradient():
    y = tensor([1e-9], [1.0])
    d, phi = bowls((1.0, 0.5), y)
    step = Armijo()
    new, lr, scratch = step.take(y, d, context(phi), step.begin(y, {}))
    close(new, tensor([1e-9], [0.0]))
    close(lr, tensor(0.0, 1.0))
    close(scratch["trials"], tensor(0.0, 1.0))


def test_armijo_refuses_trials_that_are_not_finite():
    y = tensor([1.0])

    def value(z):
        return torch.where(z[:, 0] < 0, float("nan"), z[:, 0].square())

    phi = LocalObjective(loss=value(y), extra=lambda z: 0.0, value=value, y=y)
    step = Armijo(backtrack=0.5)
    new, lr, _ = step.take(y, 2 * y, context(phi), step.begin(y, {}))
    close(lr, tensor(0.5))
    close(new, tensor([0.0]))


@pytest.mark.parametrize("loss", [0.0, 1e-30])
def test_a_polyak_step_of_a_tiny_gradient_is_a_number(loss):
    """Its square is the smallest number there is, and a tenth of that is 0."""
    y, d = torch.ones(1, 1), torch.full((1, 1), 3.8e-23)
    assert row_sq(d) > 0
    assert 0.1 * row_sq(d) == 0
    phi = LocalObjective(torch.tensor([loss]), lambda z: 0.0, lambda z: torch.tensor([loss]), y)
    _, lr, _ = Polyak(c=0.1).take(y, d, context(phi), {})
    assert lr.item() == (1.0 if loss else 0.0)
