"""THE local loop: K steps of every client of a chunk, for every method.

    for k = 0 .. K_i - 1:
        g = clip(grad F(z; batch k)) + weight_decay z       z = y, or look(y, k)
        d = bend(g, z)
        y = step(y, d, phi)            phi = F + (weight_decay / 2) |y|^2, bent
        y = land(y, k)                 where the direction has such a map

A client with fewer steps than others, or whose step says that it is done, stops earlier; its row
no longer changes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.plan import Round
from ..core.types import Channels, Rows, Vector
from ..core.vectors import row_sq
from ..models.losses import Batch, DeferredBatch, Losses
from .rule import LocalObjective, LocalProblem, LocalResult, Step, StepContext


@dataclass(frozen=True)
class GradientTransform:
    """What every local step does to its gradient, whatever the method.

    Args:
        weight_decay: Strength of (weight_decay / 2) |y|^2 in the client's loss, >= 0.
        clip: Longest minibatch gradient that is let through, or None.
    """

    weight_decay: float = 0.0
    clip: float | None = None

    def gradient(
        self, losses: Losses, y: Rows, batch: Batch | DeferredBatch, brief: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the batch losses (m,) and the gradients as schooled (m, d).

        With `brief`, the gradients may be overwritten by the next call.
        """
        loss, g = losses.value_and_grad(y, batch, brief)
        if self.clip is not None:
            g = g * (self.clip / row_sq(g).sqrt().clamp(min=self.clip))[:, None]
        return loss, g + self.weight_decay * y if self.weight_decay else g


@dataclass(frozen=True)
class LocalBatches:
    """The batches of one turn.

    Args:
        fetch: Returns the clients' k-th batches.
        steps: Local steps of each client (m,).
        share: Batch size over client samples (m, K).
        span: Fewest and most steps of any of them, known without asking the device.
    """

    fetch: Callable[[int], Batch | DeferredBatch]
    steps: Tensor
    share: Tensor
    span: tuple[int, int]

    def repeated(self, times: int) -> "LocalBatches":
        """Return the first batch again and again, for solvers on the whole local batch."""
        steps, share = torch.full_like(self.steps, times), self.share[:, :1].expand(-1, times)
        return LocalBatches(lambda k: self.fetch(0), steps, share, (times, times))


def run(
    x: Vector,
    local: LocalProblem,
    step: Step,
    down: Channels,
    losses: Losses,
    lesson: LocalBatches,
    school: GradientTransform,
    records: frozenset[str],
    t: Round,
    rate: float | None = None,
) -> LocalResult:
    """Train m clients and return the record of their work.

    Args:
        x: Where everybody starts (d,), unless the bend says otherwise.
        local: The direction's bend.
        step: How a step is taken.
        down: What the server sent.
        losses: Values and gradients of m rows.
        lesson: The clients' batches.
        school: Weight decay and clipping.
        records: Optional fields of `LocalResult` to fill.
        t: The round.
        rate: lr where a step is y - lr grad F(y) and nothing else: the engine may do it all.
    """
    steps, counts = lesson.steps, lesson.steps.to(x.dtype)
    start = (x if local.start is None else local.start).expand(steps.shape[0], -1)
    ref = None if local.ref is None else local.ref.expand_as(start)
    y, scratch = start, step.begin(start, down)
    walk = None if rate is None else losses.descent(len(steps))
    rates = start.new_full(steps.shape, 0.0 if rate is None else rate)
    if walk is not None:
        walk.begin(start)
    sums: dict[str, Rows] = {}  # of vectors
    each: dict[str, list[Rows]] = {}  # of numbers, added up at the end
    shortest, longest = lesson.span
    brief = step.consumes_grad and ref is None and "grad_mean" not in records
    for k in range(longest):
        batch = lesson.fetch(k)
        if walk is not None:
            lr = rates if k < shortest else torch.where(k < steps, rates, 0.0)
            walk.step(batch, lr)
            parts, new, after = {"lr": lr}, y, scratch
        else:
            point = y if local.grad_at is None else local.grad_at(y, k)
            loss, g = school.gradient(losses, point, batch, brief)
            at_ref = None if ref is None else school.gradient(losses, ref, batch)[1]
            phi = _bent(y, loss, batch, losses, local, school, at_ref)
            tick = StepContext(k, t, lesson.share[:, k], counts)
            new, lr, after = step.take(y, local.correct(g, point, at_ref), phi, tick, down, scratch)
            if local.project is not None:
                new = local.project(new, k)
            parts = {"loss": loss, "lr": lr, **_recorded(records, g, point)}
            del g, phi  # so that their memory serves the next step
        if k < shortest and "done" not in scratch:
            y, scratch = new, after
        else:
            active = k < steps  # (m,)
            if "done" in scratch:
                active = active & ~scratch["done"]
                if not bool(active.any()):
                    break
            parts["taken"] = active.to(x.dtype)
            y = y if new is y else _pick(active, new, y)
            scratch = {name: _pick(active, v, scratch[name]) for name, v in after.items()}
            parts = {name: _pick(active, v, torch.zeros_like(v)) for name, v in parts.items()}
        for name, v in parts.items():
            if v.ndim > 1:
                sums[name] = sums[name] + v if name in sums else v
            else:
                each.setdefault(name, []).append(v)
        del new, parts
    numbers = {name: torch.stack(found).sum(0) for name, found in each.items()}
    if walk is not None:
        y, numbers["loss"] = walk.end()
    taken = _taken(numbers, len(each["lr"]), len(each.get("taken", [])))
    means = {n: v / taken[:, None] for n, v in sums.items()}
    trials = scratch.get("trials", torch.zeros_like(taken))
    return LocalResult(
        y=y,
        delta=y - start,
        steps=taken,
        loss=numbers["loss"] / taken,
        lr=numbers["lr"] / taken,
        trials=trials,
        scratch=scratch,
        grad_sq=numbers.get("grad_sq"),
        **means,
    )


def _recorded(records: frozenset[str], g: Rows, point: Rows) -> dict[str, Rows]:
    """Return what a step adds to the record beyond its loss and size."""
    found = {"grad_mean": g, "point_mean": point} if records else {}
    found = {name: v for name, v in found.items() if name in records}
    return found | ({"grad_sq": row_sq(g)} if "grad_sq" in records else {})


def _taken(numbers: dict[str, Rows], all: int, masked: int) -> Rows:
    """Return the steps of each client: those that everyone took, and its share of the others."""
    full = torch.full_like(numbers["loss"], all - masked)
    return full + numbers["taken"] if masked else full


def _pick(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _bent(
    y: Rows,
    loss: Rows,
    batch: Batch | DeferredBatch,
    losses: Losses,
    local: LocalProblem,
    school: GradientTransform,
    at_ref: Rows | None,
) -> LocalObjective:
    scale, weight_decay = local.scale, school.weight_decay

    def extra(z: Rows) -> Rows | float:
        out = local.value(z)
        if weight_decay:
            out = out + (scale * weight_decay / 2) * row_sq(z)
        if at_ref is not None:
            out = out - local.ref_scale * (at_ref * z).sum(-1)
        return out

    def value(z: Rows) -> Rows:
        return _times(scale, losses.value(z, batch))

    def slope(z: Rows) -> Rows:
        return local.correct(school.gradient(losses, z, batch)[1], z, at_ref)

    return LocalObjective(_times(scale, loss), extra, value, y, slope)


def _times(scale: float, value: Rows) -> Rows:
    return value if scale == 1 else scale * value
