"""Values and proximal maps against definitions, searches and numbers done by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import unit.penalties.reference as ref
from helpers import assert_close, normal
from tunefree import penalties
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
)
from unit.penalties.cases import LAYOUT, PENALTIES, SETS, D, flat, vector

SEPARABLE = {
    "l1": (L1(0.7), lambda t: ref.l1(t, 0.7)),
    "l2": (L2(0.7), lambda t: ref.l2(t, 0.7)),
    "elastic-net": (ElasticNet(0.7, 1.5), lambda t: ref.elastic_net(t, 0.7, 1.5)),
    "mcp": (MCP(0.6, 2.5), lambda t: ref.mcp(t, 0.6, 2.5)),
    "scad": (SCAD(0.6, 3.5), lambda t: ref.scad(t, 0.6, 3.5)),
    "box": (Box(-0.5, 1.25), lambda t: ref.box(t, -0.5, 1.25)),
    "none": (Zero(), lambda t: 0 * t),
}


@pytest.fixture(params=SEPARABLE)
def separable(request):
    return SEPARABLE[request.param]


def test_value_is_the_definition(separable):
    part, h = separable
    x = np.linspace(-3, 3, 241)
    for points in (x, x.clip(-0.5, 1.25)):  # the second lies in the box
        assert_close(part.value(vector(points)[:, None], flat(1)), vector(h(points)))
    inside = x.clip(-0.5, 1.25).reshape(-1, 1) * [1.0, 0.5, 0.0]
    assert_close(part.value(vector(inside), flat(3)), vector(h(inside).sum(1)))


@pytest.mark.parametrize("alpha", ref.ALPHAS)
def test_prox_is_what_a_search_finds(separable, alpha):
    part, h = separable
    points = np.linspace(-4.13, 4.13, 83)
    found = [ref.search(h, v, alpha) for v in points]
    assert_close(part.prox(vector(points), alpha, flat(83)), vector(found), 1e-6)


@pytest.mark.parametrize(
    ("part", "alpha", "breaks"),
    [
        (L1(0.7), 0.5, [0.35]),
        (ElasticNet(0.7, 1.5), 0.5, [0.35]),
        (MCP(0.6, 2.5), 0.5, [0.3, 1.5]),
        (MCP(0.6, 2.5), 2.4, [1.44, 1.5]),
        (SCAD(0.6, 3.5), 0.5, [0.3, 0.9, 2.1]),
        (SCAD(0.6, 3.5), 2.4, [1.44, 2.04, 2.1]),
    ],
)
def test_pieces_meet(part, alpha, breaks):
    at = vector([s * b for b in breaks for s in (1, -1)])
    around = torch.stack([part.prox(at * (1 + e), alpha, flat(len(at))) for e in (-1e-9, 0, 1e-9)])
    steep = 1 / (1 - alpha * part.rho)
    assert float((around - around[1]).abs().max()) < 1.01 * steep * 1e-9 * breaks[-1]
    slopes = []
    for low, high in zip([0, *breaks], [*breaks, 9.0], strict=True):  # each piece is a line
        inner = vector(np.linspace(low + 1e-3, high - 1e-3, 5))
        slope = part.prox(inner, alpha, flat(5)).diff() / inner.diff()
        assert_close(slope, slope[0].expand(4), 1e-8)
        slopes.append(float(slope[0]))
    assert slopes[0] == 0
    assert all(abs(a - b) > 1e-3 for a, b in pairwise(slopes))


def test_numbers_by_hand():
    v = vector([0.2, -0.5, 1.0, -2.0, 4.0])
    assert_close(L1(0.5).prox(v, 1.0, flat(5)), vector([0, 0, 0.5, -1.5, 3.5]))
    assert_close(L2(3.0).prox(v, 1.0, flat(5)), v / 4)
    assert_close(ElasticNet(0.5, 1.0).prox(v, 1.0, flat(5)), vector([0, 0, 0.25, -0.75, 1.75]))
    assert_close(MCP(1.0, 3.0).prox(v, 0.5, flat(5)), vector([0, 0, 0.6, -1.8, 4.0]))
    assert_close(SCAD(1.0, 4.0).prox(v, 1.0, flat(5)), vector([0, 0, 0, -1.0, 4.0]))
    assert_close(SCAD(1.0, 4.0).prox(vector([-3.0]), 1.0, flat(1)), vector([-2.5]))
    assert_close(Box(-1.0, 0.5).prox(v, 1.0, flat(5)), vector([0.2, -0.5, 0.5, -1.0, 0.5]))
    assert_close(L2Ball(2.5).prox(vector([3.0, -4.0]), 1.0, flat(2)), vector([1.5, -2.0]))
    assert_close(L1Ball(2.0).prox(vector([3.0, -2.0, 0.5]), 1.0, flat(3)), vector([1.5, -0.5, 0]))
    assert_close(Simplex(2.0).prox(vector([3.0, 2.0, -9.0]), 1.0, flat(3)), vector([1.5, 0.5, 0]))


def test_large_entries_keep_every_bit():
    v = vector([3.3, -1e30, 7.1])
    for part in (MCP(1.0, 3.0), SCAD(1.0, 3.0)):
        assert torch.equal(part.prox(v, 0.7, flat(3)), v)
    assert torch.equal(L1Ball(1e31).prox(v, 1.0, flat(3)), v)
    assert torch.equal(L2Ball(1e31).prox(v, 1.0, flat(3)), v)


@pytest.mark.parametrize("part", [MCP(0.6, 1e9), SCAD(0.6, 1e9)])
def test_the_non_convex_ones_tend_to_l1(part):
    v = normal(1, 200) * 5
    layout = flat(200)
    assert_close(part.prox(v, 0.8, layout), L1(0.6).prox(v, 0.8, layout), 1e-7)
    assert_close(part.value(v, layout), L1(0.6).value(v, layout), 1e-6)


def test_a_multiple_of_mcp_is_an_mcp():
    kappa, x = 0.3, np.linspace(-4, 4, 99)
    part = MCP(kappa * 1.2, 2.0 / kappa)
    assert_close(part.value(vector(x)[:, None], flat(1)), vector(kappa * ref.mcp(x, 1.2, 2.0)))
    assert part.rho == pytest.approx(kappa / 2.0)


@pytest.mark.parametrize("alpha", ref.ALPHAS)
def test_moreau_l1_and_the_largest_entry(alpha):
    """v = prox of alpha weight |.|_1 + projection on |.|_inf <= alpha weight."""
    v, layout = normal(2, 50) * 3, flat(50)
    bound = alpha * 0.7
    assert_close(L1(0.7).prox(v, alpha, layout) + Box(-bound, bound).prox(v, 1.0, layout), v)


@pytest.mark.parametrize("alpha", ref.ALPHAS)
def test_moreau_the_largest_entry_and_the_l1_ball(alpha):
    """v - projection on |.|_1 <= alpha is the proximal map of alpha |.|_inf."""
    v, layout = normal(3, 6) * 3, flat(6)
    p = v - L1Ball(alpha).prox(v, 1.0, layout)

    def objective(u):
        return alpha * u.abs().amax(-1) + (u - v).square().sum(-1) / 2

    for size in (1e-4, 1e-2, 1.0):
        assert bool((objective(p + size * normal(4, 500, 6)) >= objective(p)).all())


@pytest.mark.parametrize(("part", "rho"), [(MCP(0.6, 2.5), 0.4), (SCAD(0.6, 3.5), 0.4)])
def test_weak_convexity_is_exact(part, rho):
    assert part.rho == pytest.approx(rho)
    x = vector(np.linspace(-3, 3, 6001))
    h = part.value(x[:, None], flat(1))
    for share, convex in ((1.0, True), (0.99, False)):
        bends = (h + share * part.rho / 2 * x.square()).diff().diff()
        assert bool((bends > -1e-12).all()) is convex


@pytest.mark.parametrize("part", [p for p in PENALTIES.values() if p.rho == 0], ids=repr)
def test_the_others_are_convex(part):
    a, b = normal(5, 200, D), normal(6, 200, D)
    if part in SETS:
        a, b = part.prox(a, 1.0, LAYOUT), part.prox(b, 1.0, LAYOUT)
    ends = (part.value(a, LAYOUT) + part.value(b, LAYOUT)) / 2
    assert bool((part.value((a + b) / 2, LAYOUT) <= ends + 1e-12).all())


@pytest.mark.parametrize("part", [MCP(0.6, 2.5), SCAD(0.6, 3.5)])
def test_the_lipschitz_constant_is_reached(part):
    alpha, v = 1.5, vector(np.linspace(0, 3, 3001))
    slope = part.prox(v, alpha, flat(3001)).diff() / v.diff()
    assert float(slope.max()) == pytest.approx(1 / (1 - alpha * part.rho))


def split(x):
    return {
        "w": x[..., :6].reshape(*x.shape[:-1], 2, 3),
        "b": x[..., 6:8],
        "k": x[..., 8:16].reshape(*x.shape[:-1], 2, 4),
        "s": x[..., 16:],
    }


def groups(kind):
    """Entries of each group of LAYOUT, by hand."""
    if kind == "layer":
        return [range(6), range(6, 8), range(8, 16), [16]]
    return [range(3), range(3, 6), [6], [7], range(8, 12), range(12, 16), [16]]


@pytest.mark.parametrize("kind", ["row", "layer"])
@pytest.mark.parametrize("scaled", [False, True])
def test_group_lasso(kind, scaled):
    part, v, alpha = GroupLasso(0.4, kind, scaled), normal(7, D), 0.8
    v[3:6] = 0
    total, expected = 0.0, v.clone()
    for group in map(list, groups(kind)):
        weight = 0.4 * (len(group) ** 0.5 if scaled else 1)
        size = float(v[group].norm())
        total += weight * size
        expected[group] *= max(0.0, 1 - alpha * weight / size) if size else 0.0
    assert_close(part.value(v, LAYOUT), vector(total))
    assert_close(part.prox(v, alpha, LAYOUT), expected)
    whole = part.prox(v / 10, alpha, LAYOUT)
    assert bool((whole[list(groups(kind)[0])] == 0).all())  # a group goes as one


def test_group_lasso_of_single_entries_is_l1():
    v, layout = normal(8, 4, 7), flat(7)
    assert_close(GroupLasso(0.3).prox(v, 0.5, layout), L1(0.3).prox(v, 0.5, layout))
    assert_close(GroupLasso(0.3).value(v, layout), L1(0.3).value(v, layout))


def test_nuclear_lowers_singular_values():
    part, v, alpha = Nuclear(0.5), normal(9, D) * 2, 1.2
    out, total = split(part.prox(v, alpha, LAYOUT)), 0.0
    for name, matrix in split(v).items():
        if name in ("b", "s"):
            assert torch.equal(out[name], matrix)
            continue
        before, after = (np.linalg.svd(m.numpy(), compute_uv=False) for m in (matrix, out[name]))
        np.testing.assert_allclose(after, np.maximum(before - 0.6, 0), atol=1e-12)
        total += 0.5 * before.sum()
        g = ((matrix - out[name]) / alpha).numpy()  # in 0.5 times the dual ball, and aligned
        assert np.linalg.norm(g, 2) <= 0.5 + 1e-12
        assert (g * out[name].numpy()).sum() == pytest.approx(0.5 * after.sum())
    assert_close(part.value(v, LAYOUT), vector(total))
    strong = split(Nuclear(0.5).prox(v, 100.0, LAYOUT))
    assert float(strong["w"].abs().max()) == float(strong["k"].abs().max()) == 0


@pytest.mark.parametrize("radius", [0.1, 1.0, 5.0, 1e4])
def test_sums_by_bisection(radius):
    for seed in range(10):
        v = normal(seed, 30) * 2
        tau = ref.level(v.numpy(), radius)
        assert_close(Simplex(radius).prox(v, 1.0, flat(30)), (v - tau).clamp(min=0), 1e-9)
        size = v.abs()
        tau = max(ref.level(size.numpy(), radius), 0.0)
        assert_close(
            L1Ball(radius).prox(v, 1.0, flat(30)), v.sign() * (size - tau).clamp(min=0), 1e-9
        )


def test_sums_with_ties():
    v = vector([1.0, 1.0, 1.0, 0.0])
    assert_close(Simplex(1.5).prox(v, 1.0, flat(4)), vector([0.5, 0.5, 0.5, 0.0]))
    assert_close(L1Ball(1.5).prox(-v, 1.0, flat(4)), vector([-0.5, -0.5, -0.5, 0.0]))
    assert_close(Simplex(1.0).prox(vector([-5.0]), 1.0, flat(1)), vector([1.0]))


def test_float32_sums_of_long_vectors():
    v = torch.randn(300_000, generator=torch.Generator().manual_seed(0)) * 100
    for part in (Simplex(1.0), L1Ball(1.0), L1Ball(1e5)):
        p = part.prox(v, 1.0, flat(len(v)))
        assert p.dtype == torch.float32
        assert float(part.value(p, flat(len(v)))) == 0
        assert float(p.double().abs().sum()) == pytest.approx(
            getattr(part, "total", None) or part.radius, rel=1e-6
        )
    even = Simplex(1.0).prox(torch.full_like(v, 100.0), 1.0, flat(len(v)))
    assert_close(even, torch.full_like(v, 1 / len(v)), 1e-7)
    ball = L2Ball(3.0).prox(v, 1.0, flat(len(v)))
    assert float(ball.double().norm()) == pytest.approx(3.0, rel=1e-5)


@pytest.mark.parametrize("part", SETS, ids=repr)
def test_projections_are_nearest(part):
    v = normal(10, 40, D) * 3
    p = part.prox(v, 1.0, LAYOUT)
    for seed in range(5):
        z = part.prox(normal(20 + seed, 40, D) * 2, 1.0, LAYOUT)
        assert bool((((v - p) * (z - p)).sum(-1) <= 1e-9).all())


@pytest.mark.parametrize("part", SETS, ids=repr)
def test_projections_stay(part):
    v = normal(11, 40, D) * 3
    once = part.prox(v, 1.0, LAYOUT)
    assert not torch.equal(once, v)
    assert_close(part.prox(once, 7.0, LAYOUT), once)
    assert torch.equal(part.prox(v, 0.0, LAYOUT), once)  # alpha plays no part
    assert torch.equal(part.value(once, LAYOUT), torch.zeros(40, dtype=torch.float64))
    assert bool((part.value(v, LAYOUT) == float("inf")).all())
    assert float(part.value(once[0] * (1 + 1e-9), LAYOUT)) == 0
    assert float(part.value(once[0] * (1 + 1e-6), LAYOUT)) == float("inf")


def test_the_right_sum_is_not_enough():
    x = vector([[1.5, 0.0], [2.0, -0.5], [0.7, 0.7]])
    assert Simplex(1.5).value(x, flat(2)).tolist() == [0, float("inf"), float("inf")]


def test_a_box_may_be_open():
    v = vector([-3.0, 2e9])
    assert torch.equal(Box(0, float("inf")).prox(v, 1.0, flat(2)), vector([0.0, 2e9]))
    assert float(Box(0, float("inf")).value(vector([0.0, 1e300]), flat(2))) == 0
    assert float(Box(0, float("inf")).value(vector([-1e-300, 1.0]), flat(2))) == float("inf")


FUSIBLE = ["none", "l1:0.3", "l2:0.3", "elastic-net:0.3:0.2", "mcp:0.3", "scad:0.3", "0.5*mcp:1"]
FUSIBLE += ["box:-0.2:0.3", "l2-ball:0.7"]


@pytest.mark.parametrize("text", FUSIBLE)
def test_a_step_may_be_a_scalar_tensor(text):
    """As in compiled steps, where it changes; then 0 is a step as any other."""
    h, layout = penalties.get(text), Layout(("w",), ((50,),))
    v = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v[:, :2] = torch.tensor([0.0, torch.nan])
    assert h.is_fusible
    for alpha in (0.0, 0.4, 1.1):
        found = h.prox(v, torch.tensor(alpha, dtype=torch.float64), layout)
        torch.testing.assert_close(found, h.prox(v, alpha, layout), equal_nan=True)
    single = h.prox(v.float(), torch.tensor(0.4, dtype=torch.float64), layout)
    assert single.dtype == torch.float32


class Shifted(penalties.L1):
    """Has a map of its own, for which the promise of the inherited one does not hold."""

    def prox(self, v, alpha, layout):
        return super().prox(v.sort(-1).values, alpha, layout)


@pytest.mark.parametrize(
    "h", [*map(penalties.get, ["l1-ball", "simplex", "group-lasso", "nuclear"]), Shifted(0.1)]
)
def test_other_maps_are_not_fusible(h):
    assert not h.is_fusible
    assert not penalties.Scaled(2.0, h).is_fusible
