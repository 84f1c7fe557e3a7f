"""Passes over the graph of a step before it is compiled: the same results in fewer kernels.

Such a graph takes the model's tensors of m clients, optionally their bfloat16 copies after them,
then the batch; it returns the losses and the gradients.
"""

from math import prod

import torch
from torch.fx import GraphModule

from ..conv2d import force_strides_op
from .graphs import (
    VIEWS,
    GraphNode,
    add_call,
    aten,
    finish,
    mutated_nodes,
    output_node,
    placeholders,
    storage_node,
    traced_layout,
    traced_shape,
)

_RESHAPES = VIEWS | {aten.expand.default, aten.permute.default}
_MOVES = _RESHAPES | {aten.t.default, aten.transpose.int, aten.unsqueeze.default}
_COPIES = _MOVES | {aten.clone.default, aten._to_copy.default}

MIN_FACTORED = 1 << 14  # elements per client of a gradient that is worth returning as factors
FACTOR_DTYPES = (torch.float32, torch.bfloat16)


def use_cast_inputs(graph: GraphModule, count: int) -> list[int]:
    """Replace casts of the first `count` arguments to bfloat16 by the `count` arguments after them.

    Returns:
        Indices of the bfloat16 arguments that the graph now uses.
    """
    given = placeholders(graph)
    for part, low in zip(given[:count], given[count : 2 * count], strict=True):
        _replace_casts(graph, part, low)
    finish(graph)
    return [k for k in range(count) if given[count + k].users]


def _replace_casts(graph: GraphModule, exact: GraphNode, low: GraphNode) -> None:
    for user in list(exact.users):
        if user.target is aten._to_copy.default:
            if user.kwargs.get("dtype") == torch.bfloat16:
                user.replace_all_uses_with(low)
        elif user.target in _MOVES:
            with graph.graph.inserting_after(user):
                same = graph.graph.call_function(user.target, (low, *user.args[1:]), user.kwargs)
            same.meta = user.meta
            _replace_casts(graph, user, same)


def merge_copies(graph: GraphModule) -> None:
    """Merge equal views and copies of a tensor into one node, so that it is written once.

    Tensors that are changed in place are left alone. Views that change nothing are removed.
    """
    seen: dict[object, GraphNode] = {}
    mutated, copies = mutated_nodes(graph), _COPIES | {force_strides_op()}
    for node in list(graph.graph.nodes):
        if node.target not in copies or not isinstance(node.args[0], torch.fx.Node):
            continue
        source = node.args[0]
        if mutated & {storage_node(node), storage_node(source)}:
            continue
        first: GraphNode = seen.setdefault(repr((node.target, node.args, node.kwargs)), node)
        layout = traced_layout(source)
        if node.target in _RESHAPES and layout is not None and layout == traced_layout(node):
            first = source
        if node.target is source.target is aten.transpose.int and node.args[1:] == source.args[1:]:
            first = source.args[0]
        if first is not node:
            node.replace_all_uses_with(first)
    finish(graph)


def fuse_conv_relu(graph: GraphModule) -> None:
    """Apply ReLU inside the convolution kernel if it is the only use of the convolution."""
    for relu in list(graph.graph.nodes):
        if relu.target is not aten.relu.default or relu.args[0].target is not aten.permute.default:
            continue
        permuted = relu.args[0]
        conv = permuted.args[0]
        if conv.target is not torch.ops.tunefree.conv.default:
            continue
        if len(permuted.users) == len(conv.users) == 1:
            conv.args = (*conv.args[:-1], True)  # its last argument is `relu`
            relu.replace_all_uses_with(permuted)
            permuted.meta = relu.meta
    finish(graph)


def return_factors(graph: GraphModule, given: int, max_terms: int) -> list[int]:
    """Return large gradients that are products with short sums as their two factors.

    Such a gradient is as large as its weight and cheap to compute: the kernel that updates the
    weight computes it in registers, and it is never written to memory. A gradient with one of the
    model's tensors as a factor stays as it is, because that tensor may be updated first.

    Args:
        graph: Changed in place.
        given: Number of the graph's arguments that are the model's tensors, in either precision.
        max_terms: Largest number of terms of such a sum.

    Returns:
        Indices of the gradients (m, o, i) that are now pairs (m, o, k), (m, k, i).
    """
    end, model = output_node(graph), set(placeholders(graph)[:given])
    results, factored = list(end.args[0]), []
    for k, last in enumerate(results[1:]):
        node, transposed = last, False
        while len(node.users) == 1 and node.target in (aten._to_copy.default, aten.transpose.int):
            transposed ^= node.target is aten.transpose.int
            node = node.args[0]
        if node.target is not aten.bmm.default or len(node.users) != 1:
            continue
        if prod(traced_shape(node)[1:]) < MIN_FACTORED:
            continue
        if traced_shape(node.args[0])[2] > max_terms:
            continue
        if model & {storage_node(side) for side in node.args}:
            continue
        if any(side.meta["tensor_meta"].dtype not in FACTOR_DTYPES for side in node.args):
            continue
        left, right = node.args
        if transposed:
            with graph.graph.inserting_before(last):
                left, right = (
                    add_call(graph, aten.transpose.int, side, 1, 2) for side in (right, left)
                )
        results[1 + k] = (left, right)
        factored.append(k)
    end.args = (results,)
    finish(graph)
    return factored
