"""Geometric median by smoothed Weiszfeld steps.

Pillutla, Kakade & Harchaoui, IEEE TSP 2022, Algorithm 2 (RFA). arXiv:1912.13445

    out = argmin_z sum_i p_i |z - z_i|
    w_i = p_i / max(nu, |z - z_i|),    z <- sum_i w_i z_i / sum_i w_i

Differences from the paper: starts at the coordinate median instead of the mean, which one very
large row can move so far that many steps are needed; nu is relative to the median distance; it
stops once weights change by less than 1e-7, or after `steps`.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.fields import Positive, PositiveInt
from ..core.types import Channels
from .rule import MeanContext, SelectionRule, combine, median, norms, weights_like


@dataclass(frozen=True)
class GeometricMedian(SelectionRule):
    """The point with the least weighted sum of distances to the rows; a weighted mean of them.

    Args:
        steps: Maximum number of Weiszfeld steps, >= 1.
        nu: Lower bound on distances, in units of the median distance, > 0.
    """

    steps: PositiveInt = 50
    nu: Positive = 1e-6

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the rows and the weights of the last step."""
        w, p = p.double().cpu(), p.double().cpu()
        centre = {name: median(z, p) for name, z in rows.items()}
        for _ in range(self.steps):
            away = norms({name: z - centre[name] for name, z in rows.items()})
            new = p / away.clamp(min=max(self.nu * float(away.median()), 1e-300))
            new = new / new.sum()
            same = float((new - w).abs().max()) < 1e-7
            w = new
            if same:
                break
            centre = {name: z[0] for name, z in combine(w[None], rows).items()}
        return rows, weights_like(w, next(iter(rows.values())))
