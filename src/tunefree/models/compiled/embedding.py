"""The gradient of embeddings in a fixed order of its sums.

Compiled for a GPU, PyTorch's becomes atomic additions, whose order changes from call to call, and
with it the last bits. As one operation it stays PyTorch's own kernel, which sorts the tokens.
"""

import torch
from torch import Tensor

ATOMIC = ("cuda",)  # devices for which the compiler writes atomic additions


@torch.library.custom_op("tunefree::embedding_gradient", mutates_args=())
def gradient(g: Tensor, ids: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    """Return `aten.embedding_dense_backward`, with the same arguments."""
    out: Tensor = torch.ops.aten.embedding_dense_backward(g, ids, rows, padding, scale)
    return out


@gradient.register_fake
def _(g: Tensor, ids: Tensor, rows: int, *_: object) -> Tensor:
    return g.new_empty((rows, g.shape[-1]))


def decompose_gradient(g: Tensor, ids: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    """Return `gradient`, as an entry of a decomposition table."""
    if g.device.type not in ATOMIC:
        return NotImplemented  # type: ignore[no-any-return]
    out: Tensor = gradient(g, ids, rows, padding, scale)
    return out
