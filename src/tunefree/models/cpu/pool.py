"""Max pools of one client on a CPU, uncompiled: PyTorch's take twice as long.

    out[w] = the largest pixel of window w
    grad_x[pixel] = g[w] for the first pixel of window w that is the largest, else 0

For large images and windows of 2 x 2 that do not overlap. Finite numbers are PyTorch's, bit by bit.
"""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..conv2d import plain_windows

_MAX_POOLS = {F.max_pool2d, torch.max_pool2d}
LARGE = 1 << 17  # pixels from which on this is faster


class MaxPoolMode(TorchFunctionMode):
    """Replace the max pools that `max_pool` is made for.

    Attributes:
        used: Whether there was any max pool.
    """

    used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace max pools; call all other functions."""
        named = kwargs or {}
        if func in _MAX_POOLS and args:
            self.used = True
            if args[0].numel() >= LARGE and plain_windows(*args, **named) == (2, 2):
                return max_pool(args[0])
        return func(*args, **named)


def max_pool(x: Tensor) -> Tensor:
    """Return the largest pixel of every window of images (B, C, H, W)."""
    out: Tensor = _MaxPool.apply(x)  # type: ignore[no-untyped-call]
    return out


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        high, wide = (n // 2 * 2 for n in x.shape[2:])
        rows = torch.maximum(x[:, :, 0:high:2, :wide], x[:, :, 1:high:2, :wide])
        out = torch.maximum(rows[..., 0::2], rows[..., 1::2])
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, out = ctx.saved_tensors
        high, wide = (n // 2 * 2 for n in x.shape[2:])
        is_whole = (high, wide) == tuple(x.shape[2:])
        found = torch.empty_like(x) if is_whole else torch.zeros_like(x)
        free = torch.ones_like(out, dtype=torch.bool)  # windows whose pixel is not found yet
        for a, b in product(range(2), range(2)):
            here = (x[:, :, a:high:2, b:wide:2] == out) & free
            free ^= here
            torch.mul(grads[0], here, out=found[:, :, a:high:2, b:wide:2])
        return found
