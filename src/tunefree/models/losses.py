"""The interface of engines: losses and gradients of m clients' batches at once.

`batched.VmapEngine` evaluates all clients in one batched call; `loop.LoopEngine` evaluates one
client after another in plain PyTorch. Their results agree up to rounding.
"""

from collections.abc import Callable, Mapping
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
        """The fields as a tuple: (inputs, target, mask, key)."""
        return self.inputs, self.target, self.mask, self.key

    def row(self, i: int) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """Return client i's batch without its padding."""
        keep = self.mask[i]
        inputs = map_inputs(lambda t: t[i][keep], self.inputs)
        return inputs, self.target[i][keep], keep[keep], self.key[i]


@dataclass(frozen=True)
class DeferredBatch:
    """A batch that the engine gathers itself, on its own device.

    Args:
        code: What determines the batch, integers (m, ...).
        gather: Returns the batch of a code; a pure function, always the same object.
    """

    code: Tensor
    gather: Callable[[Tensor], Batch]

    @cached_property
    def batch(self) -> Batch:
        """The gathered batch."""
        return self.gather(self.code)


def load_batch(batch: Batch | DeferredBatch) -> Batch:
    """Return the batch, after gathering it if it is deferred."""
    return batch.batch if isinstance(batch, DeferredBatch) else batch


class FusedDescent(Protocol):
    """Gradient descent of m clients whose iterates are available only at the end."""

    def begin(self, y: Rows) -> None:
        """Set the clients' iterates to y (m, d) and their loss sums to zero."""

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Step to y - lr grad; lr (m,) is >= 0, and never changed in place.

        Clients with lr 0 keep their iterate even if their gradient is not finite.
        """

    def end(self) -> tuple[Rows, Rows]:
        """Return the iterates (m, d), and the sum of each client's losses since `begin` (m,)."""


Evaluate = Callable[[Rows], tuple[Rows, Rows]]
"""Returns the batch losses (m,) and their gradients (m, d) at a point (m, d)."""

LocalUpdate = Callable[[Evaluate, Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]]
"""Part of a local step as a pure function: (losses and gradients, state, constants) -> the changed
entries of the state.

Updates that are equal (==) do the same. In a compiled step, rows are `compiled.rows.TensorRows`.
"""


class FusedSteps(Protocol):
    """Local steps of m clients whose state is available only at the end."""

    def begin(self, state: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> None:
        """Set the state and the constants of a local phase."""

    def step(self, batch: Batch | DeferredBatch, part: int = 0) -> None:
        """Run one of the updates."""

    def numbers(self, name: str) -> Tensor:
        """Return an entry of the state that is not rows; it may be changed in place."""

    def end(self) -> dict[str, Tensor]:
        """Return the state, as rows."""


class Losses(Protocol):
    """The batch loss of each client at its own iterate.

    Attributes:
        name: Name of the engine, as the run's settings record it.
        wants_deferred: Whether the engine prefers a `DeferredBatch` to a `Batch`.
    """

    name: str
    wants_deferred: bool

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,) at the rows of y (m, d)."""

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and their gradients (m, d).

        With `reuse_buffer`, the next call may overwrite the gradients.
        """

    def descent(self, m: int) -> "FusedDescent | None":
        """Return fused gradient descent for m clients, or None where it is not faster."""

    def fuse(
        self,
        updates: tuple[LocalUpdate, ...],
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        batch: Batch | DeferredBatch,
    ) -> "FusedSteps | None":
        """Return local steps that are compiled as a whole, or None where they are not.

        Args:
            updates: What a step does, in one or several parts.
            state: Tensors that steps change: rows (m, d), with the iterates as "y", or smaller.
            constants: Tensors that steps read: rows (m, d), vectors (d,) or scalars.
            batch: A batch as steps will have it.
        """

    def release(self) -> None:
        """Free the memory that is held between calls."""
