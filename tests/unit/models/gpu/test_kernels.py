"""Convolutions with one weight per client: values and gradients against float64 autograd.

On a GPU the compiled kernels run; elsewhere Triton's interpreter does, where TRITON_INTERPRET=1
asks for it.
"""

import importlib.util
import os

import pytest
import torch
from torch.nn import functional as F

from tunefree.core.errors import ArgumentError
from tunefree.models.gpu import kernels
from tunefree.models.gpu.kernels import Blocks

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
HERE = importlib.util.find_spec("triton") is not None and (
    INTERPRETED or kernels.is_available(DEVICE)
)
needs_triton = pytest.mark.skipif(not HERE, reason="needs triton and a GPU, or TRITON_INTERPRET=1")

# Triton's interpreter makes integers of one-element arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# m, B, (H, W), C, O, kernel, stride, padding, dilation
CASES = {
    "one channel": (2, 3, (8, 8), 1, 32, (3, 3), (1, 1), (0, 0), (1, 1)),
    "three channels, padded": (3, 2, (7, 9), 3, 10, (3, 3), (1, 1), (1, 1), (1, 1)),
    "five channels, stride 2": (2, 2, (9, 8), 5, 33, (3, 3), (2, 2), (1, 1), (1, 1)),
    "32 channels": (2, 2, (6, 7), 32, 10, (3, 3), (1, 1), (0, 0), (1, 1)),
    "40 channels, padded": (2, 2, (5, 6), 40, 33, (3, 3), (1, 1), (1, 1), (1, 1)),
    "64 channels, stride 2": (1, 2, (8, 8), 64, 40, (3, 3), (2, 2), (1, 1), (1, 1)),
    "shortcut": (2, 2, (8, 7), 33, 64, (1, 1), (2, 2), (0, 0), (1, 1)),
    "dilated": (2, 2, (9, 9), 5, 10, (3, 3), (1, 1), (2, 2), (2, 2)),
    "dilation and stride share a factor": (1, 2, (11, 10), 4, 10, (3, 3), (2, 2), (1, 2), (2, 2)),
    "dilation 2, stride 3": (1, 2, (11, 13), 33, 10, (3, 4), (3, 3), (2, 1), (2, 2)),
    "lopsided": (2, 1, (10, 6), 32, 16, (5, 2), (2, 1), (3, 0), (1, 2)),
    "wide kernel, few pixels": (2, 1, (3, 3), 3, 10, (5, 5), (1, 1), (2, 2), (1, 1)),
    "rows no window reaches": (1, 1, (8, 9), 3, 10, (2, 2), (4, 5), (0, 0), (1, 1)),
}
MODES = {"float32": (torch.float32, False, 1e-5), "tf32": (torch.float32, True, 2e-3)}
MODES["bfloat16"] = (torch.bfloat16, True, 1e-2)


def problem(case, dtype):
    """Return x, w, g, b rounded to `dtype`, and the float64 output and gradients they have."""
    m, B, size, C, O, kernel, stride, padding, dilation = case  # noqa: E741
    random = torch.Generator().manual_seed(0)
    x = torch.randn(m, B, *size, C, generator=random).to(dtype)
    w = torch.randn(m, *kernel, C, O, generator=random).to(dtype)
    bias = torch.randn(m, O, generator=random).to(dtype)
    leaves = [t.double().requires_grad_() for t in (x, w)]
    out = torch.stack(
        [
            F.conv2d(a.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1), b, stride, padding, dilation)
            for a, k, b in zip(*leaves, bias.double(), strict=True)
        ]
    ).permute(0, 1, 3, 4, 2)
    g = torch.randn(out.shape, generator=random).to(dtype)
    grads = torch.autograd.grad(out, leaves, g.double())
    return [t.to(DEVICE) for t in (x, w, g, bias)], [t.detach() for t in (out, *grads)]


def close(got, expected, tolerance):
    assert got.shape == expected.shape
    error = (got.cpu().double() - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"relative error {error:.1e}"


@needs_triton
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, mode):
    *_, size, _, _, kernel, stride, padding, dilation = CASES[name]
    dtype, tf32, tolerance = MODES[mode]
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    (x, w, g, b), (out, grad_x, grad_w) = problem(CASES[name], dtype)
    how = (stride, padding, dilation, tf32)
    for got, expected, kind in (
        (kernels.forward(x, w, *how, bias=b), out, dtype),
        (kernels.forward(x, w, *how, bias=b, relu=True), out.relu(), dtype),
        (kernels.forward(x, w, *how), out - b.cpu().double()[:, None, None, None], dtype),
        (kernels.grad_input(g, w, size, *how), grad_x, dtype),
        (kernels.grad_weight(x, g, kernel, *how).sum(0), grad_w, torch.float32),
    ):
        assert got.dtype == kind
        close(got, expected, tolerance)


