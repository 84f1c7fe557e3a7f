"""Convolutions of m clients on a CPU, samples last in memory.

x (m, C, H, W, B), w (m, O, C, KH, KW) and g (m, O, OH, OW, B); cols has a row for every pixel of
the kernel and a column for every output pixel of every sample:

    out[i]    = w[i] @ cols(x[i]) + b[i]
    grad_w[i] = g[i] @ cols(x[i])^T
    grad_x[i] = back(w[i]^T @ g[i])          each number added to the pixel it was read from

Products with few channels then have long rows, and whatever goes over images pixel by pixel fills
vectors with samples: PyTorch's own are slower where channels are few. Where they are many, its own
convolutions are called, one client after another. Made for the compiler, which turns `back` into
one loop; as operations one by one it is slow.
"""

from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .products import Form, Two, rows, written

MANY = 16  # channels of the images from which PyTorch's own convolution is faster
WIDE = 49  # pixels of a kernel above which `back` would be too much code


class Shape(NamedTuple):
    """What a convolution's gradients have to know of it.

    Args:
        form: Stride, padding and dilation.
        size: Height and width of the images.
        input: Whether the gradient by the images is asked for.
    """

    form: Form
    size: Two
    input: bool


def convolve(x: Tensor, w: Tensor, b: Tensor, form: Form) -> Tensor:
    """Return the convolution of images (B, C, H, W) by weights (O, C, KH, KW), plus b (O,)."""
    out: Tensor = _Convolution.apply(x, w, b, form)[0]  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        out, cols = _convolved(x[None], w[None], b[None], form)
        return out[0], cols[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, _, form = inputs
        ctx.shape = Shape(form, (x.shape[-2], x.shape[-1]), ctx.needs_input_grad[0])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gx, gw, gb = _Gradients.apply(grads[0], *ctx.saved_tensors, ctx.shape)  # type: ignore[no-untyped-call]
        return gx if ctx.shape.input else None, gw, gb, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor, form: Form
    ) -> tuple[tuple[Tensor, Tensor], int]:
        x, w, b = rows(info, dims[:3], x, w, b)
        return _convolved(x, w, b, form), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        g: Tensor, x: Tensor, w: Tensor, cols: Tensor, shape: Shape
    ) -> tuple[Tensor, Tensor, Tensor]:
        gx, gw, gb = _gradients(g[None], x[None], w[None], cols[None], shape)
        return gx[0], gw[0], gb[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, g: Tensor, x: Tensor, w: Tensor, cols: Tensor, shape: Shape
    ) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
        g, x, w, cols = rows(info, dims[:4], g, x, w, cols)
        return _gradients(g, x, w, cols, shape), 0


def _own(w: Tensor) -> bool:
    """Return whether PyTorch's own convolution by weights (m, O, C, KH, KW) is better."""
    return w.shape[2] >= MANY or w.shape[3] * w.shape[4] > WIDE


def _convolved(x: Tensor, w: Tensor, b: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """(m, B, C, H, W) -> (m, B, O, OH, OW), and the columns (m, C, KH, KW, OH, OW, B), if any."""
    if _own(w):
        each = [torch.conv2d(*one, *form) for one in zip(x, w, b, strict=True)]
        return torch.stack(each), x.new_empty(len(x), 0)
    cols = _columns(x.movedim(1, -1), (w.shape[3], w.shape[4]), form)
    out = torch.bmm(w.flatten(2), _flat(cols)) + b[:, :, None]
    return out.reshape(*w.shape[:2], *cols.shape[4:]).movedim(-1, 1), cols


def _gradients(
    g: Tensor, x: Tensor, w: Tensor, cols: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by images (none where nobody asks), weights and biases."""
    none = g.new_empty(len(g), 0)
    if _own(w):
        fixed = ([w.shape[1]], *shape.form, False, (0, 0), 1, (shape.input, True, True))
        each = [
            torch.ops.aten.convolution_backward(*one, *fixed) for one in zip(g, x, w, strict=True)
        ]
        by_x, by_w, by_b = zip(*each, strict=True)
        return torch.stack(by_x) if shape.input else none, torch.stack(by_w), torch.stack(by_b)
    last = written(g.movedim(1, -1))
    flat = last.flatten(2)
    gw, gb = torch.bmm(flat, _flat(cols).mT).reshape(w.shape), flat.sum(2)
    if not shape.input:
        return none, gw, gb
    parts = torch.bmm(w.flatten(2).mT, flat).reshape(len(w), *w.shape[2:], *last.shape[2:])
    return _back(parts, shape).movedim(-1, 1), gw, gb


def _flat(cols: Tensor) -> Tensor:
    """(m, C, KH, KW, OH, OW, B) -> (m, C KH KW, OH OW B)."""
    return cols.flatten(4).flatten(1, 3)


def _columns(x: Tensor, kernel: Two, form: Form) -> Tensor:
    """Return what every pixel of the kernel reads: (m, C, H, W, B) -> (m, C, KH, KW, OH, OW, B)."""
    stride, (high, wide), dilation = form
    x = written(F.pad(x, (0, 0, wide, wide, high, high)) if high or wide else x)
    m, channels, *sides, samples = x.shape
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(sides, kernel, stride, dilation, strict=True)
    ]
    by = x.stride()
    steps = (by[2] * dilation[0], by[3] * dilation[1], by[2] * stride[0], by[3] * stride[1])
    view = x.as_strided((m, channels, *kernel, *out, samples), (by[0], by[1], *steps, by[4]))
    return view.contiguous()


def _back(parts: Tensor, shape: Shape) -> Tensor:
    """Add every number to the pixel it was read from: the transpose of `_columns`."""
    stride, padding, dilation = shape.form
    total = None
    for a, b in product(range(parts.shape[2]), range(parts.shape[3])):
        part = _apart(parts[:, :, a, b], stride)
        before = (a * dilation[0] - padding[0], b * dilation[1] - padding[1])
        ends = zip(shape.size, before, part.shape[2:4], strict=True)
        after = [n - e - s for n, e, s in ends]
        placed = F.pad(part, (0, 0, before[1], after[1], before[0], after[0]))
        total = placed if total is None else total + placed
    assert total is not None
    return written(total)


def _apart(x: Tensor, stride: Two) -> Tensor:
    """Put zeros between the pixels (m, C, OH, OW, B), as the stride skipped them."""
    if stride == (1, 1):
        return x
    m, c, high, wide, b = x.shape
    x = x.reshape(m, c, high, 1, wide, 1, b)
    x = F.pad(x, (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
    x = x.reshape(m, c, high * stride[0], wide * stride[1], b)
    return x[:, :, : (high - 1) * stride[0] + 1, : (wide - 1) * stride[1] + 1]
