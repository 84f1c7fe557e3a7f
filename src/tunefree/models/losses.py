"""Values and gradients of m clients at once: two engines that must agree.

`Vmapped` runs all rows in one call (optionally compiled); `Looped` runs one client after
another in plain PyTorch, for modules that vmap cannot batch and for finding faults.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from ..errors import ArgumentError, unknown
from ..types import Inputs, Rows, map_inputs, tensors
from .problem import Problem

log = logging.getLogger("tunefree")

Engine = Literal["auto", "vmap", "loop"]


@dataclass(frozen=True)
class Batch:
    """One batch per client; `mask` marks real samples, `key` seeds the dropout masks."""

    inputs: Inputs  # (m, B, ...)
    target: Tensor  # (m, B, ...)
    mask: Tensor  # (m, B)
    key: Tensor  # (m,)

    def row(self, i: int) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """Return client i's own batch, padding cut off."""
        keep = self.mask[i]
        inputs = map_inputs(lambda t: t[i][keep], self.inputs)
        return inputs, self.target[i][keep], keep[keep], self.key[i]


class Losses(Protocol):
    """The batch loss of each client at its own point."""

    name: str

    def value(self, y: Rows, batch: Batch) -> Rows:
        """Return the losses (m,) at the rows of y (m, d)."""
        ...

    def value_and_grad(self, y: Rows, batch: Batch) -> tuple[Rows, Rows]:
        """Return the losses (m,) and their gradients (m, d)."""
        ...


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


class Looped:
    """One client after another, through ordinary autograd."""

    name = "loop"

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def value(self, y: Rows, batch: Batch) -> Rows:
        """Return the losses (m,)."""
        layout, value = self._problem.layout, self._problem.value
        out = y.new_zeros(y.shape[0])
        with torch.no_grad():
            for i in self._working(batch):
                out[i] = value(layout.split(y[i]), *batch.row(i))
        return out

    def value_and_grad(self, y: Rows, batch: Batch) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        values, grads = y.new_zeros(y.shape[0]), torch.zeros_like(y)
        for i in self._working(batch):
            point = [p.detach().requires_grad_() for p in self._problem.layout.split(y[i])]
            loss = self._problem.value(point, *batch.row(i))
            grad = torch.autograd.grad(loss, point, materialize_grads=True)
            values[i], grads[i] = loss.detach(), self._problem.layout.join(grad)
        return values, grads

    @staticmethod
    def _working(batch: Batch) -> list[int]:
        """Return the clients that have samples in this batch; others are through with theirs."""
        found: list[int] = batch.mask.any(1).nonzero().flatten().tolist()
        return found


def choose(problem: Problem, probe: Batch, engine: Engine, compile: bool) -> Losses:
    """Return the fastest engine that can run this problem, and say so when it had to fall back.

    Args:
        problem: What is differentiated.
        probe: A batch in the shape that training uses (also what a compiler specialises on).
        engine: "vmap" or "loop" insist; "auto" prefers vmap, except for convolutions on a CPU,
            which are faster in turn unless compiled (measured: `tunefree bench`).
        compile: Whether to compile where that works.
    """
    if engine not in ("auto", "vmap", "loop"):
        raise unknown("engine", engine, ("auto", "vmap", "loop"))
    if engine == "loop" or (engine == "auto" and not compile and problem.prefers_turns):
        return Looped(problem)
    m = probe.mask.shape[0]
    y = problem.start.expand(m, -1).contiguous()
    try:
        Vmapped(problem).value_and_grad(y, probe)
    except Exception as error:  # any operation vmap cannot batch ends here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        if engine == "vmap":
            raise ArgumentError(
                f"fit(engine='vmap') cannot batch this model: {reason} Use engine='loop'."
            ) from error
        log.warning("This model cannot be batched over clients (%s); clients run in turn.", reason)
        return Looped(problem)
    if compile:
        try:
            fast = Vmapped(problem, compile=True)
            fast.value(y, probe)
            fast.value_and_grad(y, probe)
            return fast
        except Exception as error:  # no C++ compiler, or an operation it cannot lower
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            log.warning("Compilation is not available here (%s); running without it.", reason)
    return Vmapped(problem)
