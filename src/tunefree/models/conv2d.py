"""Shapes and tensor helpers that the GPU's and the CPU's batched convolutions share."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

Pair: TypeAlias = tuple[int, int]
ConvGeometry: TypeAlias = tuple[Pair, Pair, Pair]
"""Stride, padding and dilation of a convolution over two axes."""


def as_pair(values: Sequence[int]) -> Pair:
    """Return a sequence of length two as a tuple of ints."""
    first, second = values
    return int(first), int(second)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """Return an argument of a convolution or a pool as one number for each axis."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * axes if len(found) == 1 else found


def plain_windows(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pair | None:
    """Return the window of a max pool of images (B, C, H, W) with stride = window, else None."""
    kernel = as_pair(per_axis(kernel_size, 2))
    step = kernel if stride is None or stride == [] else per_axis(stride, 2)
    is_plain = (per_axis(padding, 2), per_axis(dilation, 2), step) == ((0, 0), (1, 1), kernel)
    if not is_plain or ceil_mode or return_indices or input.ndim != 4:
        return None
    too_small = input.shape[2] < kernel[0] or input.shape[3] < kernel[1]  # PyTorch refuses these
    return None if too_small else kernel


def output_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    """Return height and width of a convolution's output."""
    h, w = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    return h, w


def insert_zeros(x: Tensor, stride: Pair) -> Tensor:
    """Insert stride - 1 zeros between the pixels of (m, ., H, W, .)."""
    if stride == (1, 1):
        return x
    m, a, high, wide, b = x.shape
    x = x.reshape(m, a, high, 1, wide, 1, b)
    x = F.pad(x, (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
    x = x.reshape(m, a, high * stride[0], wide * stride[1], b)
    return x[:, :, : (high - 1) * stride[0] + 1, : (wide - 1) * stride[1] + 1]


def clients_first(info: Any, dims: Any, *values: Any) -> list[Any]:
    """Return the tensors of a vmap rule with the client axis first; None stays None.

    A value that all clients share is expanded, not copied.
    """

    def moved(v: Tensor, axis: int | None) -> Tensor:
        return v.expand(info.batch_size, *v.shape) if axis is None else v.movedim(axis, 0)

    return [None if v is None else moved(v, d) for v, d in zip(values, dims, strict=True)]


def materialize(x: Tensor) -> Tensor:
    """Return `x` contiguous, and make the compiler write it to memory instead of recomputing it.

    `as_strided` would do so too, but compiled for a GPU by PyTorch 2.11 it was seen to read other
    numbers (group normalisation between two convolutions).
    """
    x = x.contiguous()
    if get_proxy_mode() is None:  # not traced for the compiler
        return x
    written: Tensor = force_strides_op()(x, x.stride())
    return written


@lru_cache
def force_strides_op() -> Any:
    """Return the compiler's operation that writes a tensor to memory with given strides."""
    from torch._inductor import inductor_prims  # takes a second

    return inductor_prims.force_stride_order
