"""Compiled steps of gradient descent, which never write a gradient as one long row.

    y <- y - lr grad F(y)          in place, tensor by tensor, in the kernels that end the gradient

Each tensor (`gradient.TensorGradient`) is written once per step instead of three times. On a GPU, a
gradient that is a product with a short sum is computed by the kernel that updates its weight
(`kernels.descend`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...core.types import Rows
from ..gpu import kernels
from ..gpu.capture import CudaGraphFunction, is_on_gpu
from ..losses import Batch, DeferredBatch
from ..problem import Problem
from . import embedding
from .compiler import compile_graph, trace_graph
from .gradient import Gradients, TensorGradient


class CompiledDescent:
    """Gradient descent of m clients on batches of one shape.

    Args:
        problem: Model and loss.
        gradients: Gradients and losses of m clients: (parts, inputs, target, mask, key).
        probe: A batch as training uses it.
    """

    def __init__(
        self, problem: Problem, gradients: Gradients, probe: Batch | DeferredBatch
    ) -> None:
        self._problem = problem
        with problem.precision_context():
            self._gradient = TensorGradient(problem, gradients, probe, factors=True)
            batch = self._gradient.arguments(probe)
            # lr 0: setting up moves nothing
            self._total, self._lr = problem.start.new_zeros(2, self._gradient.clients)
            self._given_lr: Rows | None = None  # what was last copied to _lr
            step = self._compile_step(batch)
            step(self._total, *batch)
            gpu = is_on_gpu(problem)
            self._step = CudaGraphFunction(step, self._total, *batch) if gpu else step

    def _compile_step(self, batch: tuple[Any, ...]) -> Callable[..., Tensor]:
        """Return one step in place as a function of (loss sums, *batch)."""
        gradient = self._gradient
        graph, cast, factored = gradient.graph, gradient.cast, gradient.factored
        looked_up = gradient.looked_up

        def step(
            parts: list[Tensor], low: list[Tensor], total: Rows, lr: Rows, *args: Any
        ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
            loss, *grads = graph(*parts, *low, *tree_leaves(args))
            moved = {}
            for k, (part, grad) in enumerate(zip(parts, grads, strict=True)):
                if k in looked_up:
                    grads[k] = (embedding.scale_rows(grad[0], lr), grad[1])
                elif k not in factored:
                    each = lr.reshape(-1, *[1] * (part.ndim - 1))
                    moved[k] = torch.where(each > 0, part - each * grad, part)
            total.copy_(torch.where(lr > 0, total + loss, total))
            for k, new in moved.items():  # a gradient may be another tensor itself
                parts[k].copy_(new)
                if k in cast:
                    low[k].copy_(new)
            return total, [grads[k] for k in (*factored, *looked_up)]

        # a graph of its own: the compiler caches few versions of one function, then gives up
        whole = trace_graph(step, gradient.parts, gradient.low, self._total, self._lr, *batch)
        fast = compile_graph(whole, self._problem.device)

        def run(first: Tensor, *args: Any) -> Tensor:
            total: Tensor
            total, pairs = fast(gradient.parts, gradient.low, self._total, self._lr, *args)
            for k, (left, right) in zip(factored, pairs[: len(factored)], strict=True):
                low = gradient.low[k] if k in cast else None
                kernels.descend(gradient.parts[k], low, left, right, self._lr)
            for k, (moves, ids) in zip(looked_up, pairs[len(factored) :], strict=True):
                embedding.descend(gradient.parts[k], moves, ids)
                if k in cast:
                    gradient.low[k].copy_(gradient.parts[k])
            return total

        return run

    def fits(self, m: int) -> bool:
        """Return whether this was compiled for m clients."""
        return m == self._gradient.clients

    def begin(self, y: Rows) -> None:
        """Set the clients' iterates to y (m, d) and their loss sums to zero."""
        gradient = self._gradient
        gradient.load(gradient.parts, y)
        for low, part in zip(gradient.low, gradient.parts, strict=False):
            low.copy_(part)
        self._total.zero_()

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Step to y - lr grad; clients with lr 0 keep their iterate."""
        if lr is not self._given_lr:
            self._lr.copy_(lr)
            self._given_lr = lr
        with self._problem.precision_context():
            self._step(self._total, *self._gradient.arguments(batch))

    def end(self) -> tuple[Rows, Rows]:
        """Return the iterates (m, d) and each client's sum of losses (m,)."""
        return self._gradient.join(self._gradient.parts), self._total.clone()
