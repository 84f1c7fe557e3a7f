# ruff: noqa: E741
"""GPU kernels for m clients, each with its own weights, in one launch.

Convolutions, with s, p, d the stride, the padding and the dilation, h = oh s - p + kh d and
v = ow s - p + kw d:

    out[i, b, oh, ow, o]    = sum over kh, kw, c of           x[i, b, h, v, c] w[i, kh, kw, c, o]
    grad_x[i, b, h, v, c]   = sum over oh, ow, kh, kw, o of   g[i, b, oh, ow, o] w[i, kh, kw, c, o]
    grad_w[i, kh, kw, c, o] = sum over b, oh, ow of           x[i, b, h, v, c] g[i, b, oh, ow, o]

Also sums over the pixels of images (`channel_sums`), descent along gradients that are products
(`descend`), and other elementwise operations on products (`update`, `sum_products`). Channels come
last. Tensors are float32 or bfloat16; sums are in float32, and so is grad_w. No sum depends on the
order in which programs run: the same inputs give the same bits.
"""

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.errors import ArgumentError
from ..conv2d import Pair, output_size
from .epilogue import Epilogue

MAX_FACTOR_TERMS = 32  # terms of the sums in a product that `descend` computes


class Blocks(NamedTuple):
    """How one product is divided among programs; results agree up to rounding.

    Args:
        rows, cols: Tile of the result that a program computes; powers of two, at least 16.
        depth: Length of the reduction in one step; a power of two, at least 16.
        warps, stages: Warps per program, and pipeline stages of its loads.
        flat: Whether tap and channel are one axis (faster with few channels).
        parts: Number of partial sums of `grad_weight`.
    """

    rows: int
    cols: int
    depth: int
    warps: int = 4
    stages: int = 3
    flat: bool = False
    parts: int = 1


