"""The local loop: K steps of every client of a chunk, for every method.

    for k = 0 .. K_i - 1:
        g = clip(grad F(z; batch k)) + weight_decay z       z = y, or grad_at(y, k)
        d = correct(g, z)              the direction's local problem
        y = step(y, d, phi)            phi = F + (weight_decay / 2) |y|^2, as the direction has it
        y = project(y, k)              if the direction has such a map

A client with fewer steps than others, or whose step says that it is done, stops earlier; its row
no longer changes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.plan import Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import row_sq
from ..models.losses import Batch, DeferredBatch, FusedDescent, Losses
from .rule import LocalObjective, LocalProblem, LocalResult, Step, StepContext


@dataclass(frozen=True)
class GradientTransform:
    """What every local step does to its minibatch gradient, for any method.

    Args:
        weight_decay: Strength of (weight_decay / 2) |y|^2 in the client's loss, >= 0.
        clip: Longest minibatch gradient that is let through, or None.
    """

    weight_decay: float = 0.0
    clip: float | None = None

    def gradient(
        self, losses: Losses, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the batch losses (m,) and the transformed gradients (m, d).

        With `reuse_buffer`, the gradients may be overwritten by the next call.
        """
        loss, g = losses.value_and_grad(y, batch, reuse_buffer)
        if self.clip is not None:
            g = g * (self.clip / row_sq(g).sqrt().clamp(min=self.clip))[:, None]
        return loss, g + self.weight_decay * y if self.weight_decay else g


@dataclass(frozen=True)
class LocalBatches:
    """The batches of one local phase.

    Args:
        fetch: Returns the clients' k-th batches.
        steps: Local steps of each client (m,).
        share: Batch size over client samples (m, K).
        span: Fewest and most steps of any client, known without a device synchronisation.
    """

    fetch: Callable[[int], Batch | DeferredBatch]
    steps: Tensor
    share: Tensor
    span: tuple[int, int]

    def repeated(self, times: int) -> "LocalBatches":
        """Return the first batch `times` times, for solvers on the whole local batch."""
        steps, share = torch.full_like(self.steps, times), self.share[:, :1].expand(-1, times)
        return LocalBatches(lambda k: self.fetch(0), steps, share, (times, times))


def run_local_steps(
    x: Vector,
    problem: LocalProblem,
    step: Step,
    down: Channels,
    losses: Losses,
    batches: LocalBatches,
    transform: GradientTransform,
    records: frozenset[str],
    t: Round,
    descent_lr: float | None = None,
) -> LocalResult:
    """Train m clients and return the record of their work.

    Args:
        x: First iterate of every client (d,), unless the local problem has its own.
        problem: The direction's local problem.
        step: How a step is taken.
        down: What the server sent.
        losses: Values and gradients of m rows.
        batches: The clients' batches.
        transform: Weight decay and clipping.
        records: Optional fields of `LocalResult` to fill.
        t: The round.
        descent_lr: lr, if every step is y - lr grad F(y) and nothing else; the engine may then take
            whole steps itself.
    """
    start = x if problem.start is None else problem.start
    start = start.expand(batches.steps.shape[0], -1)
    if descent_lr is not None:
        descent = losses.descent(len(batches.steps))
        if descent is not None:
            return _run_descent(start, descent, batches, descent_lr, step.begin(start, down))
    steps, counts = batches.steps, batches.steps.to(x.dtype)
    ref = None if problem.ref is None else problem.ref.expand_as(start)
    y, scratch = start, step.begin(start, down)
    sums: dict[str, Rows] = {}  # of vectors
    each: dict[str, list[Rows]] = {}  # of numbers, added up at the end
    shortest, longest = batches.span
    reuse_buffer = step.consumes_grad and ref is None and "grad_mean" not in records
    for k in range(longest):
        batch = batches.fetch(k)
        point = y if problem.grad_at is None else problem.grad_at(y, k)
        loss, g = transform.gradient(losses, point, batch, reuse_buffer)
        at_ref = None if ref is None else transform.gradient(losses, ref, batch)[1]
        phi = _objective(y, loss, batch, losses, problem, transform, at_ref)
        tick = StepContext(k, t, batches.share[:, k], counts)
        new, lr, after = step.take(y, problem.correct(g, point, at_ref), phi, tick, down, scratch)
        if problem.project is not None:
            new = problem.project(new, k)
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
    taken = _taken(numbers, len(each["lr"]), len(each.get("taken", [])))
    means = {n: v / taken[:, None] for n, v in sums.items()}
    return LocalResult(
        y=y,
        delta=y - start,
        steps=taken,
        loss=numbers["loss"] / taken,
        lr=numbers["lr"] / taken,
        trials=scratch.get("trials", torch.zeros_like(taken)),
        scratch=scratch,
        grad_sq=numbers.get("grad_sq"),
        **means,
    )


def _run_descent(
    start: Rows, descent: FusedDescent, batches: LocalBatches, lr: float, scratch: State
) -> LocalResult:
    """Run steps of plain gradient descent, each of them whole inside the engine."""
    steps = batches.steps
    rates = start.new_full(steps.shape, lr)
    shortest, longest = batches.span
    each: dict[str, list[Rows]] = {"lr": [], "taken": []}
    descent.begin(start)
    for k in range(longest):
        used = rates
        if k >= shortest:
            active = k < steps  # (m,)
            used = torch.where(active, rates, 0.0)
            each["taken"].append(active.to(start.dtype))
        descent.step(batches.fetch(k), used)
        each["lr"].append(used)
    y, loss = descent.end()
    numbers = {name: torch.stack(found).sum(0) for name, found in each.items() if found}
    taken = _taken(numbers | {"loss": loss}, longest, len(each["taken"]))
    return LocalResult(
        y=y,
        delta=y - start,
        steps=taken,
        loss=loss / taken,
        lr=numbers["lr"] / taken,
        trials=torch.zeros_like(taken),
        scratch=scratch,
    )


def _recorded(records: frozenset[str], g: Rows, point: Rows) -> dict[str, Rows]:
    """Return what a step adds to the record besides its loss and step size."""
    found = {"grad_mean": g, "point_mean": point} if records else {}
    found = {name: v for name, v in found.items() if name in records}
    return found | ({"grad_sq": row_sq(g)} if "grad_sq" in records else {})


def _taken(numbers: dict[str, Rows], all: int, masked: int) -> Rows:
    """Return the steps of each client: those that everyone took, and its share of the others."""
    full = torch.full_like(numbers["loss"], all - masked)
    return full + numbers["taken"] if masked else full


def _pick(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _objective(
    y: Rows,
    loss: Rows,
    batch: Batch | DeferredBatch,
    losses: Losses,
    problem: LocalProblem,
    transform: GradientTransform,
    at_ref: Rows | None,
) -> LocalObjective:
    scale, weight_decay = problem.scale, transform.weight_decay

    def extra(z: Rows) -> Rows | float:
        out = problem.value(z)
        if weight_decay:
            out = out + (scale * weight_decay / 2) * row_sq(z)
        if at_ref is not None:
            out = out - problem.ref_scale * (at_ref * z).sum(-1)
        return out

    def value(z: Rows) -> Rows:
        return _times(scale, losses.value(z, batch))

    def slope(z: Rows) -> Rows:
        return problem.correct(transform.gradient(losses, z, batch)[1], z, at_ref)

    return LocalObjective(_times(scale, loss), extra, value, y, slope)


def _times(scale: float, value: Rows) -> Rows:
    return value if scale == 1 else scale * value
