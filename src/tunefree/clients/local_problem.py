"""The local problem of a client, as a direction modifies it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from ..core.plan import Plan
from ..core.types import Rows, Vector

Map: TypeAlias = Callable[[Rows, int], Rows]
"""Maps rows and the index of the local step to rows."""


@dataclass(frozen=True)
class StepMap:
    """A map that can be compiled with the local step: (y, k) -> function(y, k, plan, *numbers).

    Args:
        function: Consists of elementwise operations and sums over rows. In a compiled step, k and
            the numbers are scalar tensors. Equal (==) in all rounds: a method of the direction.
        plan: The run's.
        numbers: What may change from round to round.
    """

    function: Callable[..., Rows]
    plan: Plan
    numbers: tuple[float, ...] = ()

    def __call__(self, y: Rows, k: int) -> Rows:
        """Return the rows after the map."""
        return self.function(y, k, self.plan, *self.numbers)


@dataclass(frozen=True)
class LocalProblem:
    """The problem that a client solves in a round: its batch loss F, modified by the direction.

    phi(y) = scale F(y) - ref_scale <g(ref), y> + <shift, y> + (mu / 2) |y - anchor|^2
    d      = scale g(y) - ref_scale g(ref) + shift + mu (y - anchor)

    Problems of several directions are added with `+`.

    Args:
        shift: Constant added to the gradient (m, d).
        mu: Weight of the proximal term.
        anchor: Centre of the proximal term (m, d), or one number ().
        scale: Factor of the batch loss.
        ref: Point of a second gradient on the same batch (d,).
        ref_scale: Factor of that gradient.
        start: First local iterate (m, d); x by default.
        grad_at: Maps (y, k) to the point at which the gradient of step k is taken.
        project: Maps (y, k) to the iterate after step k. With either map, d is not the gradient
            of phi at y.
    """

    shift: Rows | None = None
    mu: float | Tensor = 0.0
    anchor: Rows | None = None
    scale: float = 1.0
    ref: Vector | None = None
    ref_scale: float = 0.0
    start: Rows | None = None
    grad_at: Map | None = None
    project: Map | None = None

    def __add__(self, other: "LocalProblem") -> "LocalProblem":
        shifts = [s for s in (self.shift, other.shift) if s is not None]
        anchored = [a for a in (self, other) if a.anchor is not None]
        out = LocalProblem(sum(shifts[1:], shifts[0]) if shifts else None)
        if anchored:
            out = replace(out, mu=anchored[0].mu, anchor=anchored[0].anchor)
        if len(anchored) == 2:
            mu = anchored[0].mu + anchored[1].mu  # same gradient; phi differs by a constant
            out = replace(out, mu=mu, anchor=_between(anchored[0], anchored[1], mu))
        return replace(out, **self._lone(), **other._lone())

    def _lone(self) -> dict[str, Any]:
        """Return the fields that only one of several directions may set, if they are set."""
        maps = {
            n: v for n in ("start", "grad_at", "project") if (v := getattr(self, n)) is not None
        }
        if self.ref is not None:
            maps |= {"ref": self.ref, "ref_scale": self.ref_scale}
        return maps | ({"scale": self.scale} if self.scale != 1 else {})

    def value(self, y: Rows) -> Rows | float:
        """Return what is added to the scaled batch loss at y: (m,)."""
        out: Rows | float = 0.0
        if self.shift is not None:
            out = out + (self.shift * y).sum(-1)
        if self.anchor is not None:
            out = out + (self.mu / 2) * (y - self.anchor).square().sum(-1)
        return out

    def correct(self, grad: Rows, y: Rows, at_ref: Rows | None = None) -> Rows:
        """Return the modified gradient at y: (m, d)."""
        if self.scale != 1:
            grad = self.scale * grad
        if at_ref is not None:
            grad = grad - self.ref_scale * at_ref
        if self.shift is not None:
            grad = grad + self.shift
        if self.anchor is not None:
            grad = grad + self.mu * (y - self.anchor)
        return grad

    @property
    def maps(self) -> dict[str, Map]:
        """The maps that a local step passes through, by name."""
        both = {"grad_at": self.grad_at, "project": self.project}
        return {name: f for name, f in both.items() if f is not None}


def _between(a: LocalProblem, b: LocalProblem, mu: float | Tensor) -> Rows:
    assert a.anchor is not None
    assert b.anchor is not None
    return a.anchor if a.anchor is b.anchor else (a.mu * a.anchor + b.mu * b.anchor) / mu