@lru_cache
def is_available(device: torch.device) -> bool:
    """Return whether the kernels run here: Triton and a GPU of compute capability 8.0 or more."""
    return (
        device.type == "cuda"
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def forward(
    x: Tensor,
    w: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    tf32: bool,
    blocks: Blocks | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Return the convolutions (m, B, OH, OW, O) of x (m, B, H, W, C) and w (m, KH, KW, C, O).

    Adds `bias` (m, O), and applies ReLU with `relu`. `w` is contiguous, or a view of a contiguous
    (m, O, KH, KW, C), also in `grad_input`.
    """
    from . import _triton

    m, B, H, W, C = x.shape
    KH, KW, O = w.shape[1], w.shape[2], w.shape[4]
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation)
    out = x.new_empty((m, B, OH, OW, O))
    _check_images(x, out)
    if bias is not None and not bias.is_contiguous():
        raise ArgumentError(f"Biases must be contiguous, got strides {bias.stride()}.")
    at = blocks or _forward_blocks(B * OH * OW, C, O, KH * KW, x.dtype, tf32)
    grid = (_ceil_div(B * OH * OW, at.rows) * _ceil_div(O, at.cols), m)
    sizes = (H, W, C, O, OH, OW, KH, KW, *stride, *padding, *dilation, *_weight_strides(w))
    _triton.forward[grid](
        x,
        w,
        w if bias is None else bias,
        out,
        B,
        *sizes,
        bias is not None,
        relu,
        _precision(tf32),
        at.flat,
        *at[:3],
        num_warps=at.warps,
        num_stages=at.stages,
    )
    return out


def grad_input(
    g: Tensor,
    w: Tensor,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    tf32: bool,
    blocks: Blocks | None = None,
) -> Tensor:
    """Return the gradient (m, B, *size, C) of sum(g * forward(x, w)) in x."""
    from . import _triton

    m, B, OH, OW, O = g.shape
    KH, KW, C = w.shape[1:4]
    out = g.new_empty((m, B, *size, C))
    _check_images(g, out)
    places = B * _ceil_div(size[0], stride[0]) * _ceil_div(size[1], stride[1])
    at = blocks or _input_blocks(places, C, O, g.dtype, tf32)
    grid = (_ceil_div(places, at.rows) * _ceil_div(C, at.cols), m, stride[0] * stride[1])
    common = [math.gcd(d, s) for d, s in zip(dilation, stride, strict=True)]
    inverse = [pow(d // n, -1, s // n) for d, s, n in zip(dilation, stride, common, strict=True)]
    sizes = (*size, C, O, OH, OW, KH, KW, *stride, *padding, *dilation, *_weight_strides(w))
    _triton.grad_input[grid](
        g,
        w,
        out,
        B,
        *sizes,
        *common,
        *inverse,
        _precision(tf32),
        *at[:3],
        num_warps=at.warps,
        num_stages=at.stages,
    )
    return out


def grad_weight(
    x: Tensor,
    g: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    tf32: bool,
    blocks: Blocks | None = None,
) -> Tensor:
    """Return the gradient of sum(g * forward(x, w)) in w, in float32, as partial sums.

    The gradient is the sum over the first axis of (parts, m, *kernel, C, O).
    """
    from . import _triton

    m, B, H, W, C = x.shape
    OH, OW, O = g.shape[2:]
    KH, KW = kernel
    _check_images(x, g)
    at = blocks or weight_blocks(x, g, kernel, tf32)
    tiles = _ceil_div(KH * KW * C, at.rows) if at.flat else KH * KW * _ceil_div(C, at.rows)
    span = _ceil_div(_ceil_div(B * OH * OW, at.parts), at.depth) * at.depth
    sums = x.new_empty((at.parts, m, KH, KW, C, O), dtype=torch.float32)
    sizes = (H, W, C, O, OH, OW, KH, KW, *stride, *padding, *dilation)
    _triton.grad_weight[(tiles * _ceil_div(O, at.cols), m, at.parts)](
        x,
        g,
        sums,
        B,
        span,
        *sizes,
        _precision(tf32),
        at.flat,
        *at[:3],
        num_warps=at.warps,
        num_stages=at.stages,
    )
    return sums


def channel_sums(x: Tensor, centre: Tensor, g: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return two sums over the pixels of x (m, B, H, W, C), each (m, B, C) in float32.

    With d = x - centre and centre (m, B, C): of d and d d. Given g of x's shape: of g and g d.
    """
    from . import _triton

    m, B, H, W, C = x.shape
    _check_images(x, x if g is None else g)
    if not centre.is_contiguous():
        raise ArgumentError(f"channel_sums(centre=...) must be contiguous, got {centre.stride()}.")
    first, second = (centre.new_empty((m, B, C), dtype=torch.float32) for _ in range(2))
    channels, warps = _block_size(C, 128), 2 if H * W > 64 else 1
    _triton.channel_sums[(m * B, _ceil_div(C, channels))](
        x,
        x if g is None else g,
        centre,
        first,
        second,
        H * W,
        C,
        g is None,
        1024 * warps // channels,
        channels,
        num_warps=warps,
        num_stages=1,
    )
    return first, second


def descend(part: Tensor, low: Tensor | None, left: Tensor, right: Tensor, lr: Tensor) -> None:
    """Update weights (m, O, I) in place: part <- part - lr left @ right, and `low` likewise.

    Args:
        part: float32, contiguous.
        low: Its copy in bfloat16, or None.
        left, right: Factors (m, O, K) and (m, K, I) of the gradient, K <= MAX_FACTOR_TERMS.
        lr: Step sizes (m,); weights with lr 0 do not change, even if the factors are not finite.
    """
    from . import _triton

    (m, O, I), K = part.shape, left.shape[2]
    for name, t in {"part": part, "low": part if low is None else low, "lr": lr}.items():
        if not t.is_contiguous():
            raise ArgumentError(f"descend({name}=...) must be contiguous, got {t.stride()}.")
    if K > MAX_FACTOR_TERMS:
        raise ArgumentError(
            f"descend(left=...) must have at most {MAX_FACTOR_TERMS} columns, got {K}."
        )
    rows, cols = (16, 128) if left.dtype == torch.bfloat16 else (32, 64)
    _triton.descend[(m * _ceil_div(O, rows) * _ceil_div(I, cols),)](
        part,
        part if low is None else low,
        left,
        right,
        lr,
        O,
        I,
        K,
        *left.stride(),
        *right.stride(),
        low is not None,
        _precision(bool(torch.backends.cuda.matmul.allow_tf32)),
        rows,
        cols,
        _block_size(K, MAX_FACTOR_TERMS),
        num_warps=2,
    )


def update(
    targets: Sequence[Tensor],
    epilogue: Epilogue,
    factors: Sequence[tuple[Tensor, Tensor]],
    matrices: Sequence[Tensor],
    scalars: Sequence[Tensor],
) -> None:
    """Write the values of an epilogue to `targets` (m, O, I), which may be among `matrices`.

    Args:
        targets: float32, or copies in bfloat16; contiguous.
        epilogue: The operations on the products and the other operands.
        factors: Factors (m, O, K) and (m, K, I) of each product, K <= MAX_FACTOR_TERMS.
        matrices: float32 (m, O, I) or (1, O, I), contiguous.
        scalars: One number per client (m, 1, 1), or one for all.
    """
    _launch(epilogue, factors, matrices, scalars, list(targets), tuple(targets[0].shape))


def sum_products(
    epilogue: Epilogue,
    factors: Sequence[tuple[Tensor, Tensor]],
    matrices: Sequence[Tensor],
    scalars: Sequence[Tensor],
) -> Tensor:
    """Return the sums (m,) over each client's numbers of an epilogue's only value.

    The other arguments are as in `update`.
    """
    left, right = factors[0]
    return _launch(
        epilogue, factors, matrices, scalars, None, (*left.shape[:2], right.shape[2])
    ).sum(1)


def _launch(
    epilogue: Epilogue,
    factors: Sequence[tuple[Tensor, Tensor]],
    matrices: Sequence[Tensor],
    scalars: Sequence[Tensor],
    targets: list[Tensor] | None,
    shape: tuple[int, ...],
) -> Tensor:
    """Run the kernel of an epilogue; return the sums (m, tiles) over tiles without targets."""
    from . import _triton_epilogue

    (m, O, I), first = shape, (factors[0] if factors else matrices)[0]
    for name, tensors in {"targets": targets or [], "matrices": matrices}.items():
        for t in tensors:
            if not t.is_contiguous():
                raise ArgumentError(f"{name} of an epilogue must be contiguous, got {t.stride()}.")
    rows, cols = (16, 128) if first.dtype == torch.bfloat16 else (32, 64)
    tiles = _ceil_div(O, rows) * _ceil_div(I, cols)
    sums = first.new_empty((m, tiles) if targets is None else (0, 0), dtype=torch.float32)
    sizes: list[int] = []
    blocks: list[int] = []
    for left, right in factors:
        K = left.shape[2]
        if K > MAX_FACTOR_TERMS:
            raise ArgumentError(
                f"Factors must have at most {MAX_FACTOR_TERMS} terms in each sum, got {K}."
            )
        sizes += [K, *left.stride(), *right.stride()]
        blocks.append(_block_size(K, MAX_FACTOR_TERMS))
    sizes += [0 if e.numel() == 1 else e.stride(0) for e in scalars]
    kernel = _triton_epilogue.kernel(epilogue, targets is None)  # type: ignore[no-untyped-call]
    kernel[(m * tiles,)](
        *(side for pair in factors for side in pair),
        *matrices,
        *scalars,
        *([sums] if targets is None else targets),
        O,
        I,
        *sizes,
        _precision(bool(torch.backends.cuda.matmul.allow_tf32)),
        rows,
        cols,
        *blocks,
        num_warps=2 if len(matrices) + len(factors) <= 2 else 4,
    )
    return sums


# The fastest on an H200 of a dozen choices for each layer of the reference networks.


def _forward_blocks(
    pixels: int, C: int, O: int, taps: int, dtype: torch.dtype, tf32: bool
) -> Blocks:
    flat = C < 32
    cols = _block_size(O, 128)
    if dtype == torch.float32 and not tf32:  # without tensor cores a large tile spills
        return Blocks(64, min(cols, 64), 32 if C > 16 or flat else 16, 4, 2, flat)
    depth = (
        _block_size(taps * C, 32) if flat else 32 if dtype == torch.float32 else _block_size(C, 64)
    )
    if dtype == torch.bfloat16:
        cols = _block_size(O, 256)
    return Blocks(128, cols, depth, 8 if cols > 64 else 4, 3, flat)


def _input_blocks(pixels: int, C: int, O: int, dtype: torch.dtype, tf32: bool) -> Blocks:
    at = _forward_blocks(pixels, O, C, 1, dtype, tf32)._replace(flat=False)
    return at._replace(cols=_block_size(C, 256)) if at.cols == 128 and tf32 else at


def weight_blocks(x: Tensor, g: Tensor, kernel: Pair, tf32: bool) -> Blocks:
    """Return the blocks of `grad_weight`."""
    m, C, O, dtype = len(x), x.shape[-1], g.shape[-1], x.dtype
    pixels, taps = math.prod(g.shape[1:4]), math.prod(kernel)
    flat = (64 if dtype == torch.bfloat16 or not tf32 else 32) > C
    rows, cols, stages = _block_size(taps * C if flat else C, 128), _block_size(O, 128), 3
    if dtype == torch.bfloat16 and 16 <= C < 64:
        rows, depth, warps, stages = 64, 32, 4, 4
    elif dtype == torch.bfloat16:
        depth, warps = 64, 4
        rows = rows if C <= 64 else 64
    elif tf32:  # Hopper's own product cannot read operands that are transposed in TF32
        depth = 32
        rows, cols, warps = (64, 64, 2) if C == 64 and O <= 64 else (min(rows, 32), cols, 4)
    else:
        rows, cols, depth, warps = min(rows, 64), min(cols, 64), 32, 4
    tiles = (
        m * _ceil_div(O, cols) * (_ceil_div(taps * C, rows) if flat else taps * _ceil_div(C, rows))
    )
    parts = max(1, min(_ceil_div(1024, tiles), pixels // (16 * depth)))
    return Blocks(rows, cols, depth, warps, stages, flat, parts)


def _block_size(n: int, largest: int) -> int:
    """Return the least power of two >= n, clamped to 16 .. `largest`."""
    return min(max(1 << (n - 1).bit_length(), 16), largest)


def _ceil_div(n: int, size: int) -> int:
    return -(-n // size)


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"


def _weight_strides(w: Tensor) -> Pair:
    """Return the strides of `w` in k = (kh, kw, c) and in o."""
    if w.is_contiguous():
        return w.shape[4], 1
    if w.permute(0, 4, 1, 2, 3).is_contiguous():
        return 1, w.shape[1] * w.shape[2] * w.shape[3]
    raise ArgumentError(
        "forward(w=...) must be contiguous, or a view of a contiguous (m, O, KH, KW, C); "
        f"got shape {tuple(w.shape)} with strides {w.stride()}."
    )


def _check_images(*images: Tensor) -> None:
    for x in images:
        if not x.is_contiguous():
            raise ArgumentError(f"Images must be contiguous, got strides {x.stride()}.")
        if x[0].numel() >= 2**31:
            raise ArgumentError(
                f"One client's images must have < 2^31 numbers, got {x[0].numel()}."
            )
