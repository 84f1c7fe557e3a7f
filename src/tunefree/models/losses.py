"""What every engine gives: values and gradients of m clients' batch losses at once.

`batched.Vmapped` runs all rows in one call; `turns.Looped` runs one client after another in plain
PyTorch. They must agree.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..types import Inputs, Rows, map_inputs


@dataclass(frozen=True)
class Batch:
    """One batch per client; `mask` marks real samples, `key` seeds the dropout masks."""

    inputs: Inputs  # (m, B, ...)
    target: Tensor  # (m, B, ...)
    mask: Tensor  # (m, B)
    key: Tensor  # (m,)

    def row(self, i: int) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """Return client i's own batch, padding cut off."""
        keep = self.mask[i]
        inputs = map_inputs(lambda t: t[i][keep], self.inputs)
        return inputs, self.target[i][keep], keep[keep], self.key[i]


class Losses(Protocol):
    """The batch loss of each client at its own point."""

    name: str

    def value(self, y: Rows, batch: Batch) -> Rows:
        """Return the losses (m,) at the rows of y (m, d)."""
        ...

    def value_and_grad(self, y: Rows, batch: Batch) -> tuple[Rows, Rows]:
        """Return the losses (m,) and their gradients (m, d)."""
        ...