@needs_triton
@pytest.mark.parametrize("name", ["three channels, padded", "64 channels, stride 2", "lopsided"])
@pytest.mark.parametrize("flat", [False, True])
def test_any_blocks_will_do(name, flat):
    *_, size, _, _, kernel, stride, padding, dilation = CASES[name]
    (x, w, g, b), (out, grad_x, grad_w) = problem(CASES[name], torch.float32)
    how = (stride, padding, dilation, False)
    at = Blocks(64, 16, 16, warps=4, stages=2, flat=flat, parts=3)
    close(kernels.forward(x, w, *how, blocks=at, bias=b), out, 1e-5)
    close(kernels.grad_input(g, w, size, *how, blocks=at), grad_x, 1e-5)
    close(kernels.grad_weight(x, g, kernel, *how, blocks=at).sum(0), grad_w, 1e-5)


@needs_triton
def test_the_weight_may_be_stored_output_channels_first():
    case = CASES["five channels, stride 2"]
    (x, w, g, b), (out, grad_x, *_) = problem(case, torch.float32)
    turned = w.permute(0, 4, 1, 2, 3).contiguous().permute(0, 2, 3, 4, 1)
    how = (*case[6:], False)
    close(kernels.forward(x, turned, *how, bias=b), out, 1e-5)
    close(kernels.grad_input(g, turned, case[2], *how), grad_x, 1e-5)


@needs_triton
def test_the_same_inputs_give_the_same_bits():
    case = CASES["40 channels, padded"]
    (x, _, g, _), _ = problem(case, torch.float32)
    at = Blocks(64, 64, 16, parts=2)
    one, two = (kernels.grad_weight(x, g, case[5], *case[6:], True, blocks=at) for _ in range(2))
    assert torch.equal(one, two)


@needs_triton
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 70, 150, 10), (2, 64, 128, 16), (1, 5, 300, 32)])
def test_weights_move_along_products(shape, kind):
    if INTERPRETED and kind == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    m, rows, cols, k = shape
    random = torch.Generator().manual_seed(0)
    part = torch.randn(m, rows, cols, generator=random)
    left = torch.randn(m, k, rows, generator=random).to(kind)
    right = torch.randn(m, k, cols, generator=random).to(kind)
    lr = torch.rand(m, generator=random)
    lr[0], right[0, 0, 0] = (0.0, torch.inf) if m > 1 else (lr[0], right[0, 0, 0])
    slope = torch.bmm(left.mT.double(), right.double())
    expected = torch.where(lr[:, None, None] > 0, part - lr[:, None, None] * slope, part.double())
    part, left, right, lr = (t.to(DEVICE) for t in (part, left, right, lr))
    low = part.to(torch.bfloat16)
    kernels.descend(part, low, left.mT, right, lr)
    close(part, expected, 2e-3)
    assert bool(((low.float() - part).abs() <= part.abs() / 128).all())
    before, unmoved = part.clone(), low.clone()
    kernels.descend(part, None, left.mT, right, lr)
    assert torch.equal(low, unmoved)
    close(before - part, (lr[:, None, None].cpu() * slope).nan_to_num(0, 0, 0), 2e-3)


@needs_triton
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7, 3), (2, 3, 8, 8, 64), (1, 2, 1, 1, 300)])
def test_sums_over_pixels(shape, kind):
    random = torch.Generator().manual_seed(0)
    x, g = (5 + torch.randn(2, *shape, generator=random)).to(DEVICE, kind)
    centre = torch.randn(*shape[:2], shape[4], generator=random).to(DEVICE)
    away = x.cpu().double() - centre.cpu().double()[:, :, None, None]
    for by, factor in ((None, away), (g, g.cpu().double())):
        first, second = kernels.channel_sums(x, centre, by)
        assert first.dtype == second.dtype == torch.float32
        close(first, factor.sum((2, 3)), 1e-5)
        close(second, (factor * away).sum((2, 3)), 1e-5)


def test_strided_tensors_are_refused():
    x, w = torch.zeros(1, 1, 4, 4, 2), torch.zeros(1, 3, 3, 2, 5)
    how = ((1, 1), (0, 0), (1, 1), True)
    with pytest.raises(ArgumentError, match=r"Images must be contiguous"):
        kernels.forward(x.transpose(2, 3), w, *how)
    with pytest.raises(ArgumentError, match=r"w=\.\.\.\) must be contiguous"):
        kernels.forward(x, w.transpose(1, 2), *how)
    with pytest.raises(ArgumentError, match=r"Biases must be contiguous, got strides \(7, 1\)"):
        kernels.forward(x, w, *how, bias=torch.zeros(2, 7)[:, :5])


def test_strided_weights_and_centres_are_refused():
    part, left, right = torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 4, 3)
    with pytest.raises(ArgumentError, match=r"descend\(part=\.\.\.\) must be contiguous"):
        kernels.descend(part.mT, None, right.mT, left.mT, torch.ones(1))
    with pytest.raises(ArgumentError, match=r"channel_sums\(centre=\.\.\.\) must be contiguous"):
        kernels.channel_sums(torch.zeros(2, 1, 2, 2, 3), torch.zeros(3, 1, 2).transpose(0, 2))


def test_products_with_long_sums_are_refused():
    part, left, right = torch.zeros(1, 2, 3), torch.zeros(1, 2, 33), torch.zeros(1, 33, 3)
    with pytest.raises(ArgumentError, match=r"at most 32 columns, got 33"):
        kernels.descend(part, None, left, right, torch.ones(1))


def test_available_says_no_without_a_gpu():
    assert not kernels.is_available(torch.device("cpu"))
