"""Whole steps of gradient descent, compiled: gradients are never written as one long row.

    y <- y - lr grad F(y)          in place, tensor by tensor, by the kernels that end the gradient

While clients walk, their rows lie cut into the model's tensors: each begins where a processor likes
it to, and is written once a step instead of three times. Where products are in bfloat16, tensors
are kept in it too, beside the exact ones, so that no step begins with casting them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ..types import Inputs, Rows
from .capture import Captured
from .compiler import compiled
from .convolution import Lowered
from .losses import Batch, Order, gathered
from .narrow import products
from .problem import Problem

Gradients = Callable[[tuple[Tensor, ...], Inputs, Tensor, Tensor, Tensor], tuple[Any, Rows]]


class Descent:
    """Steps of m clients, for batches of one shape.

    Args:
        problem: What is descended.
        gradients: Gradients and losses of m clients: (parts, inputs, target, mask, key).
        probe: A batch in the form that training uses.
    """

    def __init__(self, problem: Problem, gradients: Gradients, probe: Batch | Order) -> None:
        self._problem, self._gpu = problem, problem.device.type == "cuda"
        gather = probe.gather if isinstance(probe, Order) and self._gpu else None
        self._ordered = gather is not None
        rest = self._arguments(probe)
        self._rows = m = len(rest[-1])
        y = problem.start.expand(m, -1)
        parts = problem.layout.split(y.contiguous())
        self._parts = [p.clone(memory_format=torch.contiguous_format) for p in parts]
        low = problem.precision == "bf16"
        self._low = [p.to(torch.bfloat16) for p in self._parts] if low else []
        self._total, self._lr = y.new_zeros(m), y.new_zeros(m)  # nobody moves while this is set up
        self._given: Rows | None = None  # what was last copied to _lr

        def step(
            parts: list[Tensor], low: list[Tensor], total: Rows, lr: Rows, *args: Any
        ) -> list[Tensor]:
            batch = args if gather is None else gather(*args).parts
            with Lowered(samples_last=not self._gpu):
                grads, loss = gradients(tuple(parts), *batch)
            each = [lr.reshape(-1, *[1] * (p.ndim - 1)) for p in parts]
            moved = zip(parts, each, grads, strict=True)
            out = [torch.where(a > 0, p - a * g, p) for p, a, g in moved]
            return [torch.where(lr > 0, total + loss, total), *out]

        with problem.arithmetic():
            traced = make_fx(step, decomposition_table=products())
            graph = traced(self._parts, self._low, self._total, self._lr, *rest)
            used = _cast_beforehand(graph, len(self._low))

            def walk(
                parts: list[Tensor], low: list[Tensor], total: Rows, lr: Rows, *args: Any
            ) -> Tensor:
                found: list[Tensor] = graph(parts, low, total, lr, *args)
                for place, new in zip([total, *parts], found, strict=True):
                    place.copy_(new)
                for k in used:
                    low[k].copy_(found[1 + k])
                return total

            # a graph of its own: the compiler keeps few versions of one function, then gives up
            whole = make_fx(walk)(self._parts, self._low, self._total, self._lr, *rest)
            fast = compiled(whole, problem.device)

            def here(first: Tensor, *args: Any) -> Tensor:
                found: Tensor = fast(self._parts, self._low, self._total, self._lr, *args)
                return found

            here(self._total, *rest)
            self._walk = Captured(here, self._total, *rest) if self._gpu else here

    def _arguments(self, batch: Batch | Order) -> tuple[Any, ...]:
        if self._ordered:
            assert isinstance(batch, Order)
            return (batch.code,)
        return gathered(batch).parts

    def fits(self, m: int) -> bool:
        """Return whether this is for so many clients."""
        return m == self._rows

    def begin(self, y: Rows) -> None:
        """Let the clients stand at y (m, d)."""
        for part, new in zip(self._parts, self._problem.layout.split(y), strict=True):
            part.copy_(new)
        for low, part in zip(self._low, self._parts, strict=False):
            low.copy_(part)
        self._total.zero_()

    def step(self, batch: Batch | Order, lr: Rows) -> None:
        """Move on; clients with lr 0 stay, whatever their gradients."""
        if lr is not self._given:
            self._lr.copy_(lr)
            self._given = lr
        with self._problem.arithmetic():
            self._walk(self._total, *self._arguments(batch))

    def end(self) -> tuple[Rows, Rows]:
        """Return where the clients stand, and each one's losses on the way, added up."""
        return self._problem.layout.join(self._parts, lead=1), self._total.clone()


_VIEWS = {
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.t.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.permute.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.expand.default,
}


def _cast_beforehand(graph: GraphModule, count: int) -> list[int]:
    """Let the graph read the casts of its first arguments in the `count` arguments after them.

    Returns:
        Which of them it reads.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for part, low in zip(inputs[:count], inputs[count : 2 * count], strict=True):
        _replace_casts(graph, part, low)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return [k for k in range(count) if inputs[count + k].users]


def _replace_casts(graph: GraphModule, exact: Node, low: Node) -> None:
    for user in list(exact.users):
        if user.target is torch.ops.aten._to_copy.default:
            if user.kwargs.get("dtype") == torch.bfloat16:
                user.replace_all_uses_with(low)
        elif user.target in _VIEWS:
            with graph.graph.inserting_after(user):
                same = graph.graph.call_function(user.target, (low, *user.args[1:]), user.kwargs)
            _replace_casts(graph, user, same)
