"""Convolutions of m clients, each with its own weights, as batched matrix products; channels last.

With x (m, B, H, W, C), w (m, KH, KW, C, O), b (m, O), g (m, B, OH, OW, O), and cols(x) the window
of every output pixel as a row:

    out[i]    = cols(x[i]) @ w[i] + b[i]
    grad_w[i] = cols(x[i])^T @ g[i]
    grad_b[i] = sum of g[i] over its pixels
    grad_x[i] = cols(insert_zeros(g[i])) @ flip(w[i])^T

In TF32 or bfloat16 on a GPU with Triton, `kernels` computes the same sums without writing windows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from ..conv2d import (
    ConvGeometry,
    Pair,
    as_pair,
    clients_first,
    insert_zeros,
    materialize,
    output_size,
)
from . import kernels


def convolve(x: Tensor, w: Tensor, b: Tensor | None, geometry: ConvGeometry) -> Tensor:
    """Return the convolution of images (B, C, H, W) by weights (O, C, KH, KW), plus b (O,).

    Under vmap over the weights, the batched products above.
    """
    out: Tensor = _Convolution.apply(x, w, b, geometry)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, geometry: ConvGeometry) -> Tensor:
        return F.conv2d(x, w, b, *geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, b, ctx.geometry = inputs
        ctx.bias = b is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,), (x, w) = grads, ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = _GradInput.apply(g, w, x.shape, ctx.geometry)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1] or ctx.bias:
            gw, gb = _GradWeight.apply(x, g, w.shape, ctx.geometry, ctx.bias)  # type: ignore[no-untyped-call]
        return gx, gw, gb if ctx.bias else None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: ConvGeometry
    ) -> tuple[Tensor, int]:
        if dims[1] is None and dims[2] is None:  # shared weights: all samples are one batch
            x = clients_first(info, dims[:1], x)[0]
            out = F.conv2d(x.flatten(0, 1), w, b, *geometry)
            return out.reshape(*x.shape[:2], *out.shape[1:]), 0
        x, w, b = clients_first(info, dims[:3], x, w, b)
        out = conv_forward(_channels_last(x), _outputs_last(w), b, geometry)
        return _channels_second(out), 0


class _GradInput(torch.autograd.Function):
    @staticmethod
    def forward(g: Tensor, w: Tensor, shape: torch.Size, geometry: ConvGeometry) -> Tensor:
        return conv2d_input(shape, w, g, *geometry)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, g: Tensor, w: Tensor, shape: torch.Size, geometry: ConvGeometry
    ) -> tuple[Tensor, int]:
        if dims[1] is None:
            g = clients_first(info, dims[:1], g)[0]
            flat = g.flatten(0, 1)
            out = conv2d_input((len(flat), *shape[1:]), w, flat, *geometry)  # type: ignore[no-untyped-call]
            return out.reshape(*g.shape[:2], *shape[1:]), 0
        g, w = clients_first(info, dims[:2], g, w)
        size = (shape[-2], shape[-1])
        out = conv_grad_input(_channels_last(g), _outputs_last(w), size, geometry)
        return _channels_second(out), 0


class _GradWeight(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, g: Tensor, shape: torch.Size, geometry: ConvGeometry, bias: bool
    ) -> tuple[Tensor, Tensor]:
        gw = conv2d_weight(x, shape, g, *geometry)  # type: ignore[no-untyped-call]
        return gw, g.sum((0, 2, 3)) if bias else g.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        dims: Any,
        x: Tensor,
        g: Tensor,
        shape: torch.Size,
        geometry: ConvGeometry,
        bias: bool,
    ) -> tuple[tuple[Tensor, Tensor], int]:
        x, g = (_channels_last(t) for t in clients_first(info, dims[:2], x, g))
        gw, gb = conv_grad_weight(x, g, (shape[-2], shape[-1]), geometry, bias)
        return (gw.permute(0, 4, 3, 1, 2), gb), 0


def _channels_last(images: Tensor) -> Tensor:
    """(m, B, C, H, W) -> (m, B, H, W, C)."""
    return images.permute(0, 1, 3, 4, 2)


def _channels_second(images: Tensor) -> Tensor:
    """(m, B, H, W, C) -> (m, B, C, H, W)."""
    return images.permute(0, 1, 4, 2, 3)


def _outputs_last(w: Tensor) -> Tensor:
    """(m, O, C, KH, KW) -> (m, KH, KW, C, O)."""
    return w.permute(0, 3, 4, 2, 1)


def conv_forward(x: Tensor, w: Tensor, b: Tensor | None, geometry: ConvGeometry) -> Tensor:
    """Return the convolutions: (m, B, H, W, C), (m, KH, KW, C, O) -> (m, B, OH, OW, O)."""
    if _uses_kernels(x):
        outputs_first = x.dtype == torch.float32  # TF32 reads weights best with c innermost
        packed = w.permute(0, 4, 1, 2, 3) if outputs_first else w
        b = None if b is None else b.contiguous()  # a slice of each client's row
        numbers = _lists(geometry)
        out: Tensor = _kernel_forward(
            materialize(x), materialize(packed), b, outputs_first, *numbers, _tf32(), False
        )
        return out
    stride, padding, dilation = geometry
    kernel = (w.shape[1], w.shape[2])
    cols = _windows(_pad(x, padding, padding), kernel, stride, dilation)
    out = torch.bmm(cols.flatten(1, 3), w.flatten(1, 3))
    out = out if b is None else out + b[:, None]
    return out.reshape(*cols.shape[:4], -1)


def conv_grad_input(g: Tensor, w: Tensor, size: Pair, geometry: ConvGeometry) -> Tensor:
    """Return the gradient in the images, (m, B, H, W, C), from that in the outputs."""
    if _uses_kernels(g):
        numbers = _lists(geometry)
        out: Tensor = _kernel_grad_input(
            materialize(g), materialize(w), list(size), *numbers, _tf32()
        )
        return out
    stride, padding, dilation = geometry
    kernel = (w.shape[1], w.shape[2])
    spread = insert_zeros(g, stride)
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    ends = zip(size, dilation, kernel, spread.shape[2:4], before, strict=True)
    after = [n + d * (k - 1) - s - b for n, d, k, s, b in ends]
    padded = _pad(spread, (before[0], before[1]), (after[0], after[1]))
    cols = _windows(padded, kernel, (1, 1), dilation)
    out = torch.bmm(cols.flatten(1, 3), w.flip((1, 2)).transpose(3, 4).flatten(1, 3))
    return out.reshape(*cols.shape[:4], -1)


def conv_grad_weight(
    x: Tensor, g: Tensor, kernel: Pair, geometry: ConvGeometry, bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients in the weights (m, KH, KW, C, O) and, with `bias`, in biases (m, O)."""
    if _uses_kernels(x):
        numbers, g = _lists(geometry), materialize(g)
        parts: Tensor = _kernel_grad_weight(materialize(x), g, list(kernel), *numbers, _tf32())
        return parts.sum(0).to(x.dtype), _bias_grad(g, bias)
    stride, padding, dilation = geometry
    cols = _windows(_pad(x, padding, padding), kernel, stride, dilation)
    out = torch.bmm(cols.flatten(1, 3).transpose(1, 2), g.flatten(1, 3))
    return out.reshape(len(x), *kernel, x.shape[-1], -1), _bias_grad(g, bias)


