"""Batched products of many clients with few classes, laid out as processors like them.

    a (m, p, k) @ b (m, k, q)

Libraries are slow where q, the classes, fills no vector: on a CPU such a product is formed
transposed. On a GPU, m products with a long sum k and small results occupy few of its parts: the
sum is cut into pieces that are formed side by side, and classes are padded to whole vectors.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LANE = 16  # numbers in a vector of a CPU
LONG, PIECE = 1024, 512  # a sum worth cutting, and its pieces
BUSY = 64  # products side by side that keep enough of a GPU occupied
EVEN = 8  # numbers to which rows are aligned on a GPU


def products() -> dict[Any, Callable[[Tensor, Tensor], Tensor]]:
    """Return how batched products are to be traced, for one trace."""
    return {torch.ops.aten.bmm.default: _Products()}


class _Products:
    """Products of one trace; a left side that was cut serves its gradients too."""

    def __init__(self) -> None:
        self._cut: dict[object, tuple[Tensor, Tensor]] = {}  # by place: what was cut, its pieces

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if a.device.type == "cuda":
            return self._on_a_gpu(a, b)
        p, q = a.shape[1], b.shape[2]
        if p % LANE == 0 and q % LANE and a.stride(2) == 1 and b.stride(1) == 1:
            return torch.bmm(b.mT, a.mT).mT
        return NotImplemented  # type: ignore[no-any-return]

    def _on_a_gpu(self, a: Tensor, b: Tensor) -> Tensor:
        (m, p, k), q = a.shape, b.shape[2]
        if q < 64 and k >= LONG and k % PIECE == 0 and m * -(-p // 64) < BUSY:
            left = self._pieces(a)  # (m s, p, piece)
            right = b.mT.reshape(m, q, -1, PIECE).transpose(1, 2)
            right = F.pad(right, (0, 0, 0, -q % EVEN)).flatten(0, 1)
            parts = torch.bmm(left, right.mT).reshape(m, -1, p, right.shape[1])
            return parts.sum(1)[..., :q]
        if (found := self._cut.get(_place(b))) is not None:  # the gradient of the weights
            pieces, left = found[1], F.pad(a, (0, 0, 0, -p % EVEN))
            left = left.unsqueeze(1).expand(m, len(pieces) // m, *left.shape[1:]).flatten(0, 1)
            parts = torch.bmm(left, pieces).reshape(m, -1, left.shape[1], PIECE)
            return parts[:, :, :p].transpose(1, 2).reshape(m, p, q)
        return NotImplemented  # type: ignore[no-any-return]

    def _pieces(self, a: Tensor) -> Tensor:
        """(m, p, k) -> (m s, p, k / s), in this order in memory."""
        place = _place(a)
        if place not in self._cut:
            m, p, _ = a.shape
            self._cut[place] = a, a.reshape(m, p, -1, PIECE).transpose(1, 2).flatten(0, 1)
        return self._cut[place][1]


def _place(t: Tensor) -> object:
    return t.data_ptr(), t.shape, t.stride()
