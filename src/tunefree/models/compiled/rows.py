"""Rows of m clients that are stored as the model's tensors.

A `TensorRows` behaves as a tensor (m, d), or (d,) for a vector that all clients share. Operations
that treat every number alike act on each of the model's tensors, and sums over the last axis add up
those of the tensors. So a client's rule, which is written for rows, can be traced over the tensors
of a step and compiled with it. Other operations raise an error.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_LIKE = {
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
}
_NEW = {aten.new_full.default, aten.new_zeros.default, aten.new_ones.default}


class TensorRows(torch.Tensor):
    """Rows (m, d), stored as tensors (m, ...); or a vector (d,), stored as tensors (1, ...)."""

    parts: list[Tensor]

    def __new__(cls, parts: Sequence[Tensor], vector: bool = False) -> "TensorRows":
        """Wrap tensors; they are not copied."""
        size = sum(p.shape[1:].numel() for p in parts)
        shape = (size,) if vector else (len(parts[0]), size)
        rows: TensorRows = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=parts[0].dtype, device=parts[0].device
        )
        rows.parts = list(parts)
        return rows

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Apply an operation to each tensor, or a sum to all of them."""
        named = kwargs or {}
        first = args[0]
        if torch.Tag.pointwise in func.tags or func in _LIKE:
            return _apply_each(func, args, named)
        if func is aten.sum.dim_IntList and first.ndim == 2 and list(args[1]) in ([-1], [1]):
            flat = (p.unsqueeze(1) if p.ndim == 1 else p for p in first.parts)
            return reduce(add, (func(p, range(1, p.ndim), *args[2:], **named) for p in flat))
        if func in _NEW and tuple(args[1]) == tuple(first.shape[:1]):
            return func(first.parts[0], *args[1:], **named)
        raise NotImplementedError(f"{func} is not defined for TensorRows.")


def _apply_each(func: Any, args: Any, named: Any) -> TensorRows:
    rows = [a for a in args if isinstance(a, TensorRows)]
    count = max(len(r) for r in rows if r.ndim == 2) if any(r.ndim == 2 for r in rows) else None
    outs = []
    for k, part in enumerate(rows[0].parts):
        given = [_operand(a, k, part.ndim, count) for a in args]
        outs.append(func(*given, **named))
    return TensorRows(outs, vector=count is None)


def _operand(value: Any, k: int, ndim: int, clients: int | None) -> Any:
    """Return what stands for an argument in the operation on the k-th tensor."""
    if isinstance(value, TensorRows):
        return value.parts[k]
    if isinstance(value, Tensor) and value.ndim > 0:
        if value.ndim != 2 or value.shape[1] != 1 or clients is None:
            raise NotImplementedError(f"A tensor {tuple(value.shape)} beside TensorRows.")
        return value.reshape(-1, *[1] * (ndim - 1))
    return value
