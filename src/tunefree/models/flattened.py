"""Images that are flattened where they lie: the weights behind them lie in their order."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor
from torch.fx import GraphModule

from .graphs import Node, aten, call, form, inputs, memory, overwritten, results, shape_of, told

_FLAT = {aten.view.default, aten._unsafe_view.default}


class Images(NamedTuple):
    """How the columns of a weight lie in memory where they meet flattened images.

    Args:
        sides: Sides of an image, as the model has them: (channels, height, width).
        order: Which of them comes first in memory, second, ...
    """

    sides: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def lying(self) -> list[int]:
        """The sides in the order of memory."""
        return [self.sides[k] for k in self.order]

    @property
    def back(self) -> list[int]:
        """Axes of (m, ., *lying) that make it (m, ., *sides)."""
        return [0, 1, *(2 + self.order.index(k) for k in range(len(self.order)))]

    def seen(self, weight: Tensor) -> Tensor:
        """Return (m, o, columns as they lie) as (m, o, *sides)."""
        return weight.reshape(*weight.shape[:2], *self.lying).permute(self.back)


def images_as_they_lie(graph: GraphModule, count: int, given: int) -> dict[int, Images]:
    """Let products sum over flattened images in the order in which those lie in memory.

    A model flattens (channels, height, width); on a GPU channels come last, and to flatten them is
    to write them anew, there and back. Where such a row meets nothing but one weight, the columns
    of that weight may as well lie in the images' order.

    Args:
        graph: Changed in place.
        count: How many tensors the model has.
        given: How many of the graph's arguments are those tensors, in either precision.

    Returns:
        Which of the model's tensors (m, o, columns) lie otherwise from now on, and how.
    """
    found, changed = {}, overwritten(graph)
    for row in list(graph.graph.nodes):
        if (lie := _lying(row)) is None:
            continue
        if changed & {memory(row.args[0]), memory(row.args[0].args[0])}:
            continue
        if (meeting := _meeting(graph, row, lie, count, given)) is None:
            continue
        weight, backs = meeting
        source = row.args[0].args[0]
        lead = shape_of(row)[:2]
        shape = [*lead, *lie.lying]
        with graph.graph.inserting_before(row):
            turned = call(graph, aten.permute.default, source, [0, 1, *(2 + k for k in lie.order)])
            whole = call(graph, aten.as_strided.default, turned, shape, _dense(shape))
            flat = call(graph, aten.view.default, whole, [*lead, prod(lie.lying)])
        flat.meta = row.meta
        row.replace_all_uses_with(flat)
        for back in backs:
            with graph.graph.inserting_before(back):
                image = call(graph, aten.view.default, back.args[0], shape)
                again = call(graph, aten.permute.default, image, lie.back)
            again.meta = back.meta
            back.replace_all_uses_with(again)
        found[weight] = lie
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return found


def _lying(row: Node) -> Images | None:
    """Return how images (m, B, ...) lie that are copied here to be flattened."""
    if row.target not in _FLAT or row.args[0].target is not aten.clone.default:
        return None
    source = row.args[0].args[0]
    known, after = form(source), form(row)
    if known is None or after is None or len(known[0]) < 4 or len(after[0]) != 3:
        return None
    shape, strides = known
    if after[0][:2] != shape[:2]:
        return None
    order = tuple(sorted(range(len(shape) - 2), key=lambda k: -strides[2 + k]))
    lie = Images(tuple(shape[2:]), order)
    whole = [*shape[:2], *lie.lying]
    if (*strides[:2], *(strides[2 + k] for k in order)) != told(whole, _dense(whole)):
        return None
    return lie


def _dense(shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor that lies in the order of its axes."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _meeting(
    graph: GraphModule, row: Node, lie: Images, count: int, given: int
) -> tuple[int, list[Node]] | None:
    """Return the weight that a flattened row meets, and where gradients become images again.

    None if the row, the weight or its gradient is used in any other way.
    """
    known = {node: k % count for k, node in enumerate(inputs(graph)[:given])}
    weights: set[Node] = set()
    gradients: list[Node] = []
    for user in row.users:
        if user.target is aten.transpose.int:
            if any(use.args[0] is not user for use in user.users):
                return None
            gradients += list(user.users)
        elif user.target is aten.bmm.default and user.args[1] is row:
            gradients.append(user)
        elif user.target is aten.bmm.default and user.args[1].target is aten.transpose.int:
            weights.add(user.args[1].args[0])
        else:
            return None
    if len(weights) != 1 or (weight := weights.pop()) not in known:
        return None
    if any(node is not weight and k == known[weight] and node.users for node, k in known.items()):
        return None  # it is read in the other precision too
    if any(node.target is not aten.bmm.default for node in gradients):
        return None
    ends = {_end(node) for node in gradients}
    if ends - {results(graph)[1 + known[weight]]}:
        return None
    backs: list[Node] = []
    for user in weight.users:
        if user.target is aten.transpose.int and all(use.args[0] is row for use in user.users):
            continue
        if user.target is not aten.bmm.default or user.args[1] is not weight:
            return None
        backs += list(user.users)
    image = (*shape_of(row)[:2], *lie.sides)
    if any(back.target not in _FLAT or shape_of(back) != image for back in backs):
        return None
    return known[weight], backs


def _end(node: Node) -> Node:
    """Follow a node through casts and transposes to the last before something else."""
    while len(node.users) == 1:
        (after,) = node.users
        if after.target not in (aten._to_copy.default, aten.transpose.int):
            break
        node = after
    return node
