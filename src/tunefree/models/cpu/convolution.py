"""Convolutions of m clients, each with its own weights, for a CPU; samples last in memory.

With x (m, C, H, W, B), w (m, O, C, KH, KW), g (m, O, OH, OW, B), and cols(x) with a row for every
pixel of the kernel and a column for every output pixel of every sample:

    out[i]    = w[i] @ cols(x[i]) + b[i]
    grad_w[i] = g[i] @ cols(x[i])^T
    grad_x[i] = cols^T(w[i]^T @ g[i])        each number is added to the pixel it was read from

With few channels, the products then have long rows and elementwise operations are vectorised over
samples, which is faster than PyTorch's convolutions. With many channels, PyTorch's are called one
client after another. Written for the compiler, which turns cols^T into one loop; uncompiled it is
slow.
"""

from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv2d import (
    ConvGeometry,
    Pair,
    as_pair,
    clients_first,
    insert_zeros,
    materialize,
    output_size,
)

MANY_CHANNELS = 16  # of the images, from which PyTorch's convolution is faster
MAX_KERNEL = 49  # pixels of a kernel, above which cols^T would be too much code


class BackwardSpec(NamedTuple):
    """What the backward pass needs beyond tensors.

    Args:
        geometry: Stride, padding and dilation.
        size: Height and width of the images.
        needs_input_grad: Whether to compute the gradient in the images.
    """

    geometry: ConvGeometry
    size: Pair
    needs_input_grad: bool


def convolve(x: Tensor, w: Tensor, b: Tensor, geometry: ConvGeometry) -> Tensor:
    """Return the convolution of images (B, C, H, W) by weights (O, C, KH, KW), plus b (O,)."""
    out: Tensor = _CpuConvolution.apply(x, w, b, geometry)[0]  # type: ignore[no-untyped-call]
    return out


class _CpuConvolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, geometry: ConvGeometry) -> tuple[Tensor, Tensor]:
        out, cols = _convolve(x[None], w[None], b[None], geometry)
        return out[0], cols[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, _, geometry = inputs
        ctx.spec = BackwardSpec(geometry, (x.shape[-2], x.shape[-1]), ctx.needs_input_grad[0])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gx, gw, gb = _Gradients.apply(grads[0], *ctx.saved_tensors, ctx.spec)  # type: ignore[no-untyped-call]
        return gx if ctx.spec.needs_input_grad else None, gw, gb, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor, geometry: ConvGeometry
    ) -> tuple[tuple[Tensor, Tensor], int]:
        x, w, b = clients_first(info, dims[:3], x, w, b)
        return _convolve(x, w, b, geometry), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        g: Tensor, x: Tensor, w: Tensor, cols: Tensor, spec: BackwardSpec
    ) -> tuple[Tensor, Tensor, Tensor]:
        gx, gw, gb = _gradients(g[None], x[None], w[None], cols[None], spec)
        return gx[0], gw[0], gb[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, g: Tensor, x: Tensor, w: Tensor, cols: Tensor, spec: BackwardSpec
    ) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
        g, x, w, cols = clients_first(info, dims[:4], g, x, w, cols)
        return _gradients(g, x, w, cols, spec), 0


def _prefers_torch(w: Tensor) -> bool:
    """Return whether PyTorch's convolution by weights (m, O, C, KH, KW) is faster."""
    return w.shape[2] >= MANY_CHANNELS or w.shape[3] * w.shape[4] > MAX_KERNEL


def _convolve(x: Tensor, w: Tensor, b: Tensor, geometry: ConvGeometry) -> tuple[Tensor, Tensor]:
    """(m, B, C, H, W) -> (m, B, O, OH, OW), and the columns (m, C, KH, KW, OH, OW, B), if any."""
    if _prefers_torch(w):
        each = [torch.conv2d(*one, *geometry) for one in zip(x, w, b, strict=True)]
        return torch.stack(each), x.new_empty(len(x), 0)
    cols = _columns(x.movedim(1, -1), (w.shape[3], w.shape[4]), geometry)
    out = torch.bmm(w.flatten(2), _as_matrix(cols)) + b[:, :, None]
    return out.reshape(*w.shape[:2], *cols.shape[4:]).movedim(-1, 1), cols


def _gradients(
    g: Tensor, x: Tensor, w: Tensor, cols: Tensor, spec: BackwardSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in images (empty if not needed), weights and biases."""
    none = g.new_empty(len(g), 0)
    if _prefers_torch(w):
        needs = (spec.needs_input_grad, True, True)
        fixed = ([w.shape[1]], *spec.geometry, False, (0, 0), 1, needs)
        each = [
            torch.ops.aten.convolution_backward(*one, *fixed) for one in zip(g, x, w, strict=True)
        ]
        by_x, by_w, by_b = zip(*each, strict=True)
        return (
            torch.stack(by_x) if spec.needs_input_grad else none,
            torch.stack(by_w),
            torch.stack(by_b),
        )
    last = materialize(g.movedim(1, -1))
    flat = last.flatten(2)
    gw, gb = torch.bmm(flat, _as_matrix(cols).mT).reshape(w.shape), flat.sum(2)
    if not spec.needs_input_grad:
        return none, gw, gb
    parts = torch.bmm(w.flatten(2).mT, flat).reshape(len(w), *w.shape[2:], *last.shape[2:])
    return _columns_transposed(parts, spec).movedim(-1, 1), gw, gb


def _as_matrix(cols: Tensor) -> Tensor:
    """(m, C, KH, KW, OH, OW, B) -> (m, C KH KW, OH OW B)."""
    return cols.flatten(4).flatten(1, 3)


def _columns(x: Tensor, kernel: Pair, geometry: ConvGeometry) -> Tensor:
    """Return cols(x): (m, C, H, W, B) -> (m, C, KH, KW, OH, OW, B)."""
    stride, (high, wide), dilation = geometry
    x = materialize(F.pad(x, (0, 0, wide, wide, high, high)) if high or wide else x)
    m, channels, *sides, samples = x.shape
    out = output_size(as_pair(sides), kernel, stride, (0, 0), dilation)
    by = x.stride()
    steps = (by[2] * dilation[0], by[3] * dilation[1], by[2] * stride[0], by[3] * stride[1])
    view = x.as_strided((m, channels, *kernel, *out, samples), (by[0], by[1], *steps, by[4]))
    return view.contiguous()


def _columns_transposed(parts: Tensor, spec: BackwardSpec) -> Tensor:
    """Add every number to the pixel it was read from: the transpose of `_columns`."""
    stride, padding, dilation = spec.geometry
    total = None
    for a, b in product(range(parts.shape[2]), range(parts.shape[3])):
        part = insert_zeros(parts[:, :, a, b], stride)
        before = (a * dilation[0] - padding[0], b * dilation[1] - padding[1])
        ends = zip(spec.size, before, part.shape[2:4], strict=True)
        after = [n - e - s for n, e, s in ends]
        placed = F.pad(part, (0, 0, before[1], after[1], before[0], after[0]))
        total = placed if total is None else total + placed
    assert total is not None
    return materialize(total)
