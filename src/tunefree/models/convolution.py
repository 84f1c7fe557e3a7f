"""Convolutions of many clients, each with its own weights, as one batched product.

vmap turns a convolution with m weights into one convolution with m groups, which libraries run
slowly. `Lowered` is a mode in which vmap forms products instead (`products` on a GPU, `columns`
when compiled for a CPU): any module that calls conv1d or conv2d inside it gets them, nothing is
replaced in the module. Grouped convolutions are left as they are.

On a GPU products leave images with their channels last in memory; group normalisation that likes
them so (`normalise`) takes the place of PyTorch's, on a CPU too. So do pools, if asked for.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from . import columns, pools
from .normalise import normalise
from .products import Form, Two, forward, grad_input, grad_weight, rows


class Lowered(TorchFunctionMode):
    """Within it, vmap batches convolutions over clients as products.

    Args:
        samples_last: Whether as a CPU likes them (`columns`); else channels are last.
        pools: Whether to take over pools too (`pools`), for a compiler.
    """

    def __init__(self, samples_last: bool = False, pools: bool = False) -> None:
        super().__init__()
        self._samples_last, self._pools = samples_last, pools

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take over convolutions, normalisation and pools; everything else goes its way."""
        named, found = kwargs or {}, None
        if func in (F.group_norm, torch.group_norm):
            found = normalise(*args, **named)
        elif func in _AXES:
            found = _convolve(self._samples_last, _AXES[func], *args, **named)
        elif func in _POOLS and self._pools:
            found = _pool(self._samples_last, *args, **named)
        return func(*args, **named) if found is None else found


_AXES = {torch.conv1d: 1, torch.conv2d: 2}
_POOLS = {F.max_pool2d, torch.max_pool2d}
SMALL = 9  # pixels of a window that are compared one by one


def _pool(
    samples_last: bool,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    kernel = _pair(kernel_size)
    apart = kernel if stride is None or stride == [] else _pair(stride)
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and kernel == apart
    if not plain or ceil_mode or return_indices or kernel[0] * kernel[1] > SMALL:
        return None
    if input.ndim != 4 or input.shape[2] < kernel[0] or input.shape[3] < kernel[1]:
        return None  # the last two are PyTorch's to refuse
    return pools.pool(input, kernel, pools.SAMPLES if samples_last else pools.CHANNELS)


def _pair(value: Any) -> Two:
    first, second = _each(value, 2)
    return first, second


def _convolve(
    samples_last: bool,
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    if isinstance(padding, str):
        padding = _named(padding, weight.shape[2:], dilation)
    if groups != 1 or padding is None or input.ndim != axes + 2:
        return None
    padding = _each(padding, axes)
    kind = input.device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        input, weight = input.to(low), weight.to(low)
    if axes == 1:  # an image one pixel high
        input, weight = input.unsqueeze(2), weight.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    form: Any = (stride, padding, dilation)
    if samples_last:
        add = weight.new_zeros(weight.shape[0]) if bias is None else bias.to(weight.dtype)
        out = columns.convolve(input, weight, add, form)
    else:
        shift = None if bias is None else bias.to(weight.dtype)
        out = _Forward.apply(input, weight, shift, form)  # type: ignore[no-untyped-call]
    return out.squeeze(2) if axes == 1 else out


def _each(value: Any, axes: int) -> tuple[int, ...]:
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * axes if len(found) == 1 else found


def _named(padding: str, kernel: torch.Size, dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the numbers behind "valid" and "same"; None where the two sides differ."""
    if padding == "valid":
        return (0,) * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return None if any(n % 2 for n in total) else tuple(n // 2 for n in total)


class _Forward(torch.autograd.Function):
    """Images (B, C, H, W), weights (O, C, KH, KW), maybe biases (O,) to images (B, O, OH, OW)."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, form: Form) -> Tensor:
        return F.conv2d(x, w, b, *form)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, b, ctx.form = inputs
        ctx.bias = b is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,), (x, w) = grads, ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = _GradInput.apply(g, w, x.shape, ctx.form)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1] or ctx.bias:
            gw, gb = _GradWeight.apply(x, g, w.shape, ctx.form, ctx.bias)  # type: ignore[no-untyped-call]
        return gx, gw, gb if ctx.bias else None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, form: Form
    ) -> tuple[Tensor, int]:
        if dims[1] is None and dims[2] is None:  # one set of weights: all samples are one batch
            x = rows(info, dims[:1], x)[0]
            out = F.conv2d(x.flatten(0, 1), w, b, *form)
            return out.reshape(*x.shape[:2], *out.shape[1:]), 0
        x, w = rows(info, dims[:2], x, w)
        each = None if b is None else rows(info, dims[2:3], b)[0]
        return _images(forward(_last(x), _last_weights(w), each, form)), 0


class _GradInput(torch.autograd.Function):
    @staticmethod
    def forward(g: Tensor, w: Tensor, shape: torch.Size, form: Form) -> Tensor:
        return conv2d_input(shape, w, g, *form)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, g: Tensor, w: Tensor, shape: torch.Size, form: Form
    ) -> tuple[Tensor, int]:
        if dims[1] is None:
            g = rows(info, dims[:1], g)[0]
            flat = g.flatten(0, 1)
            out = conv2d_input((len(flat), *shape[1:]), w, flat, *form)  # type: ignore[no-untyped-call]
            return out.reshape(*g.shape[:2], *shape[1:]), 0
        g, w = rows(info, dims[:2], g, w)
        size = (shape[-2], shape[-1])
        return _images(grad_input(_last(g), _last_weights(w), size, form)), 0


class _GradWeight(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, g: Tensor, shape: torch.Size, form: Form, bias: bool
    ) -> tuple[Tensor, Tensor]:
        gw = conv2d_weight(x, shape, g, *form)  # type: ignore[no-untyped-call]
        return gw, g.sum((0, 2, 3)) if bias else g.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, g: Tensor, shape: torch.Size, form: Form, bias: bool
    ) -> tuple[tuple[Tensor, Tensor], int]:
        x, g = rows(info, dims[:2], x, g)
        gw, gb = grad_weight(_last(x), _last(g), (shape[-2], shape[-1]), form, bias)
        return (gw.permute(0, 4, 3, 1, 2), gb), 0


def _last(images: Tensor) -> Tensor:
    """(m, B, C, H, W) -> (m, B, H, W, C)."""
    return images.permute(0, 1, 3, 4, 2)


def _images(last: Tensor) -> Tensor:
    """(m, B, H, W, C) -> (m, B, C, H, W)."""
    return last.permute(0, 1, 4, 2, 3)


def _last_weights(w: Tensor) -> Tensor:
    """(m, O, C, KH, KW) -> (m, KH, KW, C, O)."""
    return w.permute(0, 3, 4, 2, 1)
