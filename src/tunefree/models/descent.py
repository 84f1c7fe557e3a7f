"""Whole steps of gradient descent, compiled: gradients are never written as one long row.

    y <- y - lr grad F(y)          in place, tensor by tensor, by the kernels that end the gradient

While clients walk, their rows lie cut into the model's tensors: each begins where a processor likes
it to, in the order in which its products read it, and is written once a step instead of three
times. Where products are in bfloat16, tensors are kept in it too, beside the exact ones, so that no
step begins with casting them. On a GPU, a gradient that is a product with a short sum is formed by
the kernel that moves its weight (`kernels.descend`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from ..core.types import Inputs, Rows
from . import flattened, graphs, kernels, rewrite
from .capture import Captured, on_gpu
from .compiler import compiled
from .convolution import Lowered
from .losses import Batch, DeferredBatch, gathered
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

    def __init__(
        self, problem: Problem, gradients: Gradients, probe: Batch | DeferredBatch
    ) -> None:
        self._problem, self._gpu = problem, on_gpu(problem)
        gather = probe.gather if isinstance(probe, DeferredBatch) and self._gpu else None
        self._ordered = gather is not None
        rest = self._arguments(probe)
        self._rows = m = len(rest[-1])
        y = problem.start.expand(m, -1)
        order = _as_kernels_read if self._gpu else Tensor.contiguous
        self._parts = [order(p.clone()) for p in problem.layout.split(y.contiguous())]
        low = problem.precision == "bf16"
        self._low = [p.to(torch.bfloat16) for p in self._parts] if low else []
        self._total, self._lr = y.new_zeros(m), y.new_zeros(m)  # nobody moves while this is set up
        self._given: Rows | None = None  # what was last copied to _lr

        def slopes(parts: list[Tensor], low: list[Tensor], *args: Any) -> list[Tensor]:
            batch = args if gather is None else gather(*args).parts
            with Lowered(samples_last=not self._gpu, pools=True):
                grads, loss = gradients(tuple(parts), *batch)
            return [loss, *grads]

        with problem.arithmetic():
            graph = make_fx(slopes, decomposition_table=products())(self._parts, self._low, *rest)
            graphs.flatten(graph)
            used = rewrite.cast_beforehand(graph, len(self._low))
            self._lie: dict[int, flattened.Images] = {}
            apart: list[int] = []
            if self._gpu:
                count, given = len(self._parts), len(self._parts) + len(self._low)
                rewrite.written_once(graph)
                rewrite.rectified_at_once(graph)
                self._lie = flattened.images_as_they_lie(graph, count, given)
                if problem.precision in ("tf32", "bf16") and kernels.available(problem.device):
                    apart = rewrite.products_apart(graph, given, kernels.SHORT)

            def walk(
                parts: list[Tensor], low: list[Tensor], total: Rows, lr: Rows, *args: Any
            ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
                loss, *grads = graph(*parts, *low, *tree_leaves(args))
                moved = {}
                for k, (part, grad) in enumerate(zip(parts, grads, strict=True)):
                    if k not in apart:
                        each = lr.reshape(-1, *[1] * (part.ndim - 1))
                        moved[k] = torch.where(each > 0, part - each * grad, part)
                total.copy_(torch.where(lr > 0, total + loss, total))
                for k, new in moved.items():  # a gradient may be another tensor itself
                    parts[k].copy_(new)
                    if k in used:
                        low[k].copy_(new)
                return total, [grads[k] for k in apart]

            # a graph of its own: the compiler keeps few versions of one function, then gives up
            whole = make_fx(walk)(self._parts, self._low, self._total, self._lr, *rest)
            fast = compiled(whole, problem.device)

            def here(first: Tensor, *args: Any) -> Tensor:
                total: Tensor
                total, pairs = fast(self._parts, self._low, self._total, self._lr, *args)
                for k, (left, right) in zip(apart, pairs, strict=True):
                    low = self._low[k] if k in used else None
                    kernels.descend(self._parts[k], low, left, right, self._lr)
                return total

            here(self._total, *rest)
            self._walk = Captured(here, self._total, *rest) if self._gpu else here

    def _arguments(self, batch: Batch | DeferredBatch) -> tuple[Any, ...]:
        if self._ordered:
            assert isinstance(batch, DeferredBatch)
            return (batch.code,)
        return gathered(batch).parts

    def fits(self, m: int) -> bool:
        """Return whether this is for so many clients."""
        return m == self._rows

    def begin(self, y: Rows) -> None:
        """Let the clients stand at y (m, d)."""
        for k, new in enumerate(self._problem.layout.split(y)):
            place = self._seen(k)
            place.copy_(new.reshape(place.shape))
        for low, part in zip(self._low, self._parts, strict=False):
            low.copy_(part)
        self._total.zero_()

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Move on; clients with lr 0 stay, whatever their gradients."""
        if lr is not self._given:
            self._lr.copy_(lr)
            self._given = lr
        with self._problem.arithmetic():
            self._walk(self._total, *self._arguments(batch))

    def end(self) -> tuple[Rows, Rows]:
        """Return where the clients stand, and each one's losses on the way, added up."""
        parts = [self._seen(k) for k in range(len(self._parts))]
        return self._problem.layout.join(parts, lead=1), self._total.clone()

    def _seen(self, k: int) -> Tensor:
        """Return a tensor of the model in the order of its own axes, where it lies."""
        part = self._parts[k]
        return self._lie[k].seen(part) if k in self._lie else part


def _as_kernels_read(weights: Tensor) -> Tensor:
    """Let weights of convolutions (m, O, C, ...) lie in memory as (m, ..., C, O); others as is."""
    if weights.ndim < 4:
        return weights.contiguous()
    return weights.movedim((2, 1), (-2, -1)).contiguous().movedim((-2, -1), (2, 1))
