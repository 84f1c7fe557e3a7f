"""The base class of penalties: a regulariser h(x) with its value and its proximal map.

    prox(v, alpha) = argmin_u h(u) + |u - v|^2 / (2 alpha)

Parikh & Boyd, Foundations and Trends in Optimization 1(3), 2014. The map is single-valued while
alpha rho < 1, where rho is the weak convexity of h: the least number that makes
h + (rho / 2) |x|^2 convex.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

from torch import Tensor, finfo

from ..core.errors import cannot_use, check_nonnegative, check_positive
from ..core.fields import Checked
from ..core.layout import Layout

Number: TypeAlias = float | Tensor
"""A number, or in a compiled step a scalar tensor."""


class Penalty(Checked, ABC):
    """A regulariser with a proximal map; both see whole vectors, one per row of (..., d).

    A constraint set is a penalty too: 0 inside, inf outside, and its map is the projection, the
    same for every alpha. Inside means up to rounding: to sqrt(machine epsilon) of the set's size.

    Class attributes:
        fusible: Whether `prox` can be compiled with a local step: it consists of elementwise
            operations and sums over rows, reads no layout, and alpha may be a scalar tensor. Holds
            for the class that defines `prox`, not for subclasses that define their own.
    """

    fusible: ClassVar[bool] = False

    @property
    def is_fusible(self) -> bool:
        """Whether the class that defines `prox` is `fusible`."""
        owner = next(c for c in type(self).__mro__ if "prox" in vars(c))
        return bool(vars(owner).get("fusible", False))

    @property
    def rho(self) -> float:
        """Weak convexity of h, its weight included: 0 when convex."""
        return 0.0

    @abstractmethod
    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return h of each row: (..., d) -> (...,)."""

    @abstractmethod
    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the proximal point of each row; alpha = 0 gives v, or its projection on a set."""

    def check(self, alpha: Number, owner: str) -> None:
        """Refuse a step with which the proximal map of `owner` is not defined."""
        if isinstance(alpha, Tensor):  # in a compiled step; the plan was checked before round 0
            return
        check_nonnegative(owner, "alpha", alpha)
        if alpha * self.rho > 1 - 1e-12:  # rounding must not let alpha = 1/rho through
            why = f"its proximal map needs alpha < 1/rho = {1 / self.rho:g}"
            use = "take a smaller alpha or a penalty with a smaller rho"
            raise cannot_use(str(self), f"{owner}(alpha={alpha!r})", f"{why}; {use}")


def is_zero(alpha: Number) -> bool:
    """Return whether a step is known to be 0."""
    return not isinstance(alpha, Tensor) and alpha == 0


def length(x: Tensor) -> Tensor:
    """Return |x| of each row; sums in pairs, so that millions of float32 lose no digits."""
    return x.square().sum(-1).sqrt()


def slack(x: Tensor) -> float:
    """Return how far outside a set still counts as inside, relative to the set's size."""
    return float(finfo(x.dtype).eps ** 0.5)


def indicator(inside: Tensor, x: Tensor) -> Tensor:
    """Return 0 for rows inside and inf for the others, in x's dtype."""
    return x.new_zeros(inside.shape).masked_fill_(~inside, float("inf"))


def sparsity(x: Tensor) -> Tensor:
    """Return the share of exact zeros in each row: (..., d) -> (...,)."""
    return (x == 0).sum(-1).to(x.dtype) / x.shape[-1]


def stationarity(penalty: Penalty, x: Tensor, grad: Tensor, alpha: float, layout: Layout) -> Tensor:
    """Return |x - prox(x - alpha grad, alpha)| / alpha of each row: 0 where x is stationary."""
    check_positive("stationarity", "alpha", alpha)
    penalty.check(alpha, "stationarity")
    return length(x - penalty.prox(x - alpha * grad, alpha, layout)) / alpha
