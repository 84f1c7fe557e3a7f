"""Compiled local steps of any method whose rules are tensor operations.

Steps of plain gradient descent are compiled by `descent`. Here the direction, the step and the sums
that a method records are traced together with the gradient (`rows.TensorRows`), and the compiler
fuses them. All state is updated in place, tensor by tensor; clients' rows are read and written only
at the beginning and at the end of a local phase. On a GPU, gradients that are products with short
sums are computed by the kernels that use them (`gpu.products`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from ...core.types import Rows
from ..gpu import kernels, products
from ..gpu.capture import CudaGraphFunction, is_on_gpu
from ..gpu.graphs import finish, flatten_signature, placeholders
from ..losses import Batch, DeferredBatch, LocalUpdate
from ..problem import Problem
from .compiler import compile_graph, trace_graph
from .gradient import Gradients, TensorGradient
from .rows import TensorRows

Buffers = dict[str, list[Tensor]]


class CompiledSteps:
    """Local steps of m clients on batches of one shape.

    Args:
        problem: Model and loss.
        gradients: Gradients and losses of m clients: (parts, inputs, target, mask, key).
        probe: A batch as training uses it.
        updates: What a step does, in one or several parts; each is traced once.
        state: Tensors that steps change: rows (m, d), with the iterates as "y", or smaller ones.
        constants: Tensors that they read: rows (m, d), vectors (d,) or scalars.

    Raises:
        NotImplementedError: The update uses an operation that `TensorRows` does not have.
    """

    def __init__(
        self,
        problem: Problem,
        gradients: Gradients,
        probe: Batch | DeferredBatch,
        updates: tuple[LocalUpdate, ...],
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
    ) -> None:
        self._problem = problem
        self._long = {n for n, v in state.items() if v.ndim == 2}
        self._long |= {n for n, v in constants.items() if v.ndim > 0}
        self._shapes = {n: v.shape for n, v in (*state.items(), *constants.items())}
        self._vectors = {n for n, v in constants.items() if v.ndim == 1}
        self._updates, self._held = updates, _describe(state)
        self._used: set[str] = set()  # constants that are read
        self._read = _describe(constants)
        with problem.precision_context():
            self._gradient = TensorGradient(problem, gradients, probe)
            self._state = {name: self._allocate(name, v) for name, v in state.items()}
            self._state["y"] = self._gradient.parts
            self._constants = {name: self._allocate(name, v) for name, v in constants.items()}
            self.begin(state, constants)
            batch = self._gradient.arguments(probe)
            self._steps = [self._compile(update, batch) for update in updates]
            self._read = {n: v for n, v in self._read.items() if n in self._used}

    def _allocate(self, name: str, value: Tensor) -> list[Tensor]:
        if name not in self._long:  # scalars as (1,): compiled for a CPU, writes to () are lost
            return [torch.empty_like(value.reshape(value.shape or 1)).contiguous()]
        lead = slice(None) if value.ndim == 2 else slice(1)
        return [torch.empty_like(p[lead]) for p in self._gradient.parts]

    def _wrap(self, buffers: Buffers) -> dict[str, Tensor]:
        return {
            name: TensorRows(parts, name in self._vectors)
            if name in self._long
            else parts[0].reshape(self._shapes[name])
            for name, parts in buffers.items()
        }

    def _compile(self, update: LocalUpdate, batch: tuple[Any, ...]) -> Callable[..., Any]:
        """Return one step in place as a function of (any tensor, *batch)."""
        gradient = self._gradient

        def step(state: Buffers, low: list[Tensor], constants: Buffers, *args: Any) -> None:
            before = self._wrap(state)

            def evaluate(point: Rows) -> tuple[Rows, Rows]:
                assert isinstance(point, TensorRows)
                parts, copies = state["y"], low
                if point is not before["y"]:
                    parts = [p.expand_as(y) for p, y in zip(point.parts, parts, strict=True)]
                    copies = [p.to(torch.bfloat16) for p in parts] if low else []
                loss, *grads = gradient.graph(*parts, *copies, *tree_leaves(args))
                return loss, TensorRows(grads)

            after = update(evaluate, before, self._wrap(constants))
            for buffer, value in _moves(state, after):
                buffer.copy_(value)
            for k in gradient.cast if "y" in after else ():
                low[k].copy_(state["y"][k])

        # a graph of its own: the compiler caches few versions of one function, then gives up
        whole = trace_graph(step, self._state, gradient.low, self._constants, *batch)
        finish(whole)  # a trial of a line search reads no gradient
        self._used |= self._find_used(whole)
        # to find the tensors in every call takes a good part of a small step
        flatten_signature(whole)
        held = tree_leaves([self._state, gradient.low, self._constants])
        is_gpu = is_on_gpu(self._problem)
        after = (
            products.take_epilogues(whole, kernels.MAX_FACTOR_TERMS) if gradient.has_kernels else []
        )
        fast = compile_graph(whole, self._problem.device)

        def run(first: Tensor, *args: Any) -> None:
            given = [*held, *tree_leaves(args)]
            results = fast(*given)
            for update in after:
                update(given, results)

        run(gradient.parts[0], *batch)
        return CudaGraphFunction(run, gradient.parts[0], *batch) if is_gpu else run

    def _find_used(self, graph: GraphModule) -> set[str]:
        """Return the names of the constants that a traced step reads."""
        names = [name for name, buffers in self._constants.items() for _ in buffers]
        first = sum(map(len, self._state.values())) + len(self._gradient.low)
        given = placeholders(graph)[first : first + len(names)]
        return {name for name, node in zip(names, given, strict=True) if node.users}

    def fits(
        self,
        updates: tuple[LocalUpdate, ...],
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
    ) -> bool:
        """Return whether these are the steps that were compiled; constants may have others too."""
        read = {n: v for n, v in _describe(constants).items() if n in self._read}
        return (updates, _describe(state), read) == (self._updates, self._held, self._read)

    def begin(self, state: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> None:
        """Set the state and the constants of a local phase."""
        for buffers, values in ((self._state, state), (self._constants, constants)):
            for name, value in values.items():
                if buffers is self._constants and name not in self._read:
                    continue
                if name in self._long:
                    self._gradient.load(buffers[name], value if value.ndim == 2 else value[None])
                else:
                    buffers[name][0].copy_(value)
        for low, part in zip(self._gradient.low, self._gradient.parts, strict=False):
            low.copy_(part)

    def step(self, batch: Batch | DeferredBatch, part: int = 0) -> None:
        """Run one of the updates."""
        with self._problem.precision_context():
            self._steps[part](self._gradient.parts[0], *self._gradient.arguments(batch))

    def numbers(self, name: str) -> Tensor:
        """Return an entry of the state that is not rows; it may be changed in place."""
        return self._state[name][0]

    def end(self) -> dict[str, Tensor]:
        """Return the state, as rows."""
        return {
            name: self._gradient.join(parts)
            if name in self._long
            else parts[0].clone().reshape(self._shapes[name])
            for name, parts in self._state.items()
        }


def _describe(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (v.shape, v.dtype) for name, v in tensors.items()}


def _moves(state: Buffers, after: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return pairs (buffer, new value); values in other buffers' memory are copied first."""
    if set(after) - set(state):
        raise NotImplementedError(f"A step adds {set(after) - set(state)} to its state.")
    held = {b.untyped_storage().data_ptr() for buffers in state.values() for b in buffers}
    found = []
    for name, new in after.items():
        parts = new.parts if isinstance(new, TensorRows) else [new.reshape(state[name][0].shape)]
        for buffer, value in zip(state[name], parts, strict=True):
            if value.data_ptr() != buffer.data_ptr():
                inside = value.untyped_storage().data_ptr() in held
                found.append((buffer, value.clone() if inside else value))
    return found
