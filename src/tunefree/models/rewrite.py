"""What is done to the graph of a step before it is compiled: the same numbers, fewer passes.

A graph here takes the model's tensors of m clients first, perhaps the same in bfloat16 after them,
and returns the losses and the gradients.
"""

import operator
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.graph import CodeGen

aten = torch.ops.aten

Node: TypeAlias = Any  # torch.fx.Node, of whose arguments its types know nothing

_SAME = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default}
_VIEWS = _SAME | {aten.t.default, aten.transpose.int, aten.unsqueeze.default}
_COPIES = _VIEWS | {aten.as_strided.default, aten.clone.default, aten._to_copy.default}
_FLAT = {aten.view.default, aten._unsafe_view.default}

LARGE = 1 << 14  # numbers in a gradient that is worth handing on as its factors
KINDS = (torch.float32, torch.bfloat16)  # of factors


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


def flatten(graph: GraphModule) -> None:
    """Let a traced graph take its tensors one after another, and return a list."""
    graph.graph.set_codegen(CodeGen())
    graph.recompile()


def inputs(graph: GraphModule) -> list[Node]:
    """Return the nodes that stand for what the graph is given."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def results(graph: GraphModule) -> list[Any]:
    """Return the nodes, or pairs of them, that the graph returns."""
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    return list(end.args[0])


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
    changed = _overwritten(graph)
    for node in list(graph.graph.nodes):
        if node.target not in _COPIES or not isinstance(node.args[0], torch.fx.Node):
            continue
        source = node.args[0]
        if changed & {_memory(node), _memory(source)}:
            continue
        first: Node = seen.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if node.target in _SAME and _form(source) is not None and _form(source) == _form(node):
            first = source
        if node.target is source.target is aten.transpose.int and node.args[1:] == source.args[1:]:
            first = source.args[0]
        if first is not node:
            node.replace_all_uses_with(first)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _memory(node: Node) -> Node:
    """Return the node whose memory a node shows, or changes."""
    while node.args and isinstance(node.args[0], torch.fx.Node) and _shows(node.target):
        node = node.args[0]
    return node


def _shows(target: Any) -> bool:
    """Return whether an operation's result lies in its first argument's memory."""
    if target in (operator.getitem, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _overwritten(graph: GraphModule) -> set[Node]:
    """Return the nodes whose memory is changed in place."""
    found = set()
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            named = [s.name for s in schema.arguments if s.alias_info and s.alias_info.is_write]
            places = {s.name: k for k, s in enumerate(schema.arguments)}
            for name in named:
                at = places[name]
                value = node.args[at] if at < len(node.args) else node.kwargs.get(name)
                many = value if isinstance(value, list | tuple) else [value]
                found |= {_memory(one) for one in many if isinstance(one, torch.fx.Node)}
    return found


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
    found, changed = {}, _overwritten(graph)
    for row in list(graph.graph.nodes):
        if (lie := _lying(row)) is None:
            continue
        if changed & {_memory(row.args[0]), _memory(row.args[0].args[0])}:
            continue
        if (meeting := _meeting(graph, row, lie, count, given)) is None:
            continue
        weight, backs = meeting
        source = row.args[0].args[0]
        lead = _shape(row)[:2]
        shape = [*lead, *lie.lying]
        with graph.graph.inserting_before(row):
            turned = _call(graph, aten.permute.default, source, [0, 1, *(2 + k for k in lie.order)])
            whole = _call(graph, aten.as_strided.default, turned, shape, _dense(shape))
            flat = _call(graph, aten.view.default, whole, [*lead, prod(lie.lying)])
        flat.meta = row.meta
        row.replace_all_uses_with(flat)
        for back in backs:
            with graph.graph.inserting_before(back):
                image = _call(graph, aten.view.default, back.args[0], shape)
                again = _call(graph, aten.permute.default, image, lie.back)
            again.meta = back.meta
            back.replace_all_uses_with(again)
        found[weight] = lie
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return found


def _call(graph: GraphModule, target: Any, *args: Any) -> Node:
    return graph.graph.call_function(target, args)


def _lying(row: Node) -> Images | None:
    """Return how images (m, B, ...) lie that are copied here to be flattened."""
    if row.target not in _FLAT or row.args[0].target is not aten.clone.default:
        return None
    source = row.args[0].args[0]
    known, after = _form(source), _form(row)
    if known is None or after is None or len(known[0]) < 4 or len(after[0]) != 3:
        return None
    shape, strides = known
    if after[0][:2] != shape[:2]:
        return None
    order = tuple(sorted(range(len(shape) - 2), key=lambda k: -strides[2 + k]))
    lie = Images(tuple(shape[2:]), order)
    whole = [*shape[:2], *lie.lying]
    if (*strides[:2], *(strides[2 + k] for k in order)) != _told(whole, _dense(whole)):
        return None
    return lie


def _dense(shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor that lies in the order of its axes."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _told(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return strides with zeros for axes of length one, whose stride says nothing."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


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
    image = (*_shape(row)[:2], *lie.sides)
    if any(back.target not in _FLAT or _shape(back) != image for back in backs):
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
        if prod(_shape(node)[1:]) < LARGE or _shape(node.args[0])[2] > short:
            continue
        if model & {_memory(side) for side in node.args}:
            continue
        if any(side.meta["tensor_meta"].dtype not in KINDS for side in node.args):
            continue
        left, right = node.args
        if turned:
            with graph.graph.inserting_before(last):
                left, right = (
                    _call(graph, aten.transpose.int, side, 1, 2) for side in (right, left)
                )
        found[1 + k] = (left, right)
        pairs.append(k)
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    end.args = (found,)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return pairs


def _form(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape and the strides (see `_told`) that a node had when it was traced."""
    meta = node.meta.get("tensor_meta") if isinstance(node, torch.fx.Node) else None
    return None if meta is None else (tuple(meta.shape), _told(meta.shape, meta.stride))


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)
