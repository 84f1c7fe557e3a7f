"""Graphs of recorded operations: what they take and return, and how their tensors lie in memory."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule
from torch.fx.graph import CodeGen

aten = torch.ops.aten

Node: TypeAlias = Any  # torch.fx.Node, of whose arguments its types know nothing


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


def call(graph: GraphModule, target: Any, *args: Any) -> Node:
    """Add an operation where the graph inserts, and return it."""
    return graph.graph.call_function(target, args)


def memory(node: Node) -> Node:
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


def overwritten(graph: GraphModule) -> set[Node]:
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
                found |= {memory(one) for one in many if isinstance(one, torch.fx.Node)}
    return found


def form(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape and the strides (see `told`) that a node had when it was traced."""
    meta = node.meta.get("tensor_meta") if isinstance(node, torch.fx.Node) else None
    return None if meta is None else (tuple(meta.shape), told(meta.shape, meta.stride))


def told(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return strides with zeros for axes of length one, whose stride says nothing."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape that a node had when it was traced."""
    return tuple(node.meta["tensor_meta"].shape)
