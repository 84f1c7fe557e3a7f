"""THE local loop: K steps of every client of a chunk, for every method.

    for k = 0 .. K_i - 1:
        g = clip(grad F(y; batch k)) + weight_decay y
        d = g + bend(y)
        y = step(y, d, phi)            phi = F + (weight_decay / 2) |y|^2 + bend

A client with fewer steps than others stops earlier; its row no longer changes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.losses import Batch, Losses
from ..types import Channels, Rows, Vector
from .rule import Local, Phi, Step, Tick, Work, row_sq


@dataclass(frozen=True)
class Schooling:
    """What every local step does to its gradient, whatever the method.

    Args:
        factor: The schedule's factor on learning rates in this round.
        weight_decay: Strength of (weight_decay / 2) |y|^2 in the client's loss, >= 0.
        clip: Longest minibatch gradient that is let through, or None.
    """

    factor: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None


def run(
    x: Vector,
    local: Local,
    step: Step,
    down: Channels,
    losses: Losses,
    fetch: Callable[[int], Batch],
    steps: Tensor,
    share: Tensor,
    school: Schooling,
    records: frozenset[str],
) -> Work:
    """Train m clients from x and return the record of their work.

    Args:
        x: Where everybody starts (d,).
        local: The direction's bend.
        step: How a step is taken.
        down: What the server sent.
        losses: Values and gradients of m rows.
        fetch: Returns the clients' k-th batches.
        steps: Local steps of each client (m,).
        share: Batch size over client samples (m, K).
        school: Weight decay, clipping, schedule.
        records: Optional fields of `Work` to fill.
    """
    y = x.expand(steps.shape[0], -1)
    scratch = step.begin(y, down)
    sums: dict[str, Rows] = {}
    longest, shortest = int(steps.max()), int(steps.min())
    for k in range(longest):
        batch = fetch(k)
        loss, g = losses.value_and_grad(y, batch)
        g = _decay(_clip(g, school.clip), y, school.weight_decay)
        phi = _bent(y, loss, batch, losses, local, school.weight_decay)
        tick = Tick(k, school.factor, share[:, k])
        new, lr, after = step.take(y, local.bend(g, y), phi, tick, down, scratch)
        parts = {"loss": loss, "lr": lr}
        if "grad_mean" in records:
            parts["grad_mean"] = g
        if "grad_sq" in records:
            parts["grad_sq"] = row_sq(g)
        if k < shortest:
            y, scratch = new, after
        else:
            active = k < steps  # (m,)
            y = _pick(active, new, y)
            scratch = {name: _pick(active, v, scratch[name]) for name, v in after.items()}
            parts = {name: _pick(active, v, torch.zeros_like(v)) for name, v in parts.items()}
        sums = {name: sums[name] + v if name in sums else v for name, v in parts.items()}
    taken = steps.to(y.dtype)
    mean = sums["grad_mean"] / taken[:, None] if "grad_mean" in sums else None
    trials = scratch.get("trials", torch.zeros_like(taken))
    return Work(
        delta=y - x,
        steps=taken,
        loss=sums["loss"] / taken,
        lr=sums["lr"] / taken,
        trials=trials,
        grad_mean=mean,
        grad_sq=sums.get("grad_sq"),
    )


def _pick(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _clip(g: Rows, limit: float | None) -> Rows:
    if limit is None:
        return g
    return g * (limit / row_sq(g).sqrt().clamp(min=limit))[:, None]


def _decay(g: Rows, y: Rows, weight_decay: float) -> Rows:
    return g + weight_decay * y if weight_decay else g


def _bent(
    y: Rows, loss: Rows, batch: Batch, losses: Losses, local: Local, weight_decay: float
) -> Phi:
    def extra(z: Rows) -> Rows | float:
        decay = (weight_decay / 2) * row_sq(z) if weight_decay else 0.0
        return local.value(z) + decay

    return Phi(loss, extra, lambda z: losses.value(z, batch), y)
