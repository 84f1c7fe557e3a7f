"""What penalties claim, for weights, steps and vectors that hypothesis picks."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import assert_close
from tunefree.core import vectors as blocks
from tunefree.core.errors import ArgumentError
from tunefree.core.layout import Layout
from tunefree.penalties import (
    L1,
    L2,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    Nuclear,
    Simplex,
    Zero,
    get,
    names,
    sparsity,
    stationarity,
)

LAYOUT = Layout(("w", "b"), ((2, 2), (2,)))
D, M = 6, 3
NUMBER = st.floats(-20, 20, allow_subnormal=False).map(lambda v: round(v, 3))
ROWS = arrays("float64", (M, D), elements=NUMBER).map(torch.from_numpy)
WEIGHT = st.floats(0, 5).map(lambda v: round(v, 4))
SIZE = st.floats(0.01, 20)
FUNCTION = st.one_of(
    st.builds(Zero),
    st.builds(L1, WEIGHT),
    st.builds(L2, WEIGHT),
    st.builds(ElasticNet, WEIGHT, WEIGHT),
    st.builds(MCP, WEIGHT, st.floats(0.1, 50)),
    st.builds(SCAD, WEIGHT, st.floats(2.05, 50)),
    st.builds(GroupLasso, WEIGHT, st.sampled_from(["row", "layer"]), st.booleans()),
    st.builds(Nuclear, WEIGHT),
)
SET = st.one_of(
    st.tuples(NUMBER, SIZE).map(lambda b: Box(b[0], b[0] + b[1])),
    st.builds(L1Ball, SIZE),
    st.builds(L2Ball, SIZE),
    st.builds(Simplex, SIZE),
)
PENALTY = st.one_of(FUNCTION, SET)
SHARE = st.floats(0.001, 0.95)  # of the longest step, or of 5 where any will do


def step(part, share):
    return share / part.rho if part.rho else 5 * share


def close(a, b, tolerance=1e-9):
    assert_close(a, b, tolerance)


@given(PENALTY, SHARE, ROWS, ROWS)
@settings(max_examples=200, deadline=None)
def test_no_point_is_better(part, share, v, other):
    """The objective at the output is least, by as much as its convexity 1/alpha - rho asks."""
    alpha = step(part, share)
    p = part.prox(v, alpha, LAYOUT)
    assert bool(part.value(p, LAYOUT).isfinite().all())

    def objective(u):
        return part.value(u, LAYOUT) + (u - v).square().sum(-1) / (2 * alpha)

    for z in (v, other, part.prox(other, alpha, LAYOUT), p + (other - p) / 1000):
        gain = (1 / alpha - part.rho) / 2 * (z - p).square().sum(-1)
        here = objective(p)
        assert bool((objective(z) >= here + gain - 1e-7 * (1 + here + gain)).all())


@given(PENALTY, SHARE, ROWS, ROWS)
@settings(max_examples=200, deadline=None)
def test_distances(part, share, a, b):
    alpha = step(part, share)
    moved, given_ = part.prox(a, alpha, LAYOUT) - part.prox(b, alpha, LAYOUT), a - b
    inner = (moved * given_).sum(-1)
    least = (1 - alpha * part.rho) * moved.square().sum(-1)  # firm for rho = 0
    assert bool((inner >= least - 1e-7).all())
    longest = given_.norm(dim=-1) / (1 - alpha * part.rho)
    assert bool((moved.norm(dim=-1) <= longest + 1e-7).all())


@given(PENALTY, SHARE, ROWS)
@settings(max_examples=100, deadline=None)
def test_rows_one_by_one(part, share, v):
    alpha = step(part, share)
    close(part.prox(v, alpha, LAYOUT), torch.stack([part.prox(r, alpha, LAYOUT) for r in v]))
    close(part.value(v, LAYOUT), torch.stack([part.value(r, LAYOUT) for r in v]))


@given(FUNCTION, SHARE, ROWS)
@settings(max_examples=100, deadline=None)
def test_functions_shrink(part, share, v):
    p = part.prox(v, step(part, share), LAYOUT)
    close(part.prox(-v, step(part, share), LAYOUT), -p)
    assert bool((p.norm(dim=-1) <= v.norm(dim=-1) + 1e-9).all())
    assert bool((part.value(p, LAYOUT) <= part.value(v, LAYOUT) + 1e-9).all())
    if not isinstance(part, Nuclear):  # the others never turn an entry round or lose a zero
        assert bool((p * v >= 0).all() and (p.abs() <= v.abs() * (1 + 1e-12)).all())
        assert bool((sparsity(p) >= sparsity(v)).all())


@given(SET, ROWS)
@settings(max_examples=100, deadline=None)
def test_projections_stay(part, v):
    p = part.prox(v, 1.0, LAYOUT)
    assert torch.equal(part.value(p, LAYOUT), torch.zeros(M, dtype=torch.float64))
    close(part.prox(p, 3.0, LAYOUT), p)
    inside = part.value(v, LAYOUT) == 0
    close(p[inside], v[inside], 1e-6)


@given(PENALTY, SHARE, ROWS)
@settings(max_examples=100, deadline=None)
def test_the_output_is_stationary_for_its_distance(part, share, v):
    """p minimises h + |. - v|^2 / (2 alpha), whose smooth part has the gradient (p - v) / alpha."""
    alpha = step(part, share)
    p = part.prox(v, alpha, LAYOUT)
    measure = stationarity(part, p, (p - v) / alpha, alpha, LAYOUT)
    close(alpha * measure, torch.zeros(M, dtype=torch.float64), 1e-6)


@given(st.one_of(st.builds(MCP, SIZE, SIZE), st.builds(SCAD, SIZE, st.floats(2.01, 100))))
@settings(max_examples=200, deadline=None)
def test_the_longest_step_is_refused(part):
    longest = part.gamma if isinstance(part, MCP) else part.a - 1
    part.check(0.999999 * longest, "fedcanon")
    for alpha in (longest, 1 / part.rho, 2 * longest):
        with pytest.raises(ArgumentError, match=r"needs alpha < 1/rho"):
            part.prox(torch.ones(1, D), alpha, LAYOUT)


@given(FUNCTION, st.floats(0.01, 0.9), ROWS)
@settings(max_examples=60, deadline=None)
def test_float32_is_near_float64(part, share, v):
    alpha = step(part, share)
    p = part.prox(v.float(), alpha, LAYOUT)
    assert p.dtype == torch.float32
    close(p.double(), part.prox(v, alpha, LAYOUT), 2e-4)


@given(st.floats(0, 1e3), st.floats(0.001, 1e3), st.floats(2.001, 1e3))
@settings(max_examples=60, deadline=None)
def test_texts_are_read_back(weight, gamma, a):
    assert get(f"l1:{weight}") == L1(weight)
    assert get(f"mcp:{weight}:{gamma}") == MCP(weight, gamma)
    assert get(f"scad:{weight}:{a}") == SCAD(weight, a)
    assert get(f"box:{-gamma}:{weight}") == Box(-gamma, weight)


@given(st.text(max_size=12))
@settings(max_examples=100, deadline=None)
def test_other_texts_get_a_sentence(text):
    assume(text.strip().lower().split(":")[0] not in names())
    assume("*" not in text)
    with pytest.raises(ArgumentError, match=r"Unknown penalty .* Known: box, "):
        get(text)


@given(st.integers(0, 400), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_blocks_change_nothing(n, block, seed):
    a, b = torch.randn(2, n, generator=torch.Generator().manual_seed(seed))
    usual = blocks._CACHE_BLOCK
    blocks._CACHE_BLOCK = 4 * block
    try:
        made = blocks.blockwise(lambda a, b: (a + 2 * b, a > b), a, b)
    finally:
        blocks._CACHE_BLOCK = usual
    assert torch.equal(made[0], a + 2 * b)
    assert torch.equal(made[1], a > b)
