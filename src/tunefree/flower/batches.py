"""The feed of one client alone."""

from dataclasses import dataclass
from functools import cached_property

from ..simulation.feed import BatchSource


@dataclass(frozen=True)
class OneClientBatches(BatchSource):
    """The feed of one client that cuts batches as the whole population's does."""

    wide: int = 1

    @cached_property
    def width(self) -> int:
        """Rows of a batch, padding included."""
        return self.wide
