"""What is done to the graph of a step before it is compiled: the same numbers, fewer passes.

A graph here takes the model's tensors of m clients first, perhaps the same in bfloat16 after them,
and returns the losses and the gradients.
"""

from math import prod

import torch
from torch.fx import GraphModule

from .graphs import Node, aten, call, form, inputs, memory, overwritten, results, shape_of

_SAME = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default}
_VIEWS = _SAME | {aten.t.default, aten.transpose.int, aten.unsqueeze.default}
_COPIES = _VIEWS | {aten.as_strided.default, aten.clone.default, aten._to_copy.default}

LARGE = 1 << 14  # numbers in a gradient that is worth handing on as its factors
KINDS = (torch.float32, torch.bfloat16)  # of factors


def cast_beforehand(graph: GraphModule, count: int) -> list[int]:
    """Let the graph read the casts of its first arguments in the `count` arguments after them.

    Returns:
        Which of them it reads.
    """
    given = inputs(graph)
    for part, low in zip(given[:count], given[count : 2 * count], strict=True):
        _replace_casts(graph, part, low)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return [k for k in range(count) if given[count + k].users]


def _replace_casts(graph: GraphModule, exact: Node, low: Node) -> None:
    for user in list(exact.users):
        if user.target is aten._to_copy.default:
            if user.kwargs.get("dtype") == torch.bfloat16:
                user.replace_all_uses_with(low)
        elif user.target in _VIEWS:
            with graph.graph.inserting_after(user):
                same = graph.graph.call_function(user.target, (low, *user.args[1:]), user.kwargs)
            same.meta = user.meta
            _replace_casts(graph, user, same)


def written_once(graph: GraphModule) -> None:
    """Let what several products read, in the same form, be one node, so that it is written once.

    Views and copies alone, and not of what is overwritten. Views that change nothing go too.
    """
    seen: dict[object, Node] = {}
    changed = overwritten(graph)
    for node in list(graph.graph.nodes):
        if node.target not in _COPIES or not isinstance(node.args[0], torch.fx.Node):
            continue
        source = node.args[0]
        if changed & {memory(node), memory(source)}:
            continue
        first: Node = seen.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if node.target in _SAME and form(source) is not None and form(source) == form(node):
            first = source
        if node.target is source.target is aten.transpose.int and node.args[1:] == source.args[1:]:
            first = source.args[0]
        if first is not node:
            node.replace_all_uses_with(first)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def rectified_at_once(graph: GraphModule) -> None:
    """Let convolutions that are followed by nothing but relu end with it."""
    for relu in list(graph.graph.nodes):
        if relu.target is not aten.relu.default or relu.args[0].target is not aten.permute.default:
            continue
        turned = relu.args[0]
        conv = turned.args[0]
        if conv.target is not torch.ops.tunefree.conv.default:
            continue
        if len(turned.users) == len(conv.users) == 1:
            conv.args = (*conv.args[:-1], True)  # its last is `relu`
            relu.replace_all_uses_with(turned)
            turned.meta = relu.meta
    graph.graph.eliminate_dead_code()
    graph.recompile()


def products_apart(graph: GraphModule, given: int, short: int) -> list[int]:
    """Let the graph return the two factors of gradients that are products with short sums.

    Such a gradient is as large as its weight and quick to form: who moves the weight forms it on
    the way, and it is never written. Not where a factor is one of the model's tensors: it may have
    moved by then.

    Args:
        graph: Changed in place.
        given: How many of the graph's arguments are the model's tensors, in either precision.
        short: How many terms such a sum has at most.

    Returns:
        Which gradients (m, o, i) come as pairs (m, o, k), (m, k, i).
    """
    found, pairs, model = results(graph), [], set(inputs(graph)[:given])
    for k, last in enumerate(found[1:]):
        node, turned = last, False
        while len(node.users) == 1 and node.target in (aten._to_copy.default, aten.transpose.int):
            turned ^= node.target is aten.transpose.int
            node = node.args[0]
        if node.target is not aten.bmm.default or len(node.users) != 1:
            continue
        if prod(shape_of(node)[1:]) < LARGE or shape_of(node.args[0])[2] > short:
            continue
        if model & {memory(side) for side in node.args}:
            continue
        if any(side.meta["tensor_meta"].dtype not in KINDS for side in node.args):
            continue
        left, right = node.args
        if turned:
            with graph.graph.inserting_before(last):
                left, right = (
                    call(graph, aten.transpose.int, side, 1, 2) for side in (right, left)
                )
        found[1 + k] = (left, right)
        pairs.append(k)
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    end.args = (found,)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return pairs