def _bias_grad(g: Tensor, needed: bool) -> Tensor:
    return g.sum((1, 2, 3)) if needed else g.new_empty(len(g), 0)


def _tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _uses_kernels(x: Tensor) -> bool:
    low = x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and _tf32())
    return low and kernels.is_available(x.device)


def _lists(geometry: ConvGeometry) -> list[list[int]]:
    return [list(pair) for pair in geometry]


@torch.library.custom_op("tunefree::conv", mutates_args=())
def _kernel_forward(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    outputs_first: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
    relu: bool,
) -> Tensor:
    geometry = (as_pair(stride), as_pair(padding), as_pair(dilation))
    w = w.permute(0, 2, 3, 4, 1) if outputs_first else w
    return kernels.forward(x, w, *geometry, tf32, bias=b, relu=relu)


@_kernel_forward.register_fake
def _(
    x: Tensor,
    w: Tensor,
    b: Any,
    outputs_first: bool,
    stride: Any,
    padding: Any,
    dilation: Any,
    *_: Any,
) -> Tensor:
    kernel, channels = (w.shape[2:4], w.shape[1]) if outputs_first else (w.shape[1:3], w.shape[4])
    sizes = output_size(as_pair(x.shape[2:4]), as_pair(kernel), stride, padding, dilation)
    return x.new_empty((*x.shape[:2], *sizes, channels))


@torch.library.custom_op("tunefree::conv_input", mutates_args=())
def _kernel_grad_input(
    g: Tensor,
    w: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
) -> Tensor:
    geometry = (as_pair(stride), as_pair(padding), as_pair(dilation))
    return kernels.grad_input(g, w, as_pair(size), *geometry, tf32)


@_kernel_grad_input.register_fake
def _(g: Tensor, w: Tensor, size: Any, *more: Any) -> Tensor:
    return g.new_empty((*g.shape[:2], *size, w.shape[3]))


@torch.library.custom_op("tunefree::conv_weight", mutates_args=())
def _kernel_grad_weight(
    x: Tensor,
    g: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    tf32: bool,
) -> Tensor:
    geometry = (as_pair(stride), as_pair(padding), as_pair(dilation))
    return kernels.grad_weight(x, g, as_pair(kernel), *geometry, tf32)


@_kernel_grad_weight.register_fake
def _(x: Tensor, g: Tensor, kernel: Any, *more: Any) -> Tensor:
    parts = kernels.weight_blocks(x, g, as_pair(kernel), more[-1]).parts
    return x.new_empty((parts, len(x), *kernel, x.shape[-1], g.shape[-1]), dtype=torch.float32)


def _pad(x: Tensor, before: Pair, after: Pair) -> Tensor:
    """Pad the images with zeros; negative numbers crop them."""
    widths = (0, 0, before[1], after[1], before[0], after[0])
    return F.pad(x, widths) if any(widths) else x


def _windows(x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> Tensor:
    """Return every output pixel's window as a row: (m, B, OH, OW, KH KW C)."""
    if kernel == (1, 1) and stride == (1, 1):
        return x
    counts = output_size(as_pair(x.shape[2:4]), kernel, stride, (0, 0), dilation)
    high, wide = (
        [slice(i * d, i * d + (n - 1) * s + 1, s) for i in range(k)]
        for n, k, s, d in zip(counts, kernel, stride, dilation, strict=True)
    )
    return torch.cat([x[:, :, h, w] for h in high for w in wide], dim=-1)
