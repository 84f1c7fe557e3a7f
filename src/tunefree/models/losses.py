"""What every engine gives: values and gradients of m clients' batch losses at once.

`batched.Vmapped` runs all rows in one call; `turns.Looped` runs one client after another in plain
PyTorch. They must agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from ..core.types import Inputs, Rows, map_inputs


@dataclass(frozen=True)
class Batch:
    """One batch per client; `mask` marks real samples, `key` seeds the dropout masks."""

    inputs: Inputs  # (m, B, ...)
    target: Tensor  # (m, B, ...)
    mask: Tensor  # (m, B)
    key: Tensor  # (m,)

    @property
    def parts(self) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """All of it, in this order."""
        return self.inputs, self.target, self.mask, self.key

    def row(self, i: int) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """Return client i's own batch, padding cut off."""
        keep = self.mask[i]
        inputs = map_inputs(lambda t: t[i][keep], self.inputs)
        return inputs, self.target[i][keep], keep[keep], self.key[i]


@dataclass(frozen=True)
class DeferredBatch:
    """A batch that is still to be gathered, by an engine that does it on its own device.

    Args:
        code: What decides the batch, (m, ...) whole numbers.
        gather: Returns the batch of a code; a pure function, always the same object.
    """

    code: Tensor
    gather: Callable[[Tensor], Batch]

    @cached_property
    def batch(self) -> Batch:
        """The batch itself."""
        return self.gather(self.code)


def gathered(batch: Batch | DeferredBatch) -> Batch:
    """Return the batch, gathered if it is not yet."""
    return batch.batch if isinstance(batch, DeferredBatch) else batch


class FusedDescent(Protocol):
    """Clients that walk along their gradients, and do not say where they are until the end."""

    def begin(self, y: Rows) -> None:
        """Let the clients stand at y (m, d)."""
        ...

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Move by -lr grad; lr (m,) is >= 0, and never changed in place.

        Clients with lr 0 stay where they are, whatever their gradients.
        """
        ...

    def end(self) -> tuple[Rows, Rows]:
        """Return where the clients stand (m, d), and each one's losses on the way added up (m,)."""
        ...


class Losses(Protocol):
    """The batch loss of each client at its own point."""

    name: str
    gathers: bool  # whether it would rather have orders than batches

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,) at the rows of y (m, d)."""
        ...

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, brief: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and their gradients (m, d).

        With `brief`, the gradients may be overwritten by the next call.
        """
        ...

    def descent(self, m: int) -> "FusedDescent | None":
        """Return whole steps of gradient descent of m clients, where they are faster than parts."""
        ...

    def release(self) -> None:
        """Give back memory that is held between calls."""
        ...
