"""The gradient of m clients as a graph over the model's tensors, in the order that products read.

During a local phase the clients' rows are held as the model's tensors: each is aligned and in the
memory order of the products that read it. With bfloat16 products, bfloat16 copies are held beside
them, so that no step starts with a cast.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...core.types import Inputs, Rows
from ..gpu import flatten, graphs, kernels, rewrite
from ..gpu.capture import is_on_gpu
from ..losses import Batch, DeferredBatch, load_batch
from ..problem import Problem
from . import embedding
from .compiler import trace_graph
from .mode import BatchedOpsMode

Gradients = Callable[[tuple[Tensor, ...], Inputs, Tensor, Tensor, Tensor], tuple[Any, Rows]]


class TensorGradient:
    """Losses and gradients of m clients on batches of one shape, as a function of tensors.

    Args:
        problem: Model and loss.
        gradients: Gradients and losses of m clients: (parts, inputs, target, mask, key).
        probe: A batch as training uses it.
        factors: Whether large gradients that are products may be returned as their two factors,
            and those of embeddings as rows and tokens.

    Attributes:
        graph: (*parts, *low, *batch) -> [losses, *gradients].
        parts: The clients' iterates, one tensor (m, ...) for each of the model's.
        low: bfloat16 copies of `parts`; empty in other precisions.
        cast: Indices of the copies that the graph reads.
        factored: Indices of the gradients that are returned as factors.
        looked_up: Indices of the gradients of embeddings that are returned as rows and tokens.
        has_kernels: Whether large products may be left to kernels that also use them.
    """

    def __init__(
        self,
        problem: Problem,
        gradients: Gradients,
        probe: Batch | DeferredBatch,
        factors: bool = False,
    ) -> None:
        self._layout, on_gpu = problem.layout, is_on_gpu(problem)
        self._gather = probe.gather if isinstance(probe, DeferredBatch) and on_gpu else None
        batch = self.arguments(probe)
        self.clients = len(batch[-1])
        order = _outputs_last if on_gpu else Tensor.contiguous
        y = problem.start.expand(self.clients, -1).contiguous()
        self.parts = [order(p.clone()) for p in problem.layout.split(y)]
        low = problem.precision == "bf16"
        self.low = [p.to(torch.bfloat16) for p in self.parts] if low else []
        self._columns: dict[int, flatten.ColumnOrder] = {}  # of weights whose columns are reordered
        self.factored: list[int] = []
        self.looked_up: list[int] = []
        self.has_kernels = False
        self.graph = self._trace(gradients, batch, samples_last=not on_gpu)
        self.cast = rewrite.use_cast_inputs(self.graph, len(self.low))
        if on_gpu:
            count, given = len(self.parts), len(self.parts) + len(self.low)
            rewrite.merge_copies(self.graph)
            rewrite.fuse_conv_relu(self.graph)
            self._columns = flatten.flatten_in_memory_order(self.graph, count, given)
            fast = problem.precision in ("tf32", "bf16")
            self.has_kernels = fast and kernels.is_available(problem.device)
            if factors and self.has_kernels:
                self.factored = rewrite.return_factors(self.graph, given, kernels.MAX_FACTOR_TERMS)
        elif factors:
            self.looked_up = embedding.return_rows(self.graph)

    def _trace(
        self, gradients: Gradients, batch: tuple[Any, ...], samples_last: bool
    ) -> GraphModule:
        gather = self._gather

        def losses_and_gradients(
            parts: list[Tensor], low: list[Tensor], *args: Any
        ) -> list[Tensor]:
            batch = args if gather is None else gather(*args).parts
            with BatchedOpsMode(samples_last=samples_last, pools=True):
                grads, loss = gradients(tuple(parts), *batch)
            return [loss, *grads]

        given = (self.parts, self.low, *batch)
        graph = trace_graph(losses_and_gradients, *given, decompose=True)
        graphs.flatten_signature(graph)
        return graph

    def arguments(self, batch: Batch | DeferredBatch) -> tuple[Any, ...]:
        """Return the arguments of the graph that stand for a batch."""
        if self._gather is not None:
            assert isinstance(batch, DeferredBatch)
            return (batch.code,)
        return load_batch(batch).parts

    def load(self, buffers: Sequence[Tensor], rows: Rows) -> None:
        """Copy rows (m, d) into tensors that are ordered as `parts` are."""
        for k, new in enumerate(self._layout.split(rows)):
            view = self.in_model_order(buffers, k)
            view.copy_(new.reshape(view.shape))

    def join(self, buffers: Sequence[Tensor]) -> Rows:
        """Return tensors that are ordered as `parts` are, as rows (m, d)."""
        ordered = [self.in_model_order(buffers, k) for k in range(len(buffers))]
        return self._layout.join(ordered, lead=1)

    def in_model_order(self, buffers: Sequence[Tensor], k: int) -> Tensor:
        """Return a view of the k-th tensor whose columns are in the model's order."""
        return self._columns[k].in_model_order(buffers[k]) if k in self._columns else buffers[k]


def _outputs_last(weights: Tensor) -> Tensor:
    """Store weights of convolutions (m, O, C, ...) as (m, ..., C, O) in memory; others as is."""
    if weights.ndim < 4:
        return weights.contiguous()
    return weights.movedim((2, 1), (-2, -1)).contiguous().movedim((-2, -1), (2, 1))
