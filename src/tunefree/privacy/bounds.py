"""What one client may add to a sum, at most.

The vectors v_c of a client are clipped together, each measured in units of its own bound B_c, and a
number s in [a, b] counts from the middle of its range:

    u = (v_c / B_c)_c,       u <- u / max(1, |u|)                 so that |u| <= 1
    r = (s - (a + b) / 2) / ((b - a) / 2),   r <- clip(r, -1, 1)  so that |r| <= 1

A vector or number that is not finite counts as 0, whoever sent it. In these units a client that is
not there adds 0, one that is there adds at most 1, and one in place of another changes the sum of a
block by at most 2 (McMahan et al., ICLR 2018, arXiv:1710.06963, clip joint vectors this way).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_finite, check_in_range, check_positive
from ..core.types import Channels


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of every channel that clients send; a channel without one is refused.

    Args:
        vectors: By name, the length at which a vector is clipped if it is sent alone.
        scalars: By name, the range to which a number is clipped.
        share: Of the privacy budget, to each of the scalars, in (0, 1 / scalars); the vectors have
            the rest. In units of 1 / noise^2, in which Gaussian mechanisms add up.
    """

    vectors: Mapping[str, float]
    scalars: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    share: float = 0.05

    def __post_init__(self) -> None:
        for name, bound in self.vectors.items():
            check_positive("Bounds", name, bound)
        for name, (low, high) in self.scalars.items():
            check_finite("Bounds", name, low)
            check_finite("Bounds", name, high)
            if not low < high:
                raise ArgumentError(f"Bounds: {name} must lie in a range, got ({low}, {high}).")
        both = sorted(self.vectors.keys() & self.scalars.keys())
        if both:
            raise ArgumentError(f"Bounds: {both[0]!r} is a vector or a scalar, not both.")
        if self.scalars:
            check_positive("Bounds", "share", self.share)
            check_in_range("Bounds", "share", self.share, 0, 1 / len(self.scalars))

    def budget_share(self, name: str) -> float:
        """Return the share of the budget that a channel's block has.

        >>> Bounds(vectors={"delta": 1.0}, scalars={"loss": (0.0, 5.0)}).budget_share("delta")
        0.95
        """
        return self.share if name in self.scalars else 1 - self.share * len(self.scalars)

    def scale(self, rows: Channels) -> Channels:
        """Return rows (m, ...) in units of their bounds, clipped."""
        for name, value in rows.items():
            known: Mapping[str, object] = self.vectors if value.ndim > 1 else self.scalars
            if name not in known:
                kind = "vectors" if value.ndim > 1 else "scalars"
                raise ArgumentError(
                    f"The channel {name!r} has no bound, and would leak; name it in "
                    f"Bounds({kind}=...)."
                )
        vectors = {n: v / self.vectors[n] for n, v in rows.items() if v.ndim > 1}
        out = _clip(vectors)
        for name, value in rows.items():
            if value.ndim == 1:
                low, high = self.scalars[name]
                r = (value.double() - (low + high) / 2) / ((high - low) / 2)
                out[name] = r.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1).to(value.dtype)
        return {name: out[name] for name in rows}

    def unscale(self, name: str, unit: Tensor) -> Tensor:
        """Undo the units of a mean; a number outside its range is noise, and is brought back."""
        if name in self.vectors:
            return unit * self.vectors[name]
        low, high = self.scalars[name]
        return (unit * ((high - low) / 2) + (low + high) / 2).clamp(low, high)


def _clip(vectors: Channels) -> Channels:
    """Scale each client's vectors down together to length 1, where they are longer."""
    if not vectors:
        return {}
    tops = torch.stack([v.abs().amax(1).double() for v in vectors.values()])  # (c, m)
    top = tops.amax(0)
    sound = top.isfinite()  # NaN spreads through amax
    unit = torch.where(sound & (top > 0), top, 1.0)
    parts = [torch.linalg.vector_norm(v.double() / unit[:, None], dim=1) for v in vectors.values()]
    length = unit * torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factor = torch.where(length > 1, 1 / length, 1.0)
    out: Channels = {}
    for name, v in vectors.items():
        slack = 1 - 4 * torch.finfo(v.dtype).eps  # rounding must not lengthen it
        each = torch.where(length > 1 - 1e-6, factor * slack, factor).to(v.dtype)
        out[name] = torch.where(sound[:, None], v * each[:, None], 0.0)
    return out
