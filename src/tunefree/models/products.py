"""Products behind the convolutions of m clients, channels last.

x (m, B, H, W, C), w (m, KH, KW, C, O), b (m, O) and g (m, B, OH, OW, O); cols is the window of
every output pixel as a row:

    out[i]    = cols(x[i]) @ w[i] + b[i]
    grad_w[i] = cols(x[i])^T @ g[i]
    grad_b[i] = sum of g[i] over its pixels
    grad_x[i] = cols(spread(g[i])) @ flip(w[i])^T

In tf32 or bfloat16 on a GPU with Triton, the same sums without writing windows (`kernels`).
"""

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels

Two: TypeAlias = tuple[int, int]
Form: TypeAlias = tuple[Two, Two, Two]
"""Stride, padding and dilation of a convolution over two axes."""


def forward(x: Tensor, w: Tensor, b: Tensor | None, form: Form) -> Tensor:
    """Return the convolutions: (m, B, H, W, C), (m, KH, KW, C, O) -> (m, B, OH, OW, O)."""
    if _in_kernels(x):
        first = x.dtype == torch.float32  # tf32 reads weights best with c innermost
        packed = w.permute(0, 4, 1, 2, 3) if first else w
        b = None if b is None else b.contiguous()  # of rows, it is a piece of each
        out: Tensor = _kernel_forward(
            written(x), written(packed), b, first, *_numbers(form), _tf32(), False
        )
        return out
    stride, padding, dilation = form
    kernel = (w.shape[1], w.shape[2])
    cols = _windows(_padded(x, padding, padding), kernel, stride, dilation)
    out = torch.bmm(cols.flatten(1, 3), w.flatten(1, 3))
    out = out if b is None else out + b[:, None]
    return out.reshape(*cols.shape[:4], -1)


def grad_input(g: Tensor, w: Tensor, size: Two, form: Form) -> Tensor:
    """Return the gradient by the images, (m, B, H, W, C), from that by the outputs."""
    if _in_kernels(g):
        numbers = _numbers(form)
        out: Tensor = _kernel_input(written(g), written(w), list(size), *numbers, _tf32())
        return out
    stride, padding, dilation = form
    kernel = (w.shape[1], w.shape[2])
    spread = _spread(g, stride)
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    ends = zip(size, dilation, kernel, spread.shape[2:4], before, strict=True)
    after = [n + d * (k - 1) - s - b for n, d, k, s, b in ends]
    around = _padded(spread, (before[0], before[1]), (after[0], after[1]))
    cols = _windows(around, kernel, (1, 1), dilation)
    out = torch.bmm(cols.flatten(1, 3), w.flip((1, 2)).transpose(3, 4).flatten(1, 3))
    return out.reshape(*cols.shape[:4], -1)


def grad_weight(x: Tensor, g: Tensor, kernel: Two, form: Form, bias: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients by the weights, (m, KH, KW, C, O), and, if asked, the biases, (m, O)."""
    if _in_kernels(x):
        numbers, g = _numbers(form), written(g)
        parts: Tensor = _kernel_weight(written(x), g, list(kernel), *numbers, _tf32())
        return parts.sum(0).to(x.dtype), _sums(g, bias)
    stride, padding, dilation = form
    cols = _windows(_padded(x, padding, padding), kernel, stride, dilation)
    out = torch.bmm(cols.flatten(1, 3).transpose(1, 2), g.flatten(1, 3))
    return out.reshape(len(x), *kernel, x.shape[-1], -1), _sums(g, bias)


def _sums(g: Tensor, wanted: bool) -> Tensor:
    return g.sum((1, 2, 3)) if wanted else g.new_empty(len(g), 0)


def _tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _in_kernels(x: Tensor) -> bool:
    low = x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and _tf32())
    return low and kernels.available(x.device)


def _numbers(form: Form) -> list[list[int]]:
    return [list(pair) for pair in form]


@torch.library.custom_op("tunefree::conv", mutates_args=())
def _kernel_forward(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    first: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
    relu: bool,
) -> Tensor:
    form = (_two(stride), _two(padding), _two(dilation))
    w = w.permute(0, 2, 3, 4, 1) if first else w
    return kernels.forward(x, w, *form, tf32, bias=b, relu=relu)


@_kernel_forward.register_fake
def _(
    x: Tensor, w: Tensor, b: Any, first: bool, stride: Any, padding: Any, dilation: Any, *_: Any
) -> Tensor:
    kernel, outputs = (w.shape[2:4], w.shape[1]) if first else (w.shape[1:3], w.shape[4])
    sizes = kernels.outputs(_two(x.shape[2:4]), _two(kernel), stride, padding, dilation)
    return x.new_empty((*x.shape[:2], *sizes, outputs))


@torch.library.custom_op("tunefree::conv_input", mutates_args=())
def _kernel_input(
    g: Tensor,
    w: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
) -> Tensor:
    form = (_two(stride), _two(padding), _two(dilation))
    return kernels.grad_input(g, w, _two(size), *form, tf32)


@_kernel_input.register_fake
def _(g: Tensor, w: Tensor, size: Any, *form: Any) -> Tensor:
    return g.new_empty((*g.shape[:2], *size, w.shape[3]))


@torch.library.custom_op("tunefree::conv_weight", mutates_args=())
def _kernel_weight(
    x: Tensor,
    g: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
) -> Tensor:
    form = (_two(stride), _two(padding), _two(dilation))
    return kernels.grad_weight(x, g, _two(kernel), *form, tf32)


@_kernel_weight.register_fake
def _(x: Tensor, g: Tensor, kernel: Any, *form: Any) -> Tensor:
    parts = kernels.weight_blocks(x, g, _two(kernel), form[-1]).parts
    return x.new_empty((parts, len(x), *kernel, x.shape[-1], g.shape[-1]), dtype=torch.float32)


def _two(numbers: Any) -> Two:
    first, second = numbers
    return int(first), int(second)


def rows(info: Any, dims: Any, *values: Tensor) -> list[Tensor]:
    """Return the values with the clients' axis first; a shared one is repeated, not copied."""
    return [
        v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
        for v, d in zip(values, dims, strict=True)
    ]


def written(x: Tensor) -> Tensor:
    """Return x, contiguous; the compiler writes it, rather than work it out at every use."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def _padded(x: Tensor, before: Two, after: Two) -> Tensor:
    """Add zeros around the images; cut them where the number is below zero."""
    widths = (0, 0, before[1], after[1], before[0], after[0])
    return F.pad(x, widths) if any(widths) else x


def _spread(g: Tensor, stride: Two) -> Tensor:
    """Put zeros between the pixels, as the stride skipped them."""
    if stride == (1, 1):
        return g
    m, b, high, wide, c = g.shape
    out = F.pad(
        g.reshape(m, b, high, 1, wide, 1, c), (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1)
    )
    out = out.reshape(m, b, high * stride[0], wide * stride[1], c)
    return out[:, :, : (high - 1) * stride[0] + 1, : (wide - 1) * stride[1] + 1]


def _windows(x: Tensor, kernel: Two, stride: Two, dilation: Two) -> Tensor:
    """Return every output pixel's window as a row: (m, B, OH, OW, KH KW C)."""
    if kernel == (1, 1) and stride == (1, 1):
        return x
    spans = []
    for n, k, s, d in zip(x.shape[2:4], kernel, stride, dilation, strict=True):
        count = (n - d * (k - 1) - 1) // s + 1
        spans.append([slice(i * d, i * d + (count - 1) * s + 1, s) for i in range(k)])
    return torch.cat([x[:, :, h, w] for h in spans[0] for w in spans[1]], dim=-1)
