"""Bounds on what one client adds to a sum, and the clipping that enforces them.

The vectors v_c of a client are clipped jointly, each in units of its own bound B_c, and a scalar s
in [a, b] is shifted and scaled to [-1, 1]:

    u = (v_c / B_c)_c,       u <- u / max(1, |u|)                 so that |u| <= 1
    r = (s - (a + b) / 2) / ((b - a) / 2),   r <- clip(r, -1, 1)  so that |r| <= 1

A vector or scalar that is not finite is replaced by 0. In these units an absent client adds 0, a
present client at most 1, and replacing one client by another changes the sum of a block by at most
2 (McMahan et al., ICLR 2018, arXiv:1710.06963, clip joint vectors this way).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import (
    ArgumentError,
    check_argument,
    check_finite,
    check_in_range,
    check_positive,
)
from ..core.types import Channels


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of the channels that clients send; a channel without a bound is an error.

    Args:
        vectors: By name, the norm at which a vector is clipped if it is the only one.
        scalars: By name, the range (low, high) to which a scalar is clipped.
        share: Share of the privacy budget for each scalar, in (0, 1 / number of scalars); the
            vectors have the rest. In units of 1 / noise^2, in which Gaussian mechanisms add up.
    """

    vectors: Mapping[str, float]
    scalars: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    share: float = 0.05

    def __post_init__(self) -> None:
        for kind in ("vectors", "scalars"):
            given = getattr(self, kind)
            check_argument("Bounds", kind, given, "a dict by name", isinstance(given, Mapping))
        for name, bound in self.vectors.items():
            check_positive("Bounds", name, bound)
        for name, (low, high) in self.scalars.items():
            check_finite("Bounds", name, low)
            check_finite("Bounds", name, high)
            check_argument("Bounds", name, (low, high), "a range low < high", low < high)
        both = sorted(self.vectors.keys() & self.scalars.keys())
        if both:
            raise ArgumentError(f"Bounds: {both[0]!r} is a vector or a scalar, not both.")
        if self.scalars:
            check_positive("Bounds", "share", self.share)
            check_in_range("Bounds", "share", self.share, 0, 1 / len(self.scalars))

    def budget_share(self, name: str) -> float:
        """Return the share of the privacy budget of a channel's block.

        >>> Bounds(vectors={"delta": 1.0}, scalars={"loss": (0.0, 5.0)}).budget_share("delta")
        0.95
        """
        return self.share if name in self.scalars else 1 - self.share * len(self.scalars)

    def scale(self, rows: Channels) -> Channels:
        """Clip rows (m, ...) and return them in units of their bounds."""
        for name, value in rows.items():
            kind = "vectors" if value.ndim > 1 else "scalars"
            if name not in getattr(self, kind):
                leak = f"The channel {name!r} has no bound, and would leak"
                raise ArgumentError(f"{leak}; name it in Bounds({kind}=...).")
        vectors = {n: v / self.vectors[n] for n, v in rows.items() if v.ndim > 1}
        out = _clip(vectors)
        for name, value in rows.items():
            if value.ndim == 1:
                low, high = self.scalars[name]
                r = (value.double() - (low + high) / 2) / ((high - low) / 2)
                out[name] = r.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1).to(value.dtype)
        return {name: out[name] for name in rows}

    def unscale(self, name: str, unit: Tensor) -> Tensor:
        """Undo `scale` for a mean; a scalar that noise moved out of its range is clamped to it."""
        if name in self.vectors:
            return unit * self.vectors[name]
        low, high = self.scalars[name]
        return (unit * ((high - low) / 2) + (low + high) / 2).clamp(low, high)


def _clip(vectors: Channels) -> Channels:
    """Scale each client's vectors jointly down to norm 1 if they are longer."""
    if not vectors:
        return {}
    largest = [v.abs().amax(1).double() for v in vectors.values()]
    top = torch.stack(largest).amax(0)  # (m,)
    is_finite = top.isfinite()  # amax propagates NaN
    unit = torch.where(is_finite & (top > 0), top, 1.0)
    parts = [torch.linalg.vector_norm(v.double() / unit[:, None], dim=1) for v in vectors.values()]
    length = unit * torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factor = torch.where(length > 1, 1 / length, 1.0)
    out: Channels = {}
    for name, v in vectors.items():
        slack = 1 - 4 * torch.finfo(v.dtype).eps  # so that rounding does not exceed 1
        each = torch.where(length > 1 - 1e-6, factor * slack, factor).to(v.dtype)
        out[name] = torch.where(is_finite[:, None], v * each[:, None], 0.0)
    return out
