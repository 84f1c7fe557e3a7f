"""Clipping: uploads are clipped to a radius around zero or a centre, and averaged.

Sun, Kairouz, Suresh & McMahan 2019, arXiv:1911.07963 (norm clipping);
Karimireddy, He & Jaggi, ICML 2021, Algorithm 2, arXiv:2012.10333 (centred clipping).

    norm:     out = sum_i p_i z_i min(1, r / |z_i|)
    centred:  v <- v + sum_i p_i (z_i - v) min(1, r / |z_i - v|)       `steps` times

Differences from the papers: without a radius, r is the median norm (or distance from v), so that
nothing depends on the model's scale. Centred clipping starts at this round's coordinate median
instead of the last round's result, so that the rule has no state.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.fields import Positive, PositiveInt
from ..core.types import Channels
from .rule import MeanContext, SelectionRule, combine, median, norms, weights_like


def _clip_norms(rows: Channels, p: Tensor, radius: float | None) -> Channels:
    size = norms(rows)
    most = float(median(size, p.cpu())) if radius is None else radius
    factor = (most / size.clamp(min=1e-300)).clamp(max=1.0)
    return {name: z * weights_like(factor, z)[:, None] for name, z in rows.items()}


@dataclass(frozen=True)
class NormClip(SelectionRule):
    """The mean of uploads, clipped to a radius.

    Args:
        radius: Largest norm, > 0; None is the median norm of the round.
    """

    radius: Positive | None = None

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the clipped rows."""
        return _clip_norms(rows, p, self.radius), p


@dataclass(frozen=True)
class CentredClip(SelectionRule):
    """The mean of uploads, clipped to a radius around a centre that is updated to that mean.

    Args:
        radius: Largest distance from the centre, > 0; None is the median distance.
        steps: Updates of the centre, >= 1.
    """

    radius: Positive | None = None
    steps: PositiveInt = 3

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the rows, clipped around the last centre."""
        centre = {name: median(z, p) for name, z in rows.items()}
        near = rows
        for _ in range(self.steps):
            away = {name: z - centre[name] for name, z in rows.items()}
            short = _clip_norms(away, p, self.radius)
            near = {name: centre[name] + z for name, z in short.items()}
            centre = {name: z[0] for name, z in combine(p[None], near).items()}
        return near, p
