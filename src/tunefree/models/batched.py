"""All clients in one batched call: vmap, recorded once as a graph, perhaps compiled."""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from ..core.errors import first_line
from ..core.types import Inputs, Rows, list_tensors
from .capture import Captured, on_gpu
from .compiler import compiled
from .convolution import Lowered
from .descent import Descent
from .losses import Batch, DeferredBatch, gathered
from .narrow import products
from .problem import Problem

log = logging.getLogger("tunefree")

Gather = Callable[[Tensor], Batch]

TRACE_AFTER = 20  # calls in one shape before it is worth recording as a graph
CAPTURE_AFTER = 2  # the same on a GPU, where recording is cheap
MOST_SHAPES = 16  # beyond this, shapes vary too much for graphs to pay


class Vmapped:
    """All clients in one batched call.

    A shape that keeps coming is recorded once: on a CPU as a graph of plain operations, on a GPU
    as a CUDA graph, which gives the same bits without the cost of transforming the function anew
    or of launching each operation at every call. With `compile`, the function is compiled for the
    first shape seen (that of training).

    Args:
        problem: What is differentiated.
        compile: Whether to compile; seconds to a minute at first use, then faster.
    """

    def __init__(self, problem: Problem, compile: bool = False) -> None:
        self.gathers = self._gpu = on_gpu(problem)
        self.name = "vmap, compiled" if compile else "vmap"
        self._problem = problem
        self._compile, self._after = compile, CAPTURE_AFTER if self._gpu else TRACE_AFTER
        self._recorded: dict[Any, Callable[..., Any]] = {}
        self._calls: Counter[Any] = Counter()
        self._compiled: set[Callable[..., Any]] = set()
        layout = problem.layout
        key_axis = 0 if problem.random else None
        axes = (0, 0, 0, 0, key_axis)
        value = vmap(problem.value, in_dims=axes)
        both = vmap(grad_and_value(problem.value), in_dims=axes)

        def values(y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor) -> tuple[Rows]:
            return (value(layout.split(y), x, t, mask, key),)

        def gradients(
            y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor
        ) -> tuple[Tensor, ...]:
            grads, loss = both(layout.split(y), x, t, mask, key)
            return loss, layout.join(grads, lead=1)

        self._values, self._gradients, self._both = values, gradients, both
        self._descent: Descent | None = None

    def _run(
        self, function: Callable[..., Any], y: Rows, batch: Batch | DeferredBatch
    ) -> tuple[Tensor, ...]:
        gather: Gather | None = None
        args: tuple[Any, ...]
        if isinstance(batch, DeferredBatch) and self._gpu:
            gather, args = batch.gather, (y.contiguous(), batch.code)
            shape: Any = (function, gather, y.shape, batch.code.shape)
        else:
            batch = gathered(batch)
            args = (y.contiguous(), *batch.parts)
            parts = (y, *list_tensors(batch.inputs), batch.target, batch.mask)
            shape = (function, *(p.shape for p in parts))
        self._calls[shape] += 1
        with self._problem.arithmetic():
            if shape not in self._recorded:
                first = self._compile and function not in self._compiled
                if not first and (
                    self._calls[shape] <= self._after or len(self._recorded) >= MOST_SHAPES
                ):
                    out: tuple[Tensor, ...] = self._direct(function, gather, args)
                    return out
                self._recorded[shape] = self._record(function, gather, args, first)
            out = self._recorded[shape](*args)
            return out

    def _direct(
        self, function: Callable[..., Any], gather: Gather | None, args: Any, compile: bool = False
    ) -> Any:
        if gather is not None:  # here, so that it is recorded too
            y, code = args
            args = (y, *gather(code).parts)
        lowered = Lowered(samples_last=not self._gpu, pools=compile)
        with lowered if self._gpu or compile else nullcontext():
            return function(*args)

    def _record(
        self, function: Callable[..., Any], gather: Gather | None, args: Any, compile: bool
    ) -> Any:
        def direct(*args: Any) -> Any:
            return self._direct(function, gather, args, compile)

        graph: Callable[..., Any] = direct
        if compile or not self._gpu:
            graph = make_fx(direct, decomposition_table=products() if compile else None)(*args)
        if compile:  # the first shape, that of training; recorded ones have eager's bits
            self._compiled.add(function)
            graph = compiled(graph, self._problem.device)
        if not self._gpu:
            return graph
        try:
            return Captured(graph, *args)
        except RuntimeError as error:  # the model reads a tensor on the host
            if isinstance(error, torch.OutOfMemoryError):
                raise
            log.warning(
                "This model's steps cannot be recorded for the GPU (%s); they are launched one "
                "operation at a time.",
                first_line(error),
            )
            return graph

    def release(self) -> None:
        """Give back the memory that recordings hold."""
        self._recorded.clear()
        self._compiled.clear()
        self._descent = None

    def compile_descent(self, probe: Batch | DeferredBatch) -> None:
        """Compile whole steps of descent, for batches like this one, in place of gradients."""
        self._compiled.add(self._gradients)  # seldom asked for then
        self._descent = Descent(self._problem, self._both, probe)

    def descent(self, m: int) -> Descent | None:
        """Return whole steps of m clients, where they are compiled."""
        return self._descent if self._descent is not None and self._descent.fits(m) else None

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,)."""
        with torch.no_grad():
            (out,) = self._run(self._values, y, batch)
            return out.clone() if self._gpu else out

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, brief: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        loss, grads = self._run(self._gradients, y, batch)
        if self._gpu:  # out of the graph's own memory
            return loss.clone(), grads if brief else grads.clone()
        return loss, grads
