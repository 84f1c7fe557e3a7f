"""Batched matrix products of m clients with few classes, in shapes that libraries run fast.

    a (m, p, k) @ b (m, k, q)

Libraries are slow if q, the classes, is no multiple of a vector register. On a CPU such a product
is computed transposed. On a GPU, m products with a long sum over k and small results occupy few
multiprocessors: the sum is split into pieces that are computed in parallel, and q is padded.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CPU_LANES = 16  # elements of a CPU's vector register
LONG_SUM, PIECE = 1024, 512  # terms of a sum that is worth splitting, and of its pieces
BUSY_TILES = 64  # products in parallel that occupy enough of a GPU
GPU_ALIGNMENT = 8  # elements to which rows are padded on a GPU


class BatchedMatmul:
    """torch.bmm in one trace; the gradient of the weights reuses a split left operand."""

    def __init__(self) -> None:
        self._splits: dict[object, tuple[Tensor, Tensor]] = {}  # operand and pieces, by address

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product, or NotImplemented where torch.bmm is as fast."""
        if a.device.type == "cuda":
            return self._gpu(a, b)
        p, q = a.shape[1], b.shape[2]
        if p % CPU_LANES == 0 and q % CPU_LANES and a.stride(2) == 1 and b.stride(1) == 1:
            return torch.bmm(b.mT, a.mT).mT
        return NotImplemented  # type: ignore[no-any-return]

    def _gpu(self, a: Tensor, b: Tensor) -> Tensor:
        (m, p, k), q = a.shape, b.shape[2]
        if q < 64 and k >= LONG_SUM and k % PIECE == 0 and m * -(-p // 64) < BUSY_TILES:
            left = self._split(a)  # (m s, p, piece)
            right = b.mT.reshape(m, q, -1, PIECE).transpose(1, 2)
            right = F.pad(right, (0, 0, 0, -q % GPU_ALIGNMENT)).flatten(0, 1)
            parts = torch.bmm(left, right.mT).reshape(m, -1, p, right.shape[1])
            return parts.sum(1)[..., :q]
        if (found := self._splits.get(_address(b))) is not None:  # the gradient of the weights
            pieces, left = found[1], F.pad(a, (0, 0, 0, -p % GPU_ALIGNMENT))
            left = left.unsqueeze(1).expand(m, len(pieces) // m, *left.shape[1:]).flatten(0, 1)
            parts = torch.bmm(left, pieces).reshape(m, -1, left.shape[1], PIECE)
            return parts[:, :, :p].transpose(1, 2).reshape(m, p, q)
        return NotImplemented  # type: ignore[no-any-return]

    def _split(self, a: Tensor) -> Tensor:
        """(m, p, k) -> (m s, p, k / s), contiguous."""
        address = _address(a)
        if address not in self._splits:
            m, p, _ = a.shape
            self._splits[address] = a, a.reshape(m, p, -1, PIECE).transpose(1, 2).flatten(0, 1)
        return self._splits[address][1]


def _address(t: Tensor) -> object:
    return t.data_ptr(), t.shape, t.stride()
