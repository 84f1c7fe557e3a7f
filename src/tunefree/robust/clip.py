"""Clipping: uploads are shortened, from nothing or from a centre, and averaged.

Sun, Kairouz, Suresh & McMahan 2019, arXiv:1911.07963 (norm clipping);
Karimireddy, He & Jaggi, ICML 2021, Algorithm 2, arXiv:2012.10333 (centred clipping).

    norm:     out = sum_i p_i z_i min(1, r / |z_i|)
    centred:  v <- v + sum_i p_i (z_i - v) min(1, r / |z_i - v|)       `steps` times

Differences from the papers: without a radius, r is the median length (or distance from v), so
that nothing depends on the model's scale. Centred clipping begins at this round's coordinate
median instead of the last round's result: nothing is remembered, so that a resumed run, a cohort of
strangers and the pass before round 0 need no care.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.errors import check_int, check_positive
from ..core.types import Channels
from .rule import Choosing, Sight, lengths, like, median, mixed


def _shortened(rows: Channels, p: Tensor, radius: float | None) -> Channels:
    size = lengths(rows)
    most = float(median(size, p.cpu())) if radius is None else radius
    factor = (most / size.clamp(min=1e-300)).clamp(max=1.0)
    return {name: z * like(factor, z)[:, None] for name, z in rows.items()}


@dataclass(frozen=True)
class NormClip(Choosing):
    """The mean of uploads no longer than a radius.

    Args:
        radius: Longest upload that counts in full, > 0; None is the median length of the round.
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_positive("NormClip", "radius", self.radius)

    def counted(self, rows: Channels, p: Tensor, sight: Sight) -> tuple[Channels, Tensor]:
        """Return the rows, shortened."""
        return _shortened(rows, p, self.radius), p


@dataclass(frozen=True)
class CentredClip(Choosing):
    """The mean of uploads no farther than a radius from a centre that follows it.

    Args:
        radius: Farthest that counts in full, > 0; None is the median distance.
        steps: How often the centre follows, >= 1.
    """

    radius: float | None = None
    steps: int = 3

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_positive("CentredClip", "radius", self.radius)
        check_int("CentredClip", "steps", self.steps)

    def counted(self, rows: Channels, p: Tensor, sight: Sight) -> tuple[Channels, Tensor]:
        """Return the rows, brought near the last centre."""
        centre = {name: median(z, p) for name, z in rows.items()}
        near = rows
        for _ in range(self.steps):
            away = {name: z - centre[name] for name, z in rows.items()}
            short = _shortened(away, p, self.radius)
            near = {name: centre[name] + z for name, z in short.items()}
            centre = {name: z[0] for name, z in mixed(p[None], near).items()}
        return near, p
