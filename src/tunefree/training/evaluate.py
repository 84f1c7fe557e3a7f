"""Evaluation of a model: loss, accuracy, own metrics, scores per client, stationarity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.layout import Layout
from ..core.types import Samples, Vector, take_rows
from ..data.federation import Federation
from ..models.problem import Problem
from ..penalties import Penalty, sparsity, stationarity
from .config import Metric

ROWS_AT_ONCE = 4096  # rows evaluated at once
TEMPERATURES = tuple(2 ** (k / 2) for k in range(-4, 9))  # that outputs are divided by: 1/4 to 16


@dataclass(frozen=True)
class Evaluation:
    """Evaluation on one set of samples."""

    problem: Problem
    test: Samples  # on the problem's device
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # each f(all outputs, all targets)
    groups: Tensor | None = None  # weight of each test row for each client (N, rows)
    names: Sequence[int | str] = ()  # of the clients that the groups are for
    weight: Tensor | None = None  # of each row in the mean loss
    is_calibrated: bool = False  # whether the loss at the best temperature is measured too
    has_error: bool = False  # whether the standard error of the loss is measured too

    def has_accuracy(self, x: Vector) -> bool:
        """Return whether `measure` has an accuracy."""
        inputs, target = take_rows(self.test[0], slice(2)), self.test[1][:2]
        return self.problem.accuracy(self.problem.outputs(x, inputs), target) is not None

    def _mean(self, losses: Tensor) -> float:
        """Return the weighted mean of the rows' losses."""
        each, weight = losses.to(torch.float64), self.weight
        return float(each.mean() if weight is None else (weight * each).sum() / weight.sum())

    def _error(self, losses: Tensor) -> float:
        """Return the standard error of the weighted mean of the rows' losses."""
        each = losses.to(torch.float64)
        weight = torch.ones_like(each) if self.weight is None else self.weight
        squares = (weight * (each - self._mean(losses))).square().sum()
        correction = len(each) / max(len(each) - 1, 1)
        return float((squares * correction).sqrt() / weight.sum())

    def measure(self, x: Vector, prefix: str = "test") -> dict[str, Any]:
        """Return the numbers for one model, by name."""
        inputs, target = self.test
        outputs, losses = [], []
        for low in range(0, len(target), ROWS_AT_ONCE):
            rows = slice(low, low + ROWS_AT_ONCE)
            output = self.problem.outputs(x, take_rows(inputs, rows))
            losses.append(self.problem.sample_losses(output, target[rows]))
            outputs.append(output)
        output, loss = torch.cat(outputs), torch.cat(losses)
        out: dict[str, Any] = {f"{prefix}_loss": self._mean(loss)}
        if self.has_error:
            out[f"{prefix}_loss_error"] = self._error(loss)
        if self.is_calibrated:
            found = [self.problem.sample_losses(output / t, target) for t in TEMPERATURES]
            out[f"{prefix}_calibrated_loss"] = min(map(self._mean, found))
        right = self.problem.accuracy(output, target)
        labelled, score = right is not None, loss if right is None else right
        if labelled:
            out[f"{prefix}_accuracy"] = float(score.mean())
        for name, metric in self.metrics.items():
            out[f"{prefix}_{name}"] = _to_number(name, metric(output, target))
        if self.groups is not None:
            each = (self.groups @ score.to(self.groups.dtype)).cpu()  # (N,)
            worst = int(each.argmin() if labelled else each.argmax())
            out["client_worst"] = float(each[worst])
            out["client_spread"] = float(each.std(correction=0))
            if self.names:
                out["worst_client"] = str(self.names[worst])
        return out


def _to_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = f"{name!r} must return one number, got a {type(value).__name__}"
        raise ArgumentError(f"Evaluate(metrics=...): {found}.") from None


def measure_regularity(
    penalty: Penalty, alpha: float, layout: Layout, gradient: Vector | None, x: Vector
) -> dict[str, float]:
    """Return h(x), the share of zeros and |x - prox(x - alpha grad f(x))| / alpha.

    The last one is left out without a gradient; alpha is lowered where h is weakly convex.
    """
    row = {"penalty": float(penalty.value(x, layout)), "sparsity": float(sparsity(x))}
    if gradient is not None:
        alpha = min(alpha, 0.9 / penalty.rho) if penalty.rho > 0 else alpha
        row["stationarity"] = float(stationarity(penalty, x, gradient, alpha, layout))
    return row


def weigh_test_rows(federation: Federation) -> tuple[Tensor, tuple[int | str, ...]]:
    """Return the weight of each test row for each client, (N, rows), and the clients' names.

    With `test_owner`, a client's own test rows. Otherwise the common test set, weighted so that
    its classes have the client's own training shares. Rows sum to 1; clients without test rows are
    left out.
    """
    if federation.test is None:
        raise ArgumentError("Evaluate(per_client=True) needs a test set: Federation(test=...).")
    target = federation.test[1]
    if federation.test_owner is not None:
        ids = torch.arange(federation.clients)[:, None]
        weight = (federation.test_owner[None, :] == ids).to(torch.float64)
    elif federation.classes is not None and target.ndim == 1:
        counts = federation.label_counts().to("cpu", torch.float64)  # (N, C)
        weight = counts[:, target.cpu()]
        totals = torch.bincount(target.cpu(), minlength=counts.shape[1]).clamp(min=1)
        weight = weight / totals[target.cpu()]
    else:
        why = "needs to know which client a test row belongs to: Federation(test_owner=...)"
        raise ArgumentError(f"Evaluate(per_client=True) {why}.")
    has = weight.sum(1) > 0
    names = tuple(n for n, tested in zip(federation.names, has.tolist(), strict=True) if tested)
    weight = weight[has].to(target.device)
    return weight / weight.sum(1, keepdim=True), names
