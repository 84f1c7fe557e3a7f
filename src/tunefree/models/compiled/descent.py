"""Compiled steps of gradient descent, which never write a gradient as one long row.

    y <- y - lr grad F(y)          in place, tensor by tensor, in the kernels that end the gradient

During a local phase the clients' rows are held as the model's tensors: each is aligned, in the
order in which products read it, and written once per step instead of three times. With bfloat16
products, bfloat16 copies are held beside them, so that no step starts with a cast. On a GPU, a
gradient that is a product with a short sum is computed by the kernel that updates its weight
(`kernels.descend`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from ...core.types import Inputs, Rows
from ..gpu import flatten, graphs, kernels, rewrite
from ..gpu.capture import CudaGraphFunction, is_on_gpu
from ..losses import Batch, DeferredBatch, load_batch
from ..problem import Problem
from .compiler import compile_graph, trace_graph
from .matmul import bmm_decompositions
from .mode import BatchedOpsMode

Gradients = Callable[[tuple[Tensor, ...], Inputs, Tensor, Tensor, Tensor], tuple[Any, Rows]]


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
        self._problem, self._gpu = problem, is_on_gpu(problem)
        self._gather = probe.gather if isinstance(probe, DeferredBatch) and self._gpu else None
        batch = self._arguments(probe)
        self._clients = m = len(batch[-1])
        y = problem.start.expand(m, -1)
        order = _outputs_last if self._gpu else Tensor.contiguous
        self._parts = [order(p.clone()) for p in problem.layout.split(y.contiguous())]
        low = problem.precision == "bf16"
        self._low = [p.to(torch.bfloat16) for p in self._parts] if low else []
        self._total, self._lr = y.new_zeros(m), y.new_zeros(m)  # lr 0: setting up moves nothing
        self._given_lr: Rows | None = None  # what was last copied to _lr
        self._columns: dict[int, flatten.ColumnOrder] = {}  # of weights whose columns are reordered
        self._factored: list[int] = []  # tensors whose gradients are returned as two factors
        with problem.precision_context():
            graph = self._trace_gradients(gradients, batch)
            self._cast = rewrite.use_cast_inputs(graph, len(self._low))  # tensors read in bfloat16
            if self._gpu:
                self._rewrite_for_gpu(graph)
            step = self._compile_step(graph, batch)
            step(self._total, *batch)
            self._step = CudaGraphFunction(step, self._total, *batch) if self._gpu else step

    def _trace_gradients(self, gradients: Gradients, batch: tuple[Any, ...]) -> GraphModule:
        """Return the graph of (parts, low, batch) -> [loss, *gradients]."""
        gather = self._gather

        def losses_and_gradients(
            parts: list[Tensor], low: list[Tensor], *args: Any
        ) -> list[Tensor]:
            batch = args if gather is None else gather(*args).parts
            with BatchedOpsMode(samples_last=not self._gpu, pools=True):
                grads, loss = gradients(tuple(parts), *batch)
            return [loss, *grads]

        given = (self._parts, self._low, *batch)
        graph = trace_graph(losses_and_gradients, *given, decompositions=bmm_decompositions())
        graphs.flatten_signature(graph)
        return graph

    def _rewrite_for_gpu(self, graph: GraphModule) -> None:
        count, given = len(self._parts), len(self._parts) + len(self._low)
        rewrite.merge_copies(graph)
        rewrite.fuse_conv_relu(graph)
        self._columns = flatten.flatten_in_memory_order(graph, count, given)
        low = self._problem.precision in ("tf32", "bf16")
        if low and kernels.is_available(self._problem.device):
            self._factored = rewrite.return_factors(graph, given, kernels.MAX_FACTOR_TERMS)

    def _compile_step(self, graph: GraphModule, batch: tuple[Any, ...]) -> Callable[..., Tensor]:
        """Return one step in place as a function of (loss sums, *batch)."""
        cast, factored = self._cast, self._factored

        def step(
            parts: list[Tensor], low: list[Tensor], total: Rows, lr: Rows, *args: Any
        ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
            loss, *grads = graph(*parts, *low, *tree_leaves(args))
            moved = {}
            for k, (part, grad) in enumerate(zip(parts, grads, strict=True)):
                if k not in factored:
                    each = lr.reshape(-1, *[1] * (part.ndim - 1))
                    moved[k] = torch.where(each > 0, part - each * grad, part)
            total.copy_(torch.where(lr > 0, total + loss, total))
            for k, new in moved.items():  # a gradient may be another tensor itself
                parts[k].copy_(new)
                if k in cast:
                    low[k].copy_(new)
            return total, [grads[k] for k in factored]

        # a graph of its own: the compiler caches few versions of one function, then gives up
        whole = trace_graph(step, self._parts, self._low, self._total, self._lr, *batch)
        fast = compile_graph(whole, self._problem.device)

        def run(first: Tensor, *args: Any) -> Tensor:
            total: Tensor
            total, pairs = fast(self._parts, self._low, self._total, self._lr, *args)
            for k, (left, right) in zip(factored, pairs, strict=True):
                low = self._low[k] if k in cast else None
                kernels.descend(self._parts[k], low, left, right, self._lr)
            return total

        return run

    def _arguments(self, batch: Batch | DeferredBatch) -> tuple[Any, ...]:
        if self._gather is not None:
            assert isinstance(batch, DeferredBatch)
            return (batch.code,)
        return load_batch(batch).parts

    def fits(self, m: int) -> bool:
        """Return whether this was compiled for m clients."""
        return m == self._clients

    def begin(self, y: Rows) -> None:
        """Set the clients' iterates to y (m, d) and their loss sums to zero."""
        for k, new in enumerate(self._problem.layout.split(y)):
            part = self._in_model_order(k)
            part.copy_(new.reshape(part.shape))
        for low, part in zip(self._low, self._parts, strict=False):
            low.copy_(part)
        self._total.zero_()

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Step to y - lr grad; clients with lr 0 keep their iterate."""
        if lr is not self._given_lr:
            self._lr.copy_(lr)
            self._given_lr = lr
        with self._problem.precision_context():
            self._step(self._total, *self._arguments(batch))

    def end(self) -> tuple[Rows, Rows]:
        """Return the iterates (m, d) and each client's sum of losses (m,)."""
        parts = [self._in_model_order(k) for k in range(len(self._parts))]
        return self._problem.layout.join(parts, lead=1), self._total.clone()

    def _in_model_order(self, k: int) -> Tensor:
        """Return a view of the model's k-th tensor whose columns are in the model's order."""
        part = self._parts[k]
        return self._columns[k].in_model_order(part) if k in self._columns else part


def _outputs_last(weights: Tensor) -> Tensor:
    """Store weights of convolutions (m, O, C, ...) as (m, ..., C, O) in memory; others as is."""
    if weights.ndim < 4:
        return weights.contiguous()
    return weights.movedim((2, 1), (-2, -1)).contiguous().movedim((-2, -1), (2, 1))
