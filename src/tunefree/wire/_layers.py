"""What compressors share: layers of a vector, sums of a fixed order, the largest entries."""

import math

import numpy as np
import torch
from torch import Tensor

from ..core.layout import Layout


def list_spans(layout: Layout, per_layer: bool) -> list[tuple[int, int]]:
    """Return where each layer begins and ends, or the whole vector as one; no empty ones.

    >>> list_spans(Layout(("w", "b"), ((2, 3), (2,))), per_layer=True)
    [(0, 6), (6, 8)]
    """
    sizes = layout.sizes if per_layer else [layout.size]
    ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0).tolist()
    return [(end - n, end) for n, end in zip(sizes, ends, strict=True) if n]


def list_kept(layout: Layout, per_layer: bool, ratio: float) -> list[tuple[int, int, int]]:
    """Return where each layer begins and ends, and how many entries a ratio keeps: k >= 1.

    >>> list_kept(Layout(("w", "b"), ((10, 5), (3,))), per_layer=True, ratio=0.1)
    [(0, 50, 5), (50, 53, 1)]
    """
    cuts = list_spans(layout, per_layer)
    return [(b, e, max(1, math.floor(float(ratio) * (e - b)))) for b, e in cuts]


def mark_largest(score: Tensor, k: int) -> Tensor:
    """Return the mask of the k largest entries of each row; of equal ones the first.

    >>> mark_largest(torch.tensor([[1, 3, 3, 3, 2]]), 2)
    tensor([[False,  True,  True, False, False]])
    """
    if k >= score.shape[-1]:
        return torch.ones_like(score, dtype=torch.bool)
    if score.device.type == "cpu":  # where topk takes ten times as long
        place = score.shape[-1] - k
        order = np.partition(score.numpy(), place, axis=-1)
        edge = torch.from_numpy(order[..., place : place + 1].copy())
        found = score >= edge
        if bool((found.sum(-1) == k).all()):  # no ties
            return found
    else:
        edge = score.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, ties = score > edge, score == edge
    room = k - above.sum(-1, keepdim=True)
    return above | (ties & (ties.cumsum(-1, dtype=torch.int32) <= room))


def sum_halves(v: Tensor, dim: int = -1) -> Tensor:
    """Return the sum along an axis (kept, of length 1) by halves, in the same order always.

    Only elementwise additions: the bits depend neither on the other axes nor on the device.

    >>> sum_halves(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    tensor([[15.]])
    """
    n = v.shape[dim]
    while n > 1:
        half, rest = (n + 1) // 2, n // 2
        sums = v.narrow(dim, 0, rest) + v.narrow(dim, half, rest)
        v = sums if rest == half else torch.cat([sums, v.narrow(dim, rest, 1)], dim)
        n = half
    return v


def compute_norm(v: Tensor) -> Tensor:
    """Return the Euclidean norm along the last axis, kept; no square over- or underflows.

    >>> compute_norm(torch.tensor([[3e30, -4e30], [0.0, 0.0]]))
    tensor([[5.0000e+30],
            [0.0000e+00]])
    """
    top = v.abs().amax(-1, keepdim=True)
    unit = torch.where(top > 0, v / top, v)
    return top * _compute_root(sum_halves(unit * unit).clamp(min=1))


def _compute_root(s: Tensor) -> Tensor:
    """Return the square root of s >= 1, the same bits everywhere; torch's own depend on the CPU.

    53 bits, the last of them unsure, are enough to round to 24; two Heron steps double them twice.
    """
    y = s.float().double().sqrt().float()
    if s.dtype == torch.float32:
        return y
    y = y.double()
    for _ in range(2):
        y = (y + s / y) * 0.5
    return y
