"""What every penalty promises, whatever it computes."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields, is_dataclass

import pytest
import torch

from helpers import assert_close, normal
from tunefree import penalties
from tunefree.core.errors import ArgumentError
from tunefree.core.layout import Layout
from tunefree.penalties import (
    L1,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    Nuclear,
    Penalty,
    Scaled,
    Simplex,
    Zero,
    sparsity,
    stationarity,
)
from unit.penalties.cases import LAYOUT, PENALTIES, SETS, D, flat, vector


@pytest.fixture(params=PENALTIES)
def part(request):
    return PENALTIES[request.param]


def found():
    for info in pkgutil.iter_modules(penalties.__path__):
        module = importlib.import_module(f"tunefree.penalties.{info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                yield cls


def test_all_of_them_are_here():
    assert {type(p) for p in PENALTIES.values()} == set(found()) - {Penalty}
    assert list(penalties.__all__) == sorted(set(penalties.__all__))
    assert {cls.__name__ for cls in found()} <= set(penalties.__all__)


def test_is_a_described_frozen_dataclass(part):
    cls = type(part)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert cls() == cls()
    doc = inspect.getmodule(cls).__doc__
    assert "Differences from the paper" in doc
    assert re.search(r"^ {4}.*prox\(v, alpha\).*=", doc, re.M)
    for field in fields(cls):
        assert re.search(rf"^ +{field.name}: \S", cls.__doc__, re.M), field.name


def test_a_penalty_needs_both_hooks():
    class Half(Penalty):
        def value(self, x, layout):
            return x.sum(-1)

    with pytest.raises(TypeError, match="prox"):
        Half()


def test_inputs_stay_and_calls_repeat(part):
    v = normal(0, 5, D)
    before = v.clone()
    p, h = part.prox(v, 0.5, LAYOUT), part.value(v, LAYOUT)
    assert torch.equal(v, before)
    assert torch.equal(part.prox(v, 0.5, LAYOUT), p)
    assert torch.equal(part.value(v, LAYOUT), h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_shape_and_dtype_are_kept(part, dtype, lead):
    v = normal(1, *lead, D).to(dtype)
    for alpha in (0.0, 0.5):
        p = part.prox(v, alpha, LAYOUT)
        assert (p.shape, p.dtype, p.device) == (v.shape, dtype, v.device)
        h = part.value(p, LAYOUT)
        assert (h.shape, h.dtype, h.device) == (lead, dtype, v.device)
        assert_close(p.double(), part.prox(v.double(), alpha, LAYOUT), 1e-5)


def test_rows_are_independent(part):
    v = normal(2, 2, 3, D)
    p, h = part.prox(v, 0.5, LAYOUT), part.value(v, LAYOUT)
    for i in range(2):
        for j in range(3):
            assert_close(p[i, j], part.prox(v[i, j], 0.5, LAYOUT))
            assert_close(h[i, j], part.value(v[i, j], LAYOUT))
    across = v.transpose(0, 1)  # strided rows
    assert_close(part.prox(across, 0.5, LAYOUT), p.transpose(0, 1))


def test_a_row_that_diverged_stays_so_alone(part):
    for bad in (float("nan"), float("inf")):
        v = normal(3, 3, D)
        v[1, 2] = bad
        p = part.prox(v, 0.5, LAYOUT)
        for k in (0, 2):
            assert_close(p[k], part.prox(v[k], 0.5, LAYOUT))
            assert_close(part.value(v, LAYOUT)[k], part.value(v[k], LAYOUT))
        if bad != bad:
            assert not bool(p[1].isfinite().all())
            assert isinstance(part, Zero) or not float(part.value(v, LAYOUT)[1]) <= 1e9


def test_subgradient_at_the_output(part):
    """h(z) >= h(p) + <(v - p)/alpha, z - p> - (rho/2) |z - p|^2 for all z."""
    for alpha in (0.3, 1.0, 2.0):
        v = 2 * normal(4, 60, 1, D)
        p = part.prox(v, alpha, LAYOUT)
        g = (v - p) / alpha
        for size in (0.01, 1.0, 5.0):
            z = p + size * normal(5, 1, 80, D)
            z = part.prox(z, 1.0, LAYOUT) if part in SETS else z
            low = part.value(p, LAYOUT) + (g * (z - p)).sum(-1)
            low = low - part.rho / 2 * (z - p).square().sum(-1)
            assert bool((part.value(z, LAYOUT) >= low - 1e-9).all())


def test_distances_shrink_as_promised(part):
    """Firmly non-expansive when convex; Lipschitz with 1/(1 - alpha rho) always."""
    for alpha in (0.3, 1.0, 2.0):
        a, b = 2 * normal(6, 500, D), normal(7, 500, D)
        b[250:] = a[250:] + 0.01 * b[250:]
        moved, given = part.prox(a, alpha, LAYOUT) - part.prox(b, alpha, LAYOUT), a - b
        if part.rho == 0:
            assert bool((moved.square().sum(-1) <= (moved * given).sum(-1) + 1e-12).all())
        bound = given.norm(dim=-1) / (1 - alpha * part.rho)
        assert bool((moved.norm(dim=-1) <= bound + 1e-12).all())


def test_no_step_no_move(part):
    v = normal(8, D)
    if part not in SETS:
        assert torch.equal(part.prox(v, 0.0, LAYOUT), v)


def test_zero_is_kept(part):
    zero = torch.zeros(2, D, dtype=torch.float64)
    if not isinstance(part, Simplex):
        assert torch.equal(part.prox(zero, 0.5, LAYOUT), zero)
        assert torch.equal(part.value(zero, LAYOUT), zero[:, 0])


def test_a_weight_of_zero_does_nothing():
    v = normal(9, 3, D)
    v[1] = 0
    for cls in (L1, ElasticNet, MCP, SCAD, GroupLasso, Nuclear):
        part = cls(0.0, 0.0) if cls is ElasticNet else cls(0.0)
        assert torch.equal(part.prox(v, 50.0, LAYOUT), v)
        assert float(part.value(v, LAYOUT).abs().max()) == 0
        assert part.rho == 0


def test_a_weight_that_vanishes_in_float32():
    v = torch.zeros(D)
    assert torch.equal(GroupLasso(1e-30).prox(v, 1e-30, LAYOUT), v)


def test_empty_tensors():
    layout = Layout(("e", "w", "f"), ((0, 4), (2, 2), (3, 0)))
    for part in PENALTIES.values():
        v = normal(10, 3, 4)
        p = part.prox(v, 0.5, layout)
        assert p.shape == (3, 4)
        assert_close(p, part.prox(v, 0.5, Layout(("w",), ((2, 2),))))
        assert_close(part.value(v, layout), part.value(v, Layout(("w",), ((2, 2),))))


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_steps_that_are_none(part, alpha):
    sentence = rf"\(alpha=\.\.\.\) must be a finite number >= 0, got {alpha!r}\.$"
    with pytest.raises(ArgumentError, match="^fedcanon" + sentence):
        part.check(alpha, "fedcanon")
    with pytest.raises(ArgumentError, match=rf"^{type(part).__name__}\.prox" + sentence):
        part.prox(normal(0, D), alpha, LAYOUT)


@pytest.mark.parametrize(
    ("part", "limit", "text"),
    [
        (MCP(0.5, 3.0), 3.0, "MCP(weight=0.5, gamma=3.0)"),
        (SCAD(0.5, 3.7), 2.7, "SCAD(weight=0.5, a=3.7)"),
        (MCP(0.5, 49.0), 49.0, "MCP(weight=0.5, gamma=49.0)"),  # 49 (1/49) < 1 in floating point
    ],
)
def test_steps_that_are_too_long(part, limit, text):
    part.check(0.999 * limit, "fedcanon")
    for alpha in (limit, 1.5 * limit):
        with pytest.raises(ArgumentError) as error:
            part.check(alpha, "fedcanon")
        assert str(error.value) == (
            f"Cannot use {text} with fedcanon(alpha={alpha!r}). This is because its proximal map "
            f"needs alpha < 1/rho = {limit:g}; take a smaller alpha or a penalty with a "
            "smaller rho."
        )
        with pytest.raises(ArgumentError, match=r"prox\(alpha="):
            part.prox(normal(0, D), alpha, LAYOUT)


def is_convex(part):
    """Whether h(middle) <= mean of h at both ends, on many segments inside the set of h."""
    ends = [normal(seed, 400, D) for seed in (31, 32)]
    if part in SETS:
        ends = [part.prox(end, 1.0, LAYOUT) for end in ends]
    above = part.value(sum(ends) / 2, LAYOUT) - sum(part.value(e, LAYOUT) for e in ends) / 2
    return bool((above <= 1e-12).all())


def test_any_step_is_taken_by_convex_penalties_only(part):
    """Convexity is measured, so that a wrong rho cannot hide behind itself."""
    assert is_convex(part) == (not isinstance(part, MCP | SCAD | Scaled))
    assert is_convex(part) == (part.rho == 0)
    if is_convex(part):
        part.check(1e12, "fedcanon")
    else:
        with pytest.raises(ArgumentError, match="needs alpha < 1/rho"):
            part.check(1e12, "fedcanon")


BAD = [-0.1, float("nan"), float("inf"), "1", True, None]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("case", ["L1", "L2", "MCP", "SCAD", "GroupLasso", "Nuclear"])
def test_weights_out_of_range(case, value):
    sentence = rf"^{case}\(weight=\.\.\.\) must be a finite number >= 0, got {value!r}\.$"
    with pytest.raises(ArgumentError, match=sentence):
        getattr(penalties, case)(value)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["l1", "l2"])
def test_elastic_net_out_of_range(name, value):
    with pytest.raises(ArgumentError, match=rf"^ElasticNet\({name}=.* >= 0, got {value!r}\.$"):
        ElasticNet(**{name: value})


@pytest.mark.parametrize("value", [*BAD, 0])
@pytest.mark.parametrize(
    ("cls", "name"),
    [(MCP, "gamma"), (L1Ball, "radius"), (L2Ball, "radius"), (Simplex, "total")],
)
def test_sizes_out_of_range(cls, name, value):
    with pytest.raises(ArgumentError, match=rf"^{cls.__name__}\({name}=.* > 0, got {value!r}\.$"):
        cls(**{name: value})


@pytest.mark.parametrize("value", [*BAD, 2, 1.5])
def test_scad_a_out_of_range(value):
    with pytest.raises(ArgumentError, match=rf"^SCAD\(a=.* between 2 and inf, got {value!r}\.$"):
        SCAD(a=value)


@pytest.mark.parametrize("value", [float("nan"), "1", True, None])
@pytest.mark.parametrize("name", ["low", "high"])
def test_bounds_that_are_none(name, value):
    with pytest.raises(ArgumentError, match=rf"^Box\({name}=.* must be a number, got {value!r}\.$"):
        Box(**{name: value})


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, -1.0), (float("inf"),) * 2])
def test_bounds_in_the_wrong_order(low, high):
    with pytest.raises(ArgumentError, match=rf"must have low < high, got {low} and {high}\.$"):
        Box(low, high)


def test_group_lasso_choices():
    with pytest.raises(ArgumentError, match=r"GroupLasso groups 'rows'\. Did you mean 'row'"):
        GroupLasso(1.0, "rows")
    with pytest.raises(ArgumentError, match=r"^GroupLasso\(scaled=.* True or False, got 1\.$"):
        GroupLasso(scaled=1)


def test_sparsity():
    x = torch.tensor([[0.0, -0.0, 1e-30, 2.0], [1.0, 1.0, 1.0, 1.0]])
    assert torch.equal(sparsity(x), torch.tensor([0.5, 0.0]))
    assert float(sparsity(L1(1.0).prox(vector([0.5, 3.0, -0.2, 1.0]), 1.0, flat(4)))) == 0.75


def test_stationarity_of_a_lasso():
    """f = |x - b|^2 / 2 has the solution soft(b, weight)."""
    b, part = vector([[3.0, -0.2, 1.0], [0.1, 0.2, -4.0]]), L1(0.5)
    best = vector([[2.5, 0.0, 0.5], [0.0, 0.0, -3.5]])
    for alpha in (0.1, 1.0, 5.0):
        assert_close(stationarity(part, best, best - b, alpha, flat(3)), vector([0.0, 0.0]), 1e-12)
        assert bool((stationarity(part, b, b - b, alpha, flat(3)) > 0.1).all())


def test_stationarity_without_a_penalty_is_the_gradient():
    x, grad = normal(11, 4, D), normal(12, 4, D)
    for alpha in (0.01, 3.0):
        assert_close(stationarity(Zero(), x, grad, alpha, LAYOUT), grad.norm(dim=-1), 1e-9)


def test_stationarity_needs_a_step():
    with pytest.raises(ArgumentError, match=r"^stationarity\(alpha=.* > 0, got 0\.$"):
        stationarity(Zero(), normal(0, D), normal(1, D), 0, LAYOUT)
    with pytest.raises(ArgumentError, match=r"with stationarity\(alpha=4\.0\)"):
        stationarity(MCP(), normal(0, D), normal(1, D), 4.0, LAYOUT)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_agrees_on_a_gpu(part):
    v = normal(13, 3, D)
    p = part.prox(v.cuda(), 0.5, LAYOUT)
    assert p.device.type == part.value(p, LAYOUT).device.type == "cuda"
    assert_close(p.cpu(), part.prox(v, 0.5, LAYOUT), 1e-9)
    assert_close(part.value(v.cuda(), LAYOUT).cpu(), part.value(v, LAYOUT), 1e-9)
