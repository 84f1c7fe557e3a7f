"""Running mean and spread of rows, without storing them.

Chan, Golub & LeVeque 1983: with n, mean and sum of squared deviations s of each part,

    d = mean_b - mean_a,   mean = mean_a + d n_b / n,   s = s_a + s_b + d^2 n_a n_b / n
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import Rows


@dataclass(frozen=True)
class Moments:
    """Count, mean (d,) and summed squared deviations (d,) of rows, float64."""

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, rows: Rows) -> "Moments":
        """Return the moments of rows (m, d)."""
        z = rows.double()
        mean = z.mean(0) if len(z) else z.new_zeros(z.shape[1:])
        return cls(len(z), mean, (z - mean).square().sum(0))

    def plus(self, other: "Moments") -> "Moments":
        """Return the moments of the rows of both."""
        count = self.count + other.count
        if not count:
            return self
        apart, part = other.mean - self.mean, other.count / count
        squares = self.squares + other.squares + apart.square() * (self.count * part)
        return Moments(count, self.mean + apart * part, squares)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of each coordinate (divisor n)."""
        return torch.sqrt(self.squares / max(self.count, 1))
