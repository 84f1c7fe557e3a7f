"""Mirror maps, and FedDuA's server step in the geometry of any of them.

"FedDuA", Theorem 3.2, for a mirror map psi with dual phi = psi*:

    v <- beta1 v + (1 - beta1) delta,   m <- (beta1 / 2) m + ((1 - beta1) / 2) q
    theta = grad psi(x),   eta with  <v, grad phi(theta + eta v)> - <v, x> = m
    x <- grad phi(theta + eta v)

    Quadratic:  psi = |x|^2 / 2                    eta = m / |v|^2, in closed form
    Entropy:    psi = sum_j x_j log x_j - x_j      x > 0; grad psi = log, grad phi = exp
    PNorm(p):   psi = |x|_p^2 / 2                  1 < p <= 2

where delta = mean_i delta_i and q = mean_i |delta_i|^2. The left side of the equation for eta grows
with eta; it is bracketed by doubling and solved by bisection, in float64.

Differences from the paper: which norm of v, see FedDuAdagrad. Where the left side is bounded below
m (Entropy, no v_j > 0), eta = 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.errors import ArgumentError
from ..core.fields import Checked, Decay
from ..core.plan import Plan, Query, Round
from ..core.text import Registry
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate

DOUBLINGS, HALVINGS = 60, 100


class Mirror(Checked, ABC):
    """A geometry: maps between points and dual points."""

    def check(self, x: Vector) -> None:
        """Refuse a point outside of the map's domain."""

    @abstractmethod
    def to_dual(self, x: Vector) -> Vector:
        """Return grad psi(x)."""

    @abstractmethod
    def to_primal(self, theta: Vector) -> Vector:
        """Return grad phi(theta)."""

    def solve(self, x: Vector, v: Vector, m: Vector) -> Vector:
        """Return the eta at which the step is as good as its bound."""
        theta, wide = self.to_dual(x.double()), v.double()
        inner, target = (wide * x).sum(), m.double()

        def above(eta: float) -> bool:
            value = (wide * self.to_primal(theta + eta * wide)).sum() - inner
            return not bool(value < target)  # overflow counts as above

        high = 1.0
        for _ in range(DOUBLINGS):
            if above(high):
                break
            high *= 2
        else:
            return torch.ones_like(m)
        low = 0.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if middle in (low, high):  # to the last bit
                break
            low, high = (low, middle) if above(middle) else (middle, high)
        return torch.full_like(m, (low + high) / 2)

    def move(self, x: Vector, v: Vector, eta: Vector) -> Vector:
        """Return grad phi(grad psi(x) + eta v)."""
        theta = self.to_dual(x.double()) + eta.double() * v.double()
        return self.to_primal(theta).to(x.dtype)


@dataclass(frozen=True)
class Quadratic(Mirror):
    """Euclidean geometry; FedDuA is then FedExP without its lower bound."""

    def to_dual(self, x: Vector) -> Vector:
        return x

    def to_primal(self, theta: Vector) -> Vector:
        return theta

    def solve(self, x: Vector, v: Vector, m: Vector) -> Vector:
        return m / inner(v, v)

    def move(self, x: Vector, v: Vector, eta: Vector) -> Vector:
        return torch.addcmul(x, v, eta)


@dataclass(frozen=True)
class Entropy(Mirror):
    """Geometry of positive parameters: steps multiply."""

    def check(self, x: Vector) -> None:
        if not bool((x > 0).all()):
            raise ArgumentError(
                "Entropy() needs parameters that are all > 0, got a model whose smallest is "
                f"{float(x.min()):g}; use Quadratic() or PNorm()."
            )

    def to_dual(self, x: Vector) -> Vector:
        return x.log()

    def to_primal(self, theta: Vector) -> Vector:
        return theta.exp()


@dataclass(frozen=True)
class PNorm(Mirror):
    """Geometry of the p-norm; nearer to 1 favours sparse moves.

    Args:
        p: The norm, in (1, 2]; 2 is Quadratic.
    """

    p: float = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float) or not 1 < self.p <= 2:
            raise ArgumentError(f"PNorm(p=...) must be a number in (1, 2], got {self.p!r}.")

    def to_dual(self, x: Vector) -> Vector:
        return _power(x, self.p)

    def to_primal(self, theta: Vector) -> Vector:
        """Return grad |theta|_r^2 / 2, 1/p + 1/r = 1."""
        return _power(theta, self.p / (self.p - 1))


MIRRORS: Registry[Mirror] = Registry(
    "mirror", {"quadratic": Quadratic, "entropy": Entropy, "pnorm": PNorm}
)
"""The maps that a text stands for: "quadratic", "entropy", "pnorm:1.5"."""


def _power(x: Vector, p: float) -> Vector:
    norm = torch.linalg.vector_norm(x, p)
    shape = torch.sign(x) * (x.abs() / norm) ** (p - 1) * norm
    return torch.where(norm > 0, shape, torch.zeros_like(x))


@dataclass(frozen=True)
class FedDuA(Server):
    """Server rule whose step size is found in a mirror map's geometry.

    Args:
        mirror: The geometry.
        beta1: Memory of the move, in [0, 1).
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    mirror: Mirror = field(default_factory=Quadratic)
    beta1: Decay = 0.0
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        self.mirror.check(x)
        return {"v": torch.zeros_like(x), "m": x.new_zeros(())} if self.beta1 else {}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        v, m = mean["delta"], mean["delta_sq"] / 2
        if self.beta1:
            v = torch.lerp(state["v"], v, 1 - self.beta1)
            m = (self.beta1 / 2) * state["m"] + (1 - self.beta1) * m
            state = {"v": v, "m": m}
        moves = (m > 0) & v.any()
        if not bool(moves):
            return x, state, {"server_step": torch.zeros_like(m)}
        eta = self.mirror.solve(x, v, m)
        return self.mirror.move(x, v, eta), state, {"server_step": eta}
