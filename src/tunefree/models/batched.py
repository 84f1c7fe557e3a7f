"""The engine that evaluates all clients in one batched call, with vmap."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.overrides import TorchFunctionMode

from ..core.errors import first_line
from ..core.types import Inputs, Rows, list_tensors
from .compiled.compiler import compile_graph, trace_graph
from .compiled.descent import CompiledDescent
from .compiled.mode import BatchedOpsMode
from .compiled.steps import CompiledSteps
from .enabled import are_engines_enabled
from .gpu.capture import CudaGraphFunction, is_on_gpu
from .losses import Batch, DeferredBatch, LocalUpdate, load_batch
from .problem import Problem

log = logging.getLogger("tunefree")

Gather = Callable[[Tensor], Batch]

TRACE_AFTER = 20  # calls in one shape before it is worth recording as a graph
CAPTURE_AFTER = 2  # the same on a GPU, where recording is cheap
MAX_RECORDED = 16  # shapes; with more of them recording does not pay


class _FirstOrderMode(TorchFunctionMode):
    """Compute gradients that are not differentiated again.

    grad_and_value always asks for such gradients, and so holds all tensors of the backward pass
    until its end. Without, each is freed after its last use, as in `Tensor.backward`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.autograd.grad:
            named = named | {"create_graph": False}
        return func(*args, **named)


def _free_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with _FirstOrderMode():
            return function(*args)

    return call


class VmapEngine:
    """All clients in one batched call.

    A shape that occurs often is recorded once: on a CPU as a graph of plain operations, on a GPU
    as a CUDA graph. Replaying it returns the same bits without transforming the function or
    launching each operation again. With `compile`, the function is compiled for the first shape
    it is called with (that of training).

    A frozen parameter has no axis for clients: its product is one matrix product over the rows of
    all clients, and it is neither copied nor differentiated. So clients that train low-rank
    adapters share the large products, and differ in the small ones.

    Args:
        problem: Model and loss.
        compile: Whether to compile; takes seconds to a minute at the first call.
    """

    def __init__(self, problem: Problem, compile: bool = False) -> None:
        self._records = are_engines_enabled()
        self.wants_deferred = self._gpu = self._records and is_on_gpu(problem)
        self.name = "vmap, compiled" if compile else "vmap"
        self._problem = problem
        self._compile, self._after = compile, CAPTURE_AFTER if self._gpu else TRACE_AFTER
        self._recorded: dict[Any, Callable[..., Any]] = {}
        self._calls: Counter[Any] = Counter()
        self._compiled: set[Callable[..., Any]] = set()
        layout = problem.layout
        key_axis = 0 if problem.has_dropout else None
        axes = (0, 0, 0, 0, key_axis)
        value = vmap(problem.value, in_dims=axes)
        both = _free_graph(vmap(grad_and_value(problem.value), in_dims=axes))

        def values(y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor) -> tuple[Rows]:
            return (value(layout.split(y), x, t, mask, key),)

        def gradients(
            y: Rows, x: Inputs, t: Tensor, mask: Tensor, key: Tensor
        ) -> tuple[Tensor, ...]:
            grads, loss = both(layout.split(y), x, t, mask, key)
            return loss, layout.join(grads, lead=1)

        self._values, self._gradients, self._both = values, gradients, both
        self._descent: CompiledDescent | None = None
        self._steps: CompiledSteps | None = None
        self._fuses = False  # whether `fuse` compiles

    def _run(
        self, function: Callable[..., Any], y: Rows, batch: Batch | DeferredBatch
    ) -> tuple[Tensor, ...]:
        """Call the function, through its recorded or compiled graph if this shape has one."""
        gather: Gather | None = None
        args: tuple[Any, ...]
        if isinstance(batch, DeferredBatch) and self._gpu:
            gather, args = batch.gather, (y.contiguous(), batch.code)
            shape: Any = (function, gather, y.shape, batch.code.shape)
        else:
            batch = load_batch(batch)
            args = (y.contiguous(), *batch.parts)
            parts = (y, *list_tensors(batch.inputs), batch.target, batch.mask)
            shape = (function, *(p.shape for p in parts))
        self._calls[shape] += 1
        with self._problem.precision_context():
            if shape not in self._recorded:
                first = self._compile and function not in self._compiled
                if not first and not self._is_worth_recording(shape):
                    out: tuple[Tensor, ...] = self._evaluate(function, gather, args)
                    return out
                self._recorded[shape] = self._record(function, gather, args, first)
            out = self._recorded[shape](*args)
            return out

    def _is_worth_recording(self, shape: Any) -> bool:
        often = self._calls[shape] > self._after
        return self._records and often and len(self._recorded) < MAX_RECORDED

    def _evaluate(
        self, function: Callable[..., Any], gather: Gather | None, args: Any, compile: bool = False
    ) -> Any:
        if gather is not None:  # here, so that it is recorded too
            y, code = args
            args = (y, *gather(code).parts)
        if not self._gpu and not compile:
            return function(*args)
        with BatchedOpsMode(samples_last=not self._gpu, pools=compile):
            return function(*args)

    def _record(
        self, function: Callable[..., Any], gather: Gather | None, args: Any, compile: bool
    ) -> Any:
        def evaluate(*args: Any) -> Any:
            return self._evaluate(function, gather, args, compile)

        graph: Callable[..., Any] = evaluate
        if compile:  # only the first shape, that of training; recorded ones have eager's bits
            self._compiled.add(function)
            traced = trace_graph(evaluate, *args, decompose=True)
            graph = compile_graph(traced, self._problem.device)
        elif not self._gpu:
            graph = trace_graph(evaluate, *args)
        if not self._gpu:
            return graph
        try:
            return CudaGraphFunction(graph, *args)
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
        """Free the memory that recorded graphs hold."""
        self._recorded.clear()
        self._compiled.clear()
        self._descent = self._steps = None

    def compile_descent(self, probe: Batch | DeferredBatch) -> None:
        """Compile whole steps of gradient descent, for batches of this shape."""
        self._compiled.add(self._gradients)  # rarely called then: not worth compiling
        self._descent = CompiledDescent(self._problem, self._both, probe)

    def descent(self, m: int) -> CompiledDescent | None:
        """Return the compiled descent, if there is one for m clients."""
        return self._descent if self._descent is not None and self._descent.fits(m) else None

    def enable_fusing(self) -> None:
        """Compile local steps as a whole when `fuse` is first called, and gradients no longer."""
        self._compiled.add(self._gradients)
        self._fuses = True

    def fuse(
        self,
        updates: tuple[LocalUpdate, ...],
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        batch: Batch | DeferredBatch,
    ) -> CompiledSteps | None:
        """Return the compiled steps; compile the first ones that are asked for."""
        if self._fuses and self._steps is None:
            try:
                self._steps = CompiledSteps(
                    self._problem, self._both, batch, updates, state, constants
                )
            except Exception as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self._fuses = False
                log.warning(
                    "Local steps cannot be compiled as a whole (%s); only gradients are.",
                    first_line(error),
                )
                self._compiled.discard(self._gradients)
        steps = self._steps
        return steps if steps is not None and steps.fits(updates, state, constants) else None

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,)."""
        with torch.no_grad():
            (out,) = self._run(self._values, y, batch)
            return out.clone() if self._gpu else out

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        loss, grads = self._run(self._gradients, y, batch)
        if self._gpu:  # the graph's own memory, which the next replay overwrites
            return loss.clone(), grads if reuse_buffer else grads.clone()
        return loss, grads
