"""The one local loop, on bowls f_i(y) = (a_i / 2) |y|^2 whose every step is known."""

import pytest
import torch

from helpers import Bowls, tensor
from tunefree.clients import Adam, Armijo, Constant, LocalProblem, Momentum, Plan, Round, loop
from tunefree.core.layout import Layout

ALL = frozenset({"grad_mean", "grad_sq"})


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def run(step, x, curvature, steps, local=None, school=None, records=ALL, factor=1.0):
    share = torch.full((len(steps), max(steps)), 0.5, dtype=torch.float64)
    plan = Plan(len(steps), len(steps), 1, max(steps), Layout(("w",), (tuple(x.shape),)))
    return loop.run_local_steps(
        x,
        LocalProblem() if local is None else local,
        step,
        {},
        Bowls(curvature, steps),
        loop.LocalBatches(lambda k: k, torch.tensor(steps), share, (min(steps), max(steps))),
        loop.GradientTransform() if school is None else school,
        records,
        Round(plan, 0, factor=factor),
    )


def test_a_client_with_fewer_steps_stops_earlier():
    work = run(Constant(0.1), tensor(1.0), (1.0, 2.0), (1, 3))
    close(work.delta, tensor([-0.1], [0.8**3 - 1]))
    close(work.steps, tensor(1.0, 3.0))
    close(work.loss, tensor(0.5, (1 + 0.64 + 0.4096) / 3))
    close(work.lr, tensor(0.1, 0.1))
    close(work.grad_mean, tensor([1.0], [2 * (1 + 0.8 + 0.64) / 3]))
    close(work.grad_sq, tensor(1.0, 4 * (1 + 0.64 + 0.4096)))
    close(work.trials, tensor(0.0, 0.0))


@pytest.mark.parametrize("step", [Constant(0.1), Momentum(0.1), Adam(0.1), Armijo()])
def test_others_do_not_change_what_a_client_does(step):
    x, curvature, steps = tensor(1.0, -2.0), (1.0, 3.0, 0.5), (2, 4, 1)
    together = run(step, x, curvature, steps)
    for i in range(3):
        alone = run(step, x, curvature[i : i + 1], steps[i : i + 1])
        for name in ("delta", "steps", "loss", "lr", "trials", "grad_mean", "grad_sq"):
            close(getattr(together, name)[i], getattr(alone, name)[0])


def test_records_only_what_is_asked_for():
    work = run(Constant(0.1), tensor(1.0), (1.0,), (2,), records=frozenset())
    assert work.grad_mean is None
    assert work.grad_sq is None
    assert work.grad_full is None


def test_weight_decay():
    work = run(
        Constant(0.1), tensor(1.0), (1.0,), (2,), school=loop.GradientTransform(weight_decay=0.5)
    )
    close(work.delta, tensor([0.85**2 - 1]))
    close(work.grad_mean, tensor([1.5 * (1 + 0.85) / 2]))
    close(work.loss, tensor((0.5 + 0.5 * 0.85**2) / 2))  # the loss itself, without the decay


def test_clip_shortens_the_minibatch_gradient():
    school = loop.GradientTransform(clip=1.0)
    work = run(Constant(0.1), tensor(3.0, 4.0), (1.0, 0.1), (1, 1), school=school)
    close(work.delta, -0.1 * tensor([0.6, 0.8], [0.3, 0.4]))  # 0.5 is short enough
    close(work.grad_sq, tensor(1.0, 0.25))


def test_clip_comes_before_weight_decay_and_bend():
    school = loop.GradientTransform(clip=1.0, weight_decay=0.5)
    shift = LocalProblem(shift=tensor([10.0, 0.0]))
    work = run(Constant(0.1), tensor(3.0, 4.0), (1.0,), (1,), local=shift, school=school)
    close(work.delta, -0.1 * tensor([0.6 + 1.5 + 10, 0.8 + 2.0]))


def test_clip_leaves_a_zero_gradient_alone():
    work = run(Constant(0.1), tensor(0.0), (1.0,), (1,), school=loop.GradientTransform(clip=1.0))
    close(work.delta, tensor([0.0]))


def test_the_schedule_scales_the_step():
    work = run(Constant(0.1), tensor(1.0), (1.0,), (1,), factor=0.5)
    close(work.delta, tensor([-0.05]))
    close(work.lr, tensor(0.05))


def test_bend_pulls_but_is_not_recorded():
    """Control variates are made of the client's own gradients."""
    pull = LocalProblem(mu=1.0, anchor=tensor(3.0))
    work = run(Constant(0.1), tensor(1.0), (1.0,), (2,), local=pull)
    first = 1 - 0.1 * (1 - 2)
    close(work.delta, tensor([first - 0.1 * (first + first - 3) - 1]))
    close(work.grad_mean, tensor([(1 + first) / 2]))


def test_line_search_sees_decay_and_bend():
    """Curvature 1 + 1 + 2 = 4: lr <= 2 (1 - c) / 4 = 0.45 is accepted, 1 and 0.5 are not."""
    step = Armijo(c=0.1, backtrack=0.5)
    school, pull = (
        loop.GradientTransform(weight_decay=1.0),
        LocalProblem(mu=2.0, anchor=tensor(0.0)),
    )
    work = run(step, tensor(1.0), (1.0,), (1,), local=pull, school=school)
    close(work.lr, tensor(0.25))
    close(work.delta, tensor([-1.0]))
    close(work.trials, tensor(3.0))


def test_trials_end_with_the_client():
    step = Armijo(c=0.1, backtrack=0.5, reset="reset")
    work = run(step, tensor(1.0), (4.0, 4.0), (1, 3))
    close(work.lr, tensor(0.25, 0.25 / 3))  # one step of 1/4 ends at 0, where nothing is followed
    close(work.trials, tensor(3.0, 3.0))
