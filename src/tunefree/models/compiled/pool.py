"""Max pools of m clients whose windows do not overlap, for the compiler: one loop each way.

    out[w] = the largest pixel of window w,   which[w] = its index in the window
    grad_x[pixel] = g[w] if the pixel has index which[w], else 0

`last` is the axis of (B, C, H, W) that is last in memory: samples on a CPU (`cpu.convolution`),
channels on a GPU (`gpu.convolution`). Uncompiled these operations are slow.
"""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv2d import Pair, clients_first, materialize

SAMPLES, CHANNELS = 0, 1


def max_pool(x: Tensor, kernel: Pair, last: int) -> Tensor:
    """Return the largest pixel of every window of images (B, C, H, W), with stride = kernel.

    As in PyTorch, ties go to the first pixel, and a NaN in a window is its result.
    """
    out: Tensor = _MaxPool.apply(x, kernel, last)[0]  # type: ignore[no-untyped-call]
    return out


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, kernel: Pair, last: int) -> tuple[Tensor, Tensor]:
        out, which = _window_max(x[None], kernel, last)
        return out[0], which[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, kernel, last = inputs
        ctx.sizes = kernel, (x.shape[-2], x.shape[-1]), last
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gx = _MaxPoolGrad.apply(grads[0], *ctx.saved_tensors, *ctx.sizes)  # type: ignore[no-untyped-call]
        return gx, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, kernel: Pair, last: int
    ) -> tuple[tuple[Tensor, Tensor], int]:
        return _window_max(clients_first(info, dims[:1], x)[0], kernel, last), 0


class _MaxPoolGrad(torch.autograd.Function):
    @staticmethod
    def forward(g: Tensor, which: Tensor, kernel: Pair, size: Pair, last: int) -> Tensor:
        return _scatter(g[None], which[None], kernel, size, last)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, g: Tensor, which: Tensor, kernel: Pair, size: Pair, last: int
    ) -> tuple[Tensor, int]:
        g, which = clients_first(info, dims[:2], g, which)
        return _scatter(g, which, kernel, size, last), 0


def _window_max(x: Tensor, kernel: Pair, last: int) -> tuple[Tensor, Tensor]:
    """Return each window's largest pixel of (m, B, C, H, W), and its index in the window."""
    x = x.movedim(1 + last, -1)  # (m, ., H, W, .)
    high, wide = (n // k for n, k in zip(x.shape[2:4], kernel, strict=True))
    x = x[:, :, : high * kernel[0], : wide * kernel[1]]
    out = x[:, :, :: kernel[0], :: kernel[1]]
    which = torch.zeros_like(out)
    for a, b in product(range(kernel[0]), range(kernel[1])):
        pixel = x[:, :, a :: kernel[0], b :: kernel[1]]
        better = (pixel > out) | (pixel != pixel)
        out = torch.where(better, pixel, out)
        which = torch.where(better, float(a * kernel[1] + b), which)
    return out.movedim(-1, 1 + last), _materialize_on_gpu(which, last).movedim(-1, 1 + last)


def _scatter(g: Tensor, which: Tensor, kernel: Pair, size: Pair, last: int) -> Tensor:
    """Put every number at its window's largest pixel, zeros elsewhere."""
    index = torch.arange(kernel[0] * kernel[1], dtype=which.dtype, device=which.device)
    index = index.reshape(kernel[0], 1, kernel[1], 1)
    g, which = (
        _materialize_on_gpu(g.movedim(1 + last, -1), last),
        which.movedim(1 + last, -1),
    )
    g, which = (t[:, :, :, None, :, None] for t in (g, which))
    full = torch.where(which == index, g, 0.0)  # (m, ., OH, KH, OW, KW, .)
    full = full.flatten(4, 5).flatten(2, 3)
    rest = [n - s for n, s in zip(size, full.shape[2:4], strict=True)]
    full = F.pad(full, (0, 0, 0, rest[1], 0, rest[0])) if any(rest) else full
    return full.movedim(-1, 1 + last)


def _materialize_on_gpu(x: Tensor, last: int) -> Tensor:
    """Return x; on a GPU the compiler writes it instead of recomputing it at every pixel."""
    return materialize(x) if last == CHANNELS else x
