"""The data and losses with which clients work, and the cost of their work."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..clients.loop import LocalBatches
from ..clients.rule import LocalResult
from ..core.plan import Round, What
from ..core.types import Rows
from ..core.vectors import row_sq
from ..methods import Method
from ..models.losses import Losses
from ..rounds.client import ClientTask
from .batches import BatchPrefetcher, BatchSource

WORK_COUNTS = ("steps", "trials", "slopes", "unsolved")  # summed over the clients of a round

LimitSteps = Callable[[LocalBatches, Tensor, Round], LocalBatches]
"""Returns the batches of clients in a round, with fewer steps for those that are slow."""


class ClientContext:
    """What a chunk of m clients needs to train and to answer queries; m = 1 on a node."""

    def __init__(
        self,
        method: Method,
        batches: BatchSource,
        losses: Losses,
        limit_steps: LimitSteps | None = None,
    ) -> None:
        self.method, self.batches, self.losses = method, batches, losses
        self.prefetcher = BatchPrefetcher(batches, losses.wants_deferred)
        self.passes = 0  # full gradients since this was last set to 0, counted in batches
        self._limit_steps = limit_steps

    def task(self, ids: Tensor, t: Round) -> ClientTask:
        """Return the losses and data of these clients in a round."""

        def full(at: Tensor, grad: bool) -> tuple[Rows, Rows]:
            return self.full(at, t.index, ids, grad)

        def local_batches(phase: int, steps: int | None) -> LocalBatches:
            found = self.prefetcher.get(ids, t.index, phase, steps)
            return found if self._limit_steps is None else self._limit_steps(found, ids, t)

        return ClientTask(losses=self.losses, local_batches=local_batches, full_loss=full)

    def full(self, x: Tensor, t: int, ids: Tensor | None, grad: bool) -> tuple[Rows, Rows]:
        """Return losses (m,) and gradients (m, d), or (m, 0) without `grad`, over all local data.

        They are taken at x (d,), or at a point of each client (m, d). Without ids, the data is the
        server's held sample, as one row.
        """
        m = 1 if ids is None else len(ids)
        y = x.expand(m, -1)
        values, grads = y.new_zeros(m), torch.zeros_like(y) if grad else y[:, :0]
        for weight, batch in self.batches.blocks(ids, t):
            if grad:
                value, g = self.losses.value_and_grad(y, batch)
                grads = grads + weight[:, None] * g
            else:
                value = self.losses.value(y, batch)
            values = values + weight * value
        decay = self.method.weight_decay
        if decay:  # part of every client's loss
            values = values + (decay / 2) * row_sq(y)
            grads = grads + decay * y if grad else grads
        if grad and ids is not None:
            self.passes += int(self.batches.passes(ids).sum())
        return values, grads

    def probe(self, x: Tensor, t: int, ids: Tensor | None, what: What) -> Rows:
        """Return `what` at x over all data of each client, one row per client."""
        values, grads = self.full(x, t, ids, what != "loss")
        if what == "loss":
            return values
        return grads if what == "grad" else row_sq(grads)


def count_work(result: LocalResult) -> Tensor:
    """Return the sums over clients of `WORK_COUNTS`."""
    zero = torch.zeros_like(result.steps)
    done = result.scratch.get("done")
    unsolved = zero if done is None else (~done).to(zero.dtype)
    each = (result.steps, result.trials, result.scratch.get("slopes", zero), unsolved)
    return torch.stack([v.double().sum() for v in each])


def work_costs(
    method: Method, counted: Mapping[str, float], passes: float, t: Round
) -> dict[str, float]:
    """Return a round's work for the history: gradients, trials per step, proximal maps.

    `counted` has the sums of `WORK_COUNTS` by name; `passes` are full gradients, in batches.
    """
    steps, trials, slopes = (counted[n] for n in ("steps", "trials", "slopes"))
    refs = 1 + ("ref" in method.direction.sets and not t.preparing)
    row: dict[str, float] = {"gradients": int(steps * refs + slopes) + int(passes)}
    maps = sum(name in method.direction.sets for name in ("grad_at", "project"))
    if maps:
        row["proxes"] = int(steps) * maps
    if trials:
        row["trials"] = trials / steps
    if counted["unsolved"]:
        row["unsolved"] = int(counted["unsolved"])
    return row
