"""What the rules claim, for numbers that hypothesis picks."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import assert_close
from tunefree.clients import Armijo, DoG, LocalObjective, LocalProblem, Plan, Round, StepContext
from tunefree.core import random
from tunefree.core.layout import Layout
from tunefree.server import Averaged, FedDuAdagrad, FedDuAdam, FedExP
from tunefree.wire import Dense, Sender

D, M = 3, 4
PLAN = Plan(clients=M, cohort=M, rounds=5, steps=2.0, layout=Layout(("w",), ((D,),)))
NUMBER = st.floats(-50, 50, allow_subnormal=False).map(lambda v: round(v, 3))
ROWS = arrays("float64", (M, D), elements=NUMBER).map(torch.from_numpy)
VECTOR = arrays("float64", (D,), elements=NUMBER).map(torch.from_numpy)
PROBLEM = st.one_of(
    st.builds(LocalProblem, shift=ROWS),
    st.builds(LocalProblem, mu=st.floats(0.01, 5), anchor=VECTOR),
    st.builds(LocalProblem, shift=ROWS, mu=st.floats(0.01, 5), anchor=VECTOR),
    st.just(LocalProblem()),
)


def close(a, b, tolerance=1e-9):
    assert_close(a, b, tolerance)


def means(rows):
    return {"delta": rows.mean(0), "delta_sq": rows.square().sum(1).mean()}


@given(st.lists(PROBLEM, min_size=1, max_size=4), ROWS, ROWS)
@settings(max_examples=60, deadline=None)
def test_local_problems_add_up(problems, y, g):
    total = problems[0]
    for problem in problems[1:]:
        total = total + problem
    expected = g
    for problem in problems:
        expected = problem.correct(expected, y)
    close(total.correct(g, y), expected)
    point = y.clone().requires_grad_()
    value = total.value(point)
    if isinstance(value, torch.Tensor):
        (slope,) = torch.autograd.grad(value.sum(), point)
        close(total.correct(torch.zeros_like(y), y), slope)


@given(st.lists(ROWS, min_size=1, max_size=4), st.sampled_from([0.0, 1e-9, 0.1]))
@settings(max_examples=60, deadline=None)
def test_feddua_goes_m_along_v(rounds, eps):
    for rule in (FedDuAdagrad(eps=eps), FedDuAdam(eps=eps)):
        x = torch.zeros(D, dtype=torch.float64)
        state = rule.init(x, PLAN)
        for t, rows in enumerate(rounds):
            mean = means(rows)
            new, state, trace = rule.step(x, mean, state, Round(PLAN, t), None)
            v = state.get("v", mean["delta"])
            assert bool(torch.isfinite(new).all())
            assert float(trace["server_step"]) >= 0
            if float(v.abs().max()) > 1e-6:
                close(v @ (new - x), state.get("m", mean["delta_sq"] / 2), 1e-6)
            x = new


@given(
    st.lists(ROWS, min_size=1, max_size=4),
    st.sampled_from([0.0, 1e-9, 0.1]),
    st.floats(0.01, 3),
    st.sampled_from([FedDuAdagrad, FedDuAdam]),
)
@settings(max_examples=60, deadline=None)
def test_feddua_never_moves_further_than_its_longest(rounds, eps, most, rule):
    """|x+ - x| <= max_move sqrt(q), along the move without it, and that move where it is short."""
    x = torch.zeros(D, dtype=torch.float64)
    short, free = rule(eps=eps, max_move=most), rule(eps=eps)
    state = short.init(x, PLAN)
    for t, rows in enumerate(rounds):
        mean = means(rows)
        plain, _, _ = free.step(x, mean, state, Round(PLAN, t), None)
        new, state, _ = short.step(x, mean, state, Round(PLAN, t), None)
        bound = most * mean["delta_sq"].sqrt()
        length, whole = (torch.linalg.vector_norm(z - x) for z in (new, plain))
        assert bool(torch.isfinite(new).all())
        assert float(length) <= float(bound) * (1 + 1e-9)
        if bool(whole <= bound * (1 - 1e-9)):
            close(new, plain)
        elif float(whole) > 0:
            close(new - x, (plain - x) * (bound / whole))
        x = new


def context(k, phi, down):
    one = torch.ones(M, dtype=torch.float64)
    return StepContext(k, Round(PLAN, 0), 1.0, one, one, phi, down)


@given(
    ROWS.flatmap(lambda first: st.tuples(st.just(first), st.lists(ROWS, max_size=4))),
    st.booleans(),
    st.floats(1e-6, 1e3),
    st.floats(1e-12, 1e6),
)
@settings(max_examples=80, deadline=None)
def test_no_live_step_is_longer_than_r(directions, weighted, r, v):
    first, others = directions
    step, y = DoG(weighted=weighted, live=True), first.clone()
    down = {name: torch.tensor(n, dtype=torch.float64) for name, n in (("r", r), ("v", v))}
    scratch, before = step.begin(y, down), torch.full((M,), float("inf"), dtype=torch.float64)
    phi = LocalObjective(torch.zeros(M), lambda z: 0.0, lambda z: z.sum(1), y)
    for k, d in enumerate([first, *others]):
        new, lr, scratch = step.take(y, d, context(k, phi, down), scratch)
        assert bool((lr * d.norm(dim=1) <= r * (1 + 1e-9)).all())
        assert bool((lr > 0).all() and (lr <= before).all())  # gradients only add up
        close(new, y - lr[:, None] * d)
        y, before = new, lr


@given(ROWS, st.sampled_from([0.0, 1e-3]), st.sampled_from([None, 1.0, 3.0]))
@settings(max_examples=60, deadline=None)
def test_fedexp_stays_between_one_and_its_cap(rows, eps, cap):
    x = torch.zeros(D, dtype=torch.float64)
    new, _, trace = FedExP(eps, cap).step(x, means(rows), {}, Round(PLAN, 0), None)
    eta = float(trace["server_step"])
    assert eta >= 1
    assert cap is None or eta <= cap
    if eta < float("inf"):
        close(new, eta * rows.mean(0))


@given(st.floats(0.01, 0.99), st.floats(0.1, 0.95), st.floats(0.1, 10), st.floats(0.01, 100), ROWS)
@settings(max_examples=60, deadline=None)
def test_armijo_on_bowls(c, backtrack, max_lr, curvature, y):
    def value(z):
        return curvature / 2 * z.square().sum(1)

    step = Armijo(c=c, backtrack=backtrack, max_lr=max_lr, max_backtracks=1000)
    d = curvature * y
    phi = LocalObjective(value(y), lambda z: 0.0, value, y)
    new, lr, _ = step.take(y, d, context(0, phi, {}), step.begin(y, {}))
    moving = d.square().sum(1).sqrt() >= 1e-8
    assert bool((value(new) <= value(y) - c * lr * d.square().sum(1)).all() | ~moving.all())
    bound = backtrack * min(2 * (1 - c) / curvature, max_lr)
    assert bool((lr[moving] >= bound * (1 - 1e-9)).all())
    assert bool((lr <= max_lr).all())
    assert torch.equal(new[~moving], y[~moving])


@given(st.lists(VECTOR, min_size=1, max_size=8), st.floats(0, 20))
@settings(max_examples=40, deadline=None)
def test_averages_stay_among_the_iterates(points, gamma):
    part = Averaged(gamma)
    state = part.init(torch.full((D,), 1e6, dtype=torch.float64))  # the start counts for nothing
    for t, x in enumerate(points):
        state = part.update(x, state, Round(PLAN, t))
    out, all_ = part.value(points[-1], state), torch.stack(points)
    assert bool((out >= all_.min(0).values - 1e-6).all())
    assert bool((out <= all_.max(0).values + 1e-6).all())


@given(arrays("float64", st.integers(0, 20), elements=st.floats(width=64)).map(torch.from_numpy))
@settings(max_examples=60, deadline=None)
def test_dense_keeps_every_bit(row):
    who = Sender(torch.zeros(1).long(), 0, torch.zeros(1).long())
    layout = Layout(("w",), (tuple(row.shape),))
    back = Dense().decode(Dense().encode(row, who, layout), row, who, layout)
    assert torch.equal(back.view(torch.int64), row.view(torch.int64))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_cohorts_are_sets(seed, t, clients, data):
    size = data.draw(st.integers(1, clients))
    ids = random.cohort(seed, t, clients, size).tolist()
    assert ids == sorted(set(ids))
    assert len(ids) == size
    assert ids[0] >= 0
    assert ids[-1] < clients
