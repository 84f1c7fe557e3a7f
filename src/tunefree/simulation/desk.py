"""Where clients work: their data, the losses on it, and the count of what the work took."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..clients.loop import LocalBatches
from ..clients.rule import LocalResult
from ..core.plan import Round, What
from ..core.types import Rows
from ..core.vectors import row_sq
from ..methods import Method
from ..models.losses import Losses
from ..rounds import ClientTask
from .feed import BatchPrefetcher, BatchSource

WORK_COUNTS = ("steps", "trials", "slopes", "unsolved")  # what is counted over clients in a round


class ClientContext:
    """What a chunk of clients needs in order to work: m rows in a simulation, one on a node.

    Args:
        method: What they train by.
        feed: What they are fed.
        losses: How losses are computed.
    """

    def __init__(self, method: Method, feed: BatchSource, losses: Losses) -> None:
        self.method, self.feed, self.losses = method, feed, losses
        self.lessons = BatchPrefetcher(feed, losses.gathers)
        self.passes = 0  # gradients over all data since this was last set to 0, one a batch

    def task(self, ids: Tensor, t: Round) -> ClientTask:
        """Return what these clients do in a round."""

        def full(at: Tensor, grad: bool) -> tuple[Rows, Rows]:
            return self.full(at, t.index, ids, grad)

        def lesson(turn: int, steps: int | None) -> LocalBatches:
            return self.lessons.give(ids, t.index, turn, steps)

        return ClientTask(losses=self.losses, lesson=lesson, full=full)

    def full(self, x: Tensor, t: int, ids: Tensor | None, grad: bool) -> tuple[Rows, Rows]:
        """Return losses (m,) and gradients (m, d) at x, (d,) or (m, d), over all own data.

        Without ids, over the server's own held sample, as one row.
        """
        m = 1 if ids is None else len(ids)
        y = x.expand(m, -1)
        values, grads = y.new_zeros(m), torch.zeros_like(y) if grad else y[:, :0]
        for weight, batch in self.feed.blocks(ids, t):
            if grad:
                value, g = self.losses.value_and_grad(y, batch)
                grads = grads + weight[:, None] * g
            else:
                value = self.losses.value(y, batch)
            values = values + weight * value
        decay = self.method.weight_decay
        if decay:  # it belongs to every client's loss
            values = values + (decay / 2) * row_sq(y)
            grads = grads + decay * y if grad else grads
        if grad and ids is not None:
            self.passes += int(self.feed.passes(ids).sum())
        return values, grads

    def probe(self, x: Tensor, t: int, ids: Tensor | None, what: What) -> Rows:
        """Return `what` at x over all own data, a row for each client."""
        values, grads = self.full(x, t, ids, what != "loss")
        if what == "loss":
            return values
        return grads if what == "grad" else row_sq(grads)


def count_work(work: LocalResult) -> Tensor:
    """Return the sums over clients of what `WORK_COUNTS` names."""
    zero = torch.zeros_like(work.steps)
    done = work.scratch.get("done")
    unsolved = zero if done is None else (~done).to(zero.dtype)
    each = (work.steps, work.trials, work.scratch.get("slopes", zero), unsolved)
    return torch.stack([v.double().sum() for v in each])


def work_costs(
    method: Method, counted: Mapping[str, float], passes: float, t: Round
) -> dict[str, float]:
    """Return a round's work for the history: gradients, trials a step, proximal maps.

    Args:
        method: What was trained by.
        counted: The sums of what `WORK_COUNTS` names.
        passes: Gradients over all data, one a batch.
        t: The round.
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
