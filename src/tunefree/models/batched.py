"""All clients in one batched call."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from ..types import Inputs, Rows, tensors
from .losses import Batch
from .problem import Problem

TRACE_AFTER = 20  # calls in one shape before it is worth recording as a graph
MOST_SHAPES = 16  # beyond this, shapes vary too much for graphs to pay


class Vmapped:
    """All clients in one batched call.

    A shape that keeps coming is recorded once as a graph of plain operations, which gives the
    same bits without the cost of transforming the function anew at each call. With `compile`, the
    graph of the first shape seen (that of training) is compiled.

    Args:
        problem: What is differentiated.
        compile: Whether to compile the graphs; a few seconds at first use, then faster.
    """

    def __init__(self, problem: Problem, compile: bool = False) -> None:
        self.name = "vmap, compiled" if compile else "vmap"
        self._compile = compile
        self._graphs: dict[Any, Callable[..., Any]] = {}
        self._calls: Counter[Any] = Counter()
        self._compiled: set[Callable[..., Any]] = set()
        layout = problem.layout
        key_axis = 0 if problem.random else None
        axes = (0, 0, 0, 0, key_axis)
        value = vmap(problem.value, in_dims=axes)
        both = vmap(grad_and_value(problem.value), in_dims=axes)

        def values(y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor) -> Rows:
            return value(layout.split(y), x, t, mask, key)

        def gradients(
            y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor
        ) -> tuple[Rows, Rows]:
            grads, loss = both(layout.split(y), x, t, mask, key)
            return loss, layout.join(grads, lead=1)

        self._values, self._gradients = values, gradients

    def _run(self, function: Callable[..., Any], y: Rows, batch: Batch) -> Any:
        args = (y.contiguous(), batch.inputs, batch.target, batch.mask, batch.key)
        parts = (y, *tensors(batch.inputs), batch.target, batch.mask)
        shape = (function, *(p.shape for p in parts))
        self._calls[shape] += 1
        if shape not in self._graphs:
            compile = self._compile and function not in self._compiled
            if not compile and (
                self._calls[shape] <= TRACE_AFTER or len(self._graphs) >= MOST_SHAPES
            ):
                return function(*args)
            graph: Callable[..., Any] = make_fx(function)(*args)
            if compile:  # the first shape, that of training; recorded ones have eager's bits
                self._compiled.add(function)
                graph = torch.compile(graph, dynamic=False)
            self._graphs[shape] = graph
        return self._graphs[shape](*args)

    def value(self, y: Rows, batch: Batch) -> Rows:
        """Return the losses (m,)."""
        with torch.no_grad():
            out: Rows = self._run(self._values, y, batch)
            return out

    def value_and_grad(self, y: Rows, batch: Batch) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        loss, grad = self._run(self._gradients, y, batch)
        return loss, grad
