"""How a direction may bend a client's loss and gradient."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from ..core.types import Rows, Vector

Map: TypeAlias = Callable[[Rows, int], Rows]
"""From rows and the local step's number to rows."""


@dataclass(frozen=True)
class Local:
    """How the batch loss F is bent; closed under `+`.

    phi(y) = scale F(y) - ref_scale <g(ref), y> + <tilt, y> + (mu / 2) |y - centre|^2
    d      = scale g(y) - ref_scale g(ref) + tilt + mu (y - centre)

    g(ref) is taken on the same batch. `start` replaces x as the first point. With `look`, d is
    taken at look(y, k); with `land`, a step ends at land(y, k): d is then no gradient of phi at y.
    """

    tilt: Rows | None = None
    mu: float | Tensor = 0.0
    centre: Rows | None = None
    scale: float = 1.0
    ref: Vector | None = None
    ref_scale: float = 0.0
    start: Rows | None = None
    look: Map | None = None
    land: Map | None = None

    def __add__(self, other: "Local") -> "Local":
        tilts = [t for t in (self.tilt, other.tilt) if t is not None]
        pulls = [a for a in (self, other) if a.centre is not None]
        tilt = sum(tilts[1:], tilts[0]) if tilts else None
        bend = Local(tilt, pulls[0].mu, pulls[0].centre) if pulls else Local(tilt)
        if len(pulls) == 2:
            mu = pulls[0].mu + pulls[1].mu  # same gradient; phi differs by a constant
            bend = replace(bend, mu=mu, centre=_between(pulls[0], pulls[1], mu))
        return replace(bend, **self._lone(), **other._lone())

    def _lone(self) -> dict[str, Any]:
        """Return what only one of several directions may set, where it is set."""
        maps = {n: v for n in ("start", "look", "land") if (v := getattr(self, n)) is not None}
        if self.ref is not None:
            maps |= {"ref": self.ref, "ref_scale": self.ref_scale}
        return maps | ({"scale": self.scale} if self.scale != 1 else {})

    def value(self, y: Rows) -> Rows | float:
        """Return what is added to the scaled batch loss at y: (m,)."""
        out: Rows | float = 0.0
        if self.tilt is not None:
            out = out + (self.tilt * y).sum(-1)
        if self.centre is not None:
            out = out + (self.mu / 2) * (y - self.centre).square().sum(-1)
        return out

    def bend(self, grad: Rows, y: Rows, at_ref: Rows | None = None) -> Rows:
        """Return the bent gradient at y: (m, d)."""
        if self.scale != 1:
            grad = self.scale * grad
        if at_ref is not None:
            grad = grad - self.ref_scale * at_ref
        if self.tilt is not None:
            grad = grad + self.tilt
        if self.centre is not None:
            grad = grad + self.mu * (y - self.centre)
        return grad

    @property
    def maps(self) -> int:
        """How many maps a local step passes through."""
        return (self.look is not None) + (self.land is not None)


def _between(a: Local, b: Local, mu: float | Tensor) -> Rows:
    assert a.centre is not None
    assert b.centre is not None
    return a.centre if a.centre is b.centre else (a.mu * a.centre + b.mu * b.centre) / mu
