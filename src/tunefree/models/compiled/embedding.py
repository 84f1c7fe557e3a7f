"""Embeddings and their gradients as operations that the compiler leaves whole.

Compiled for a GPU, PyTorch's gradient becomes atomic additions, whose order changes from call to
call, and with it the last bits. Compiled for a CPU, it becomes atomic additions too, and rows are
read number by number. As operations of their own, rows are copied whole, and the gradient is summed
in a fixed order: by PyTorch's kernel on a GPU, which sorts the tokens, and on a CPU by
`scatter_add_`, which sorts them too and is faster than `aten.embedding_dense_backward`. In gradient
descent on a CPU, only the rows of a batch's tokens are changed (`return_rows`, `descend`): a
gradient that is mostly zeros is never written.
"""

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...core.types import Rows
from ..gpu.graphs import VIEWS, finish, output_node


@torch.library.custom_op("tunefree::embedding", mutates_args=())
def embed(weight: Tensor, ids: Tensor) -> Tensor:
    """Return `torch.embedding(weight, ids)`."""
    return torch.embedding(weight, ids)


@embed.register_fake
def _(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[-1]))


@torch.library.custom_op("tunefree::embedding_gradient", mutates_args=())
def gradient(g: Tensor, ids: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    """Return `aten.embedding_dense_backward`, with the same arguments."""
    if g.device.type == "cpu" and not scale:
        if padding >= 0:
            g = g.masked_fill((ids == padding)[..., None], 0)
        return _add(g.new_zeros(rows, g.shape[-1]), ids, g)
    found: Tensor = torch.ops.aten.embedding_dense_backward(g, ids, rows, padding, scale)
    return found


@gradient.register_fake
def _(g: Tensor, ids: Tensor, rows: int, *_: object) -> Tensor:
    return g.new_empty((rows, g.shape[-1]))


def decompose(weight: Tensor, ids: Tensor, *_: object) -> Tensor:
    """Return `embed` on a CPU, as an entry of a decomposition table."""
    if weight.device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    out: Tensor = embed(weight, ids)
    return out


def decompose_gradient(g: Tensor, ids: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    """Return `gradient`, as an entry of a decomposition table."""
    out: Tensor = gradient(g, ids, rows, padding, scale)
    return out


def return_rows(graph: GraphModule) -> list[int]:
    """Return gradients of embeddings as the gradients of the tokens, and the tokens.

    Args:
        graph: Returns losses and gradients; changed in place.

    Returns:
        Indices of the gradients (m, V, E) that are now pairs (m, ..., E), (m, ...); the tokens of
        client i are numbered from i V on.
    """
    end = output_node(graph)
    results, found = list(end.args[0]), []
    for k, node in enumerate(results[1:]):
        while len(node.users) == 1 and node.target in VIEWS:
            node = node.args[0]
        if node.target is not torch.ops.tunefree.embedding_gradient.default:
            continue
        g, ids, _, padding, scale = node.args
        if len(node.users) == 1 and padding < 0 and not scale:
            results[1 + k] = (g, ids)
            found.append(k)
    end.args = (results,)
    finish(graph)
    return found


def scale_rows(g: Tensor, lr: Rows) -> Tensor:
    """Return the changes of rows by a step; 0 for clients with lr 0."""
    each = lr.reshape(-1, *[1] * (g.ndim - 1))
    return torch.where(each > 0, -each * g, 0.0)


def descend(part: Tensor, moves: Tensor, ids: Tensor) -> None:
    """Add the moves of tokens to the rows of an embedding (m, V, E), in place."""
    _add(part.view(-1, part.shape[-1]), ids, moves)


def _add(rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    width = rows.shape[1]
    index = ids.reshape(-1, 1).expand(-1, width)
    return rows.scatter_add_(0, index, values.reshape(-1, width).contiguous())
