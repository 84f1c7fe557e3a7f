"""Batched convolutions, pools and group normalisation equal vmap over PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tunefree.models.batched import VmapEngine
from tunefree.models.compiled.compiler import is_in_place_safe
from tunefree.models.compiled.mode import BatchedOpsMode
from tunefree.models.gpu import rewrite
from tunefree.models.loop import LoopEngine
from tunefree.models.losses import Batch
from tunefree.models.problem import Problem
from unit.models.gpu.plain_kernels import fake_kernels

pytestmark = pytest.mark.compiled_engines

CASES = {  # inputs, outputs, kernel, stride, padding, dilation, size
    "plain": (3, 5, (3, 3), 1, 0, 1, (8, 9)),
    "padded": (1, 4, (5, 5), 1, 2, 1, (7, 7)),
    "strided, with a rest": (4, 6, (3, 2), 2, 1, 1, (8, 9)),
    "lopsided": (4, 6, (3, 3), (2, 3), (1, 0), (2, 1), (11, 12)),
    "one pixel, strided": (2, 3, (1, 1), 2, 0, 1, (7, 6)),
    "padded beyond the kernel": (2, 3, (1, 1), 1, 3, 1, (5, 5)),
    "same": (2, 3, (3, 5), 1, "same", 1, (6, 7)),
    "same, uneven": (2, 3, (2, 2), 1, "same", 1, (6, 7)),
    "valid": (2, 3, (3, 3), 1, "valid", 1, (6, 7)),
    "one axis": (2, 3, (3,), 2, 1, 2, (13,)),
    "many channels": (16, 3, (3, 2), (1, 2), 1, 1, (6, 7)),
    "a wide kernel": (1, 2, (10, 5), 1, 3, 1, (8, 7)),
}


def problem(case, dtype=torch.float64):
    inputs, outputs, kernel, stride, padding, dilation, size = CASES[case]
    draw = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
        for shape in ((4, 3, inputs, *size), (4, outputs, inputs, *kernel), (4, outputs))
    )
    convolution = F.conv2d if len(size) == 2 else F.conv1d

    def loss(w, b, x):
        out = convolution(x, w, b, stride=stride, padding=padding, dilation=dilation)
        return out.float().sin().square().mean() if dtype == torch.bfloat16 else out.sin().mean()

    return vmap(grad_and_value(loss, argnums=(0, 1, 2))), (w, b, x)


def flat(result):
    grads, value = result
    return (*grads, value)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("samples_last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, samples_last):
    each, args = problem(case)
    expected = flat(each(*args))
    with BatchedOpsMode(samples_last):
        found = flat(each(*args))
        graph = make_fx(each)(*args)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    left = {str(n.target) for n in graph.graph.nodes if "convolution" in str(n.target)}
    own = case == "same, uneven" or (samples_last and case in ("many channels", "a wide kernel"))
    assert bool(left) == own  # PyTorch's own pads the two sides unlike


POOLS = {  # window, size, further arguments, and whether they are compared pixel by pixel
    "two by two": (2, (8, 6), {}, True),
    "with a rest": ((2, 3), (7, 8), {}, True),
    "side by side, said": (3, (9, 7), {"stride": 3}, True),
    "overlapping": (3, (9, 7), {"stride": 2, "padding": 1}, False),
    "large": (4, (8, 8), {}, False),
}


@pytest.mark.parametrize("samples_last", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("case", POOLS)
def test_pools(case, ties, samples_last):
    window, size, named, own = POOLS[case]
    x = torch.randn(4, 3, 2, *size, generator=torch.Generator().manual_seed(0)).double()
    x = x.relu().round() if ties else x

    def loss(x):
        out = F.max_pool2d(x, window, **named)
        return (out * torch.arange(out.numel()).reshape(out.shape)).sum()

    each = vmap(grad_and_value(loss))
    expected = each(x)
    with BatchedOpsMode(samples_last, pools=True):
        found = each(x)
        graph = make_fx(each)(x)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    assert own != any("max_pool" in str(n.target) for n in graph.graph.nodes)


@pytest.mark.parametrize("samples_last", [False, True])
def test_pools_hand_on_what_is_not_a_number(samples_last):
    x = torch.zeros(2, 1, 1, 4, 4)
    x[0, 0, 0, 0, 1] = x[1, 0, 0, 2, 2] = torch.nan
    each = vmap(lambda x: F.max_pool2d(x, 2))
    with BatchedOpsMode(samples_last, pools=True):
        assert torch.equal(
            each(x).isnan(), F.max_pool2d(x.flatten(0, 1), 2).reshape(2, 1, 1, 2, 2).isnan()
        )
    assert each(x).isnan().sum() == 2


def test_grouped_convolutions_are_left_alone():
    x, w = torch.randn(4, 2, 6, 5, 5), torch.randn(4, 6, 1, 3, 3)
    each = vmap(lambda x, w: F.conv2d(x, w, groups=6))
    with BatchedOpsMode():
        assert torch.equal(each(x, w), vmap(lambda x, w: F.conv2d(x, w, groups=6))(x, w))


@pytest.mark.parametrize("samples_last", [False, True])
def test_weights_or_images_that_all_clients_share(samples_last):
    x, w = torch.randn(4, 2, 3, 6, 6).double(), torch.randn(5, 3, 3, 3).double()
    image, weights = torch.randn(2, 3, 6, 6).double(), torch.randn(4, 5, 3, 3, 3).double()

    def loss(x, w):
        return F.conv2d(x, w, padding=1).square().mean()

    for axes, args in (((0, None), (x, w)), ((None, 0), (image, weights))):
        each = vmap(grad_and_value(loss, argnums=(0, 1)), in_dims=axes)
        expected = flat(each(*args))
        with BatchedOpsMode(samples_last):
            found = flat(each(*args))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.fixture
def kernel_calls(monkeypatch):
    return fake_kernels(monkeypatch)


@pytest.mark.parametrize("case", ["lopsided", "padded", "one axis"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_take_over_and_can_be_recorded(case, dtype, kernel_calls):
    each, (w, b, x) = problem(case, dtype)
    args = (w, torch.cat([b, b], 1)[:, : b.shape[1]], x)  # pieces of rows, as engines have them
    expected = flat(each(*args))
    with BatchedOpsMode():
        graph = make_fx(each)(*args)
        assert set(kernel_calls) == {"forward", "grad_input", "grad_weight"}
    found = flat(graph(*args))
    assert sum("tunefree.conv" in str(n.target) for n in graph.graph.nodes) == 3
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("kernel_calls")
@pytest.mark.parametrize("alone", [True, False])
def test_what_follows_a_convolution_is_done_at_once(alone):
    """Where it is relu, and nothing else reads what was before."""
    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(2, *shape, generator=draw) for shape in ((3, 2, 6, 6), (4, 2, 3, 3)))

    def loss(w, x):
        out = F.conv2d(x, w)
        return out.relu().sin().mean() + (0 if alone else out.mean())

    with BatchedOpsMode():
        graph = make_fx(vmap(grad_and_value(loss, argnums=(0, 1))))(w, x)
    expected = flat(graph(w, x))
    rewrite.merge_copies(graph)
    rewrite.fuse_conv_relu(graph)
    left = [node for node in graph.graph.nodes if node.target is torch.ops.aten.relu.default]
    assert bool(left) is not alone
    for a, b in zip(flat(graph(w, x)), expected, strict=True):
        assert torch.equal(a, b)


def test_autocast_reaches_the_products():
    each, args = problem("padded", torch.float32)
    with torch.autocast("cpu", torch.bfloat16), BatchedOpsMode():
        graph = make_fx(each)(*args)
    kinds = {n.meta["tensor_meta"].dtype for n in graph.graph.nodes if "bmm" in str(n.target)}
    assert kinds == {torch.bfloat16}
    (w, b, x), value = graph(*args)
    assert {t.dtype for t in (w, b, x)} == {torch.float32}
    torch.testing.assert_close(value.float(), flat(each(*args))[-1], rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("form", ["affine", "plain", "function"])
@pytest.mark.parametrize("shape", [(5, 6, 7, 3), (5, 6, 7), (5, 6)])
def test_group_normalisation(shape, form):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, *shape, generator=draw, dtype=torch.float64)
    x = x.movedim(2, -1).contiguous().movedim(-1, 2)  # channels last in memory
    w, b = torch.randn(2, 3, 6, generator=draw, dtype=torch.float64)

    def loss(x, w, b):
        if form == "function":
            out = torch.group_norm(x, 2, w, b, 1e-3)
        else:
            out = F.group_norm(x, 3, *((w, b) if form == "affine" else ()))
        return (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum()

    call = vmap(grad_and_value(loss, argnums=(0, 1, 2)))
    expected = [grad_and_value(loss, argnums=(0, 1, 2))(*row) for row in zip(x, w, b, strict=True)]
    with BatchedOpsMode():
        grads, values = call(x, w, b)
    for i, (slopes, value) in enumerate(expected):
        torch.testing.assert_close(values[i], value, rtol=1e-11, atol=1e-11)
        for mine, own in zip(grads, slopes, strict=True):
            torch.testing.assert_close(mine[i], own, rtol=1e-9, atol=1e-11)


def test_group_normalisation_under_autocast_is_exact_but_for_the_last_rounding():
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16), BatchedOpsMode():
        out = vmap(lambda row: F.group_norm(row.bfloat16()[None], 2))(x)
    assert out.dtype == torch.bfloat16
    exact = F.group_norm(x.bfloat16().float(), 2)
    torch.testing.assert_close(out[:, 0].float(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("corner", [0.0, -1e3])
def test_group_normalisation_far_from_zero(corner):
    """Sums that cancel: a mean a thousand times the spread; one pixel far from all others."""
    x = 1000 + torch.randn(3, 2, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    x[..., 0, 0] += corner
    with BatchedOpsMode():
        out = vmap(lambda row: F.group_norm(row, 2))(x)
    exact = F.group_norm(x.double().flatten(0, 1), 2).reshape(x.shape)
    error = (out.double() - exact).abs().max() / exact.abs().max()
    assert error < (5e-5 if corner == 0 else 5e-6)  # of numbers that differ by little, few digits


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize("whole_steps", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_for_a_cpu(whole_steps):
    """Few channels and many, a pool between them that leaves a rest of the images."""
    if whole_steps and not is_in_place_safe(torch.device("cpu")):
        pytest.skip("this version's compiler gets gradients only")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Problem(
            nn.Sequential(
                nn.Conv2d(2, 16, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 4, 2),
                nn.Tanh(), nn.Flatten(), nn.Linear(24, 3),
            )
        )  # fmt: skip
        y = net.start + 0.1 * torch.randn(4, net.layout.size)
        given = Batch(
            torch.randn(4, 5, 2, 7, 6),
            torch.randint(3, (4, 5)),
            torch.arange(5) < torch.tensor([5, 3, 5, 1])[:, None],
            torch.arange(4),
        )
    lr = torch.tensor([0.3, 0.1, 0.0, 0.5])
    expected, total = y, torch.zeros(4)
    for _ in range(3):
        losses, grads = LoopEngine(net).value_and_grad(expected, given)
        expected, total = expected - lr[:, None] * grads, total + (lr > 0) * losses
    engine = VmapEngine(net, compile=True)
    if whole_steps:
        engine.compile_descent(given)
        descent = engine.descent(4)
        descent.begin(y)
        for _ in range(3):
            descent.step(given, lr)
        found, sums = descent.end()
    else:
        found, sums = y, torch.zeros(4)
        for _ in range(3):
            losses, grads = engine.value_and_grad(found, given)
            found, sums = found - lr[:, None] * grads, sums + (lr > 0) * losses
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums, total, rtol=1e-4, atol=1e-5)
