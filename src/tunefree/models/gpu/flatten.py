"""A graph pass that flattens images in their memory order and reorders the next weight instead."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor
from torch.fx import GraphModule

from ..conv2d import force_strides_op
from .graphs import (
    VIEWS,
    GraphNode,
    add_call,
    aten,
    canonical_strides,
    finish,
    mutated_nodes,
    output_node,
    placeholders,
    storage_node,
    traced_layout,
    traced_shape,
)


class ColumnOrder(NamedTuple):
    """Memory order of the columns of a weight that multiplies flattened images.

    Args:
        sides: Sides of an image in the model's order: (channels, height, width).
        order: Axes of an image from the outermost to the innermost in memory.
    """

    sides: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def memory_sides(self) -> list[int]:
        """The sides in memory order."""
        return [self.sides[k] for k in self.order]

    @property
    def model_axes(self) -> list[int]:
        """The permutation of (m, ., *memory_sides) to (m, ., *sides)."""
        return [0, 1, *(2 + self.order.index(k) for k in range(len(self.order)))]

    def in_model_order(self, weight: Tensor) -> Tensor:
        """Return a weight (m, o, columns in memory order) as a view (m, o, *sides)."""
        return weight.reshape(*weight.shape[:2], *self.memory_sides).permute(self.model_axes)


def flatten_in_memory_order(graph: GraphModule, count: int, given: int) -> dict[int, ColumnOrder]:
    """Flatten images without a copy, by reordering the columns of the weight that reads them.

    A model flattens (channels, height, width). On a GPU channels are last in memory, so flattening
    copies the images, and their gradients again. If a flattened image is read by one weight only,
    the columns of that weight can have the images' memory order instead.

    Args:
        graph: Changed in place.
        count: Number of the model's tensors.
        given: Number of the graph's arguments that are those tensors, in either precision.

    Returns:
        The column order of each weight (m, o, columns) that the graph now reads reordered, by its
        index among the model's tensors.
    """
    found, mutated = {}, mutated_nodes(graph)
    for row in list(graph.graph.nodes):
        if (columns := _flattened_image(row)) is None:
            continue
        if mutated & {storage_node(row.args[0]), storage_node(row.args[0].args[0])}:
            continue
        if (match := _find_weight(graph, row, columns, count, given)) is None:
            continue
        weight, unflattened = match
        source = row.args[0].args[0]
        lead = traced_shape(row)[:2]
        shape = [*lead, *columns.memory_sides]
        axes = [0, 1, *(2 + k for k in columns.order)]
        with graph.graph.inserting_before(row):
            permuted = add_call(graph, aten.permute.default, source, axes)
            strides = _contiguous_strides(shape)
            whole = add_call(graph, force_strides_op(), permuted, strides)
            flat = add_call(graph, aten.view.default, whole, [*lead, prod(columns.memory_sides)])
        flat.meta = row.meta
        row.replace_all_uses_with(flat)
        for node in unflattened:
            with graph.graph.inserting_before(node):
                image = add_call(graph, aten.view.default, node.args[0], shape)
                again = add_call(graph, aten.permute.default, image, columns.model_axes)
            again.meta = node.meta
            node.replace_all_uses_with(again)
        found[weight] = columns
    finish(graph)
    return found


def _flattened_image(row: GraphNode) -> ColumnOrder | None:
    """Return the memory order of images (m, B, ...) that this node copies and flattens, if any."""
    if row.target not in VIEWS or row.args[0].target is not aten.clone.default:
        return None
    before, after = traced_layout(row.args[0].args[0]), traced_layout(row)
    if before is None or after is None or len(before[0]) < 4 or len(after[0]) != 3:
        return None
    shape, strides = before
    if after[0][:2] != shape[:2]:
        return None
    order = tuple(sorted(range(len(shape) - 2), key=lambda k: -strides[2 + k]))
    columns = ColumnOrder(tuple(shape[2:]), order)
    whole = [*shape[:2], *columns.memory_sides]
    dense = canonical_strides(whole, _contiguous_strides(whole))
    return columns if (*strides[:2], *(strides[2 + k] for k in order)) == dense else None


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _find_weight(
    graph: GraphModule, row: GraphNode, columns: ColumnOrder, count: int, given: int
) -> tuple[int, list[GraphNode]] | None:
    """Return the weight that reads a flattened row, and the nodes that unflatten its gradient.

    None if the row, the weight or its gradient is used in any other way.
    """
    known = {node: k % count for k, node in enumerate(placeholders(graph)[:given])}
    weights: set[GraphNode] = set()
    gradients: list[GraphNode] = []
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
    result = output_node(graph).args[0][1 + known[weight]]
    if {_skip_casts(node) for node in gradients} - {result}:
        return None
    unflattened: list[GraphNode] = []
    for user in weight.users:
        if user.target is aten.transpose.int and all(use.args[0] is row for use in user.users):
            continue
        if user.target is not aten.bmm.default or user.args[1] is not weight:
            return None
        unflattened += list(user.users)
    image = (*traced_shape(row)[:2], *columns.sides)
    if any(node.target not in VIEWS or traced_shape(node) != image for node in unflattened):
        return None
    return known[weight], unflattened


def _skip_casts(node: GraphNode) -> GraphNode:
    """Follow a node through casts and transposes that are its only use; return the last one."""
    while len(node.users) == 1:
        (after,) = node.users
        if after.target not in (aten._to_copy.default, aten.transpose.int):
            break
        node = after
    return node
