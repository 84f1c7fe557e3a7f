"""Queries and edits of torch.fx graphs that rewriting passes share."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule
from torch.fx.graph import CodeGen

aten = torch.ops.aten

GraphNode: TypeAlias = Any  # torch.fx.Node, whose annotations do not cover its arguments

VIEWS = {aten.view.default, aten._unsafe_view.default}


def flatten_signature(graph: GraphModule) -> None:
    """Make a traced graph take its tensors as positional arguments and return a list."""
    graph.graph.set_codegen(CodeGen())
    graph.recompile()


def finish(graph: GraphModule) -> None:
    """Remove nodes without users and recompile, after a pass."""
    graph.graph.eliminate_dead_code()
    graph.recompile()


def placeholders(graph: GraphModule) -> list[GraphNode]:
    """Return the nodes of the graph's arguments."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def output_node(graph: GraphModule) -> GraphNode:
    """Return the node that holds the graph's results in its first argument."""
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    return end


def add_call(graph: GraphModule, target: Any, *args: Any) -> GraphNode:
    """Add an operation at the graph's insertion point and return it."""
    return graph.graph.call_function(target, args)


def storage_node(node: GraphNode) -> GraphNode:
    """Return the node whose memory a node is a view of, or changes."""
    while node.args and isinstance(node.args[0], torch.fx.Node) and _aliases_input(node.target):
        node = node.args[0]
    return node


def _aliases_input(target: Any) -> bool:
    """Return whether an operation's result lies in its first argument's memory."""
    if target in (operator.getitem, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def mutated_nodes(graph: GraphModule) -> set[GraphNode]:
    """Return the nodes whose memory is changed in place."""
    found = set()
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for at, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            many = value if isinstance(value, list | tuple) else [value]
            found |= {storage_node(one) for one in many if isinstance(one, torch.fx.Node)}
    return found


def traced_layout(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a node's shape and canonical strides at tracing time, if it was a tensor."""
    meta = node.meta.get("tensor_meta") if isinstance(node, torch.fx.Node) else None
    return None if meta is None else (tuple(meta.shape), canonical_strides(meta.shape, meta.stride))


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return strides with zeros for axes of length one, where the stride has no meaning."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def traced_shape(node: GraphNode) -> tuple[int, ...]:
    """Return the shape that a node had at tracing time."""
    return tuple(node.meta["tensor_meta"].shape)
