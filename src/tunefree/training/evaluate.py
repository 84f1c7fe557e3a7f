"""Evaluation of a model: loss, accuracy, own metrics, scores per client, stationarity."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.layout import Layout
from ..core.types import Pair, Vector, map_inputs
from ..data.federation import Federation
from ..models.problem import Problem
from ..penalties import Penalty, sparsity, stationarity
from .config import Metric

ROWS = 4096  # rows evaluated at once


@dataclass(frozen=True)
class Evaluation:
    """Evaluation on one set of samples.

    Args:
        problem: Model and loss.
        test: Inputs and targets, on the problem's device.
        metrics: Further numbers, each f(all outputs, all targets).
        groups: For each client, the weight of each test row (N, rows); see `per_client`.
    """

    problem: Problem
    test: Pair
    metrics: dict[str, Metric] = field(default_factory=dict)
    groups: Tensor | None = None

    def measure(self, x: Vector, prefix: str = "test") -> dict[str, float]:
        """Return the numbers for one model, by name."""
        inputs, target = self.test
        outputs, losses = [], []
        for low in range(0, len(target), ROWS):
            part = map_inputs(lambda t, low=low: t[low : low + ROWS], inputs)  # type: ignore[misc]
            output = self.problem.outputs(x, part)
            losses.append(self.problem.sample_losses(output, target[low : low + ROWS]))
            outputs.append(output)
        output, loss = torch.cat(outputs), torch.cat(losses)
        out = {f"{prefix}_loss": float(loss.to(torch.float64).mean())}
        score, labelled = loss, self.problem.is_classification(output, target)
        if labelled:
            score = (output.argmax(1) == target).to(torch.float64)
            score = score.reshape(len(target), -1).mean(1)
            out[f"{prefix}_accuracy"] = float(score.mean())
        for name, metric in self.metrics.items():
            out[f"{prefix}_{name}"] = float(metric(output, target))
        if self.groups is not None:
            each = (self.groups @ score.to(self.groups.dtype)).cpu()  # (N,)
            worst = each.min() if labelled else each.max()
            out["client_worst"], out["client_spread"] = float(worst), float(each.std(correction=0))
        return out


@dataclass(frozen=True)
class Regularity:
    """Distance of a model from a stationary point of f + h, and its sparsity.

    Costs one pass over all clients' data, which is not traffic.

    Args:
        penalty: The regulariser h.
        alpha: Step of the proximal gradient, > 0.
        layout: Where each tensor lies.
        gradient: Returns grad f at a point, or None if it cannot be known.
    """

    penalty: Penalty
    alpha: float
    layout: Layout
    gradient: Callable[[Vector], Vector | None]

    def measure(self, x: Vector) -> dict[str, float]:
        """Return h(x), the share of zeros and |x - prox(x - alpha grad f(x))| / alpha."""
        row = {
            "penalty": float(self.penalty.value(x, self.layout)),
            "sparsity": float(sparsity(x)),
        }
        gradient = self.gradient(x)
        if gradient is not None:
            rho = self.penalty.rho
            alpha = min(self.alpha, 0.9 / rho) if rho > 0 else self.alpha
            distance = stationarity(self.penalty, x, gradient, alpha, self.layout)
            row["stationarity"] = float(distance)
        return row


def per_client(federation: Federation) -> Tensor:
    """Return the weight of each test row for each client: (N, rows); rows sum to 1.

    With `test_owner`, a client's own test rows. Otherwise the common test set, weighted so that
    its classes have the client's own training shares.
    """
    if federation.test is None:
        raise ArgumentError(
            "Evaluate(per_client=True) needs a test set; give Federation(test=...)."
        )
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
        raise ArgumentError(
            "Evaluate(per_client=True) needs to know which client a test row belongs to; give "
            "Federation(test_owner=...)."
        )
    weight = weight[weight.sum(1) > 0]  # clients with rows in the test set
    return (weight / weight.sum(1, keepdim=True)).to(target.device)
