"""What the clients of a cohort return, summed chunk by chunk."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ..clients.rule import LocalResult
from ..core.types import Channels, State
from ..server.aggregate import Aggregation
from ..wire import Ledger
from .context import WORK_COUNTS, count_work
from .finite import checksums, find_nonfinite

MemoryRows: TypeAlias = list[tuple[Tensor, State]]
"""New memory of clients: the ids of a chunk, and one row for each of them."""


@dataclass(frozen=True)
class ChunkResult:
    """What a chunk of clients returned."""

    ids: Tensor
    sent: Channels  # uploads before the wire; empty if no mean is echoed to the clients
    arrived: Channels  # uploads behind the wire
    own: State  # the clients' new memory
    works: list[LocalResult]  # one per phase
    ledger: Ledger


class CohortSums:
    """Means, work and checksums of a cohort; they stay on the device until they are read.

    `weight` is the weight of the clients that count in round t.
    """

    def __init__(self, aggregate: Aggregation, weight: float, t: int, device: torch.device) -> None:
        self._mean, self._measured = (aggregate(weight, t, w) for w in ("train", "measured"))
        self._work = torch.zeros(len(WORK_COUNTS), dtype=torch.float64, device=device)
        self._checksums: list[Tensor] = []

    def add(self, p: Tensor, chunk: ChunkResult) -> None:
        """Add the clients of a chunk with weights p (m,)."""
        works = chunk.works
        self._checksums.append(checksums(works, chunk.arrived, chunk.own))
        self._mean.add(p, chunk.arrived)
        loss, lr = (sum(getattr(w, n) for w in works) / len(works) for n in ("loss", "lr"))
        self._measured.add(p, {"loss": loss, "lr": lr})
        for work in works:
            self._work += count_work(work)

    def find_nonfinite(self, ids: Tensor) -> Tensor:
        """Return the clients with non-finite numbers; this waits for the device."""
        return find_nonfinite(ids, torch.cat(self._checksums).tolist())

    def means(self) -> Channels:
        """Return the means of the uploads."""
        return self._mean.result()

    def numbers(self, more: list[Tensor]) -> Tensor:
        """Return `WORK_COUNTS`, mean loss, mean lr, checksums and `more` as one tensor."""
        found, work = self._measured.result(), self._work
        means = [found[n].double() for n in ("loss", "lr") if n in found]
        return torch.cat([work, torch.stack(means or [work[0] * 0] * 2), *self._checksums, *more])
