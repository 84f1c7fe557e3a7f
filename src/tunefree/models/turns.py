"""One client after another, for modules that cannot be batched, and where that is faster."""

import torch

from ..types import Rows
from .losses import Batch
from .problem import Problem


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
