"""A dataset before it is split: training rows, test rows, and natural owners if known."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import ArgumentError, DataError
from ..core.types import Inputs, Pair
from ._arrays import select_rows
from .federation import Federation
from .partition import ByOwner, Partitioner


@dataclass(frozen=True, eq=False)
class Dataset:
    """Named rows that can be split into a federation.

    Args:
        name: Its name in `load`.
        x: Inputs; every tensor's first axis counts samples.
        y: Targets, row by row.
        test: Inputs and targets of the test set.
        classes: Number of classes; None for regression.
        owner: Natural owner of each row as an int, if known.
        owners: The label of each of these ints.
        test_owner: Natural owner of each test row; -1 if it owns no training rows.
        licence: Terms of use, and the reference to cite.
        note: Remarks on how results compare with other versions of the data.
        words: For text, the vocabulary: the token of each id.
    """

    name: str
    x: Inputs
    y: Tensor
    test: Pair | None = None
    classes: int | None = None
    owner: Tensor | None = None
    owners: tuple[int | str, ...] = ()
    test_owner: Tensor | None = None
    licence: str = ""
    note: str = ""
    words: tuple[str, ...] = field(default=(), repr=False)

    @property
    def samples(self) -> int:
        """Number of training rows."""
        return len(self.y)

    def split(
        self, partitioner: Partitioner, clients: int | None = None, seed: int = 0
    ) -> Federation:
        """Assign the rows to clients.

        Args:
            partitioner: `Iid()`, `Dirichlet(alpha)`, `Shards(k)`, `ByOwner()`, or one of your own.
            clients: Number of clients; may be omitted only with `ByOwner`, which then takes all.
            seed: Seed of the split.
        """
        if not isinstance(partitioner, Partitioner):
            raise ArgumentError(
                "Dataset.split(partitioner=...) must have a method assign, as Iid() or "
                f"Dirichlet(0.1) do, got {partitioner!r}."
            )
        if isinstance(partitioner, ByOwner) and self.owner is None:
            raise DataError(
                f"ByOwner() cannot split {self.name!r}, which has no natural owners; use Iid, "
                "Dirichlet or Shards."
            )
        ids = partitioner.assign(self.y, clients, seed, self.owner)
        rows = (ids >= 0).nonzero().squeeze(1)
        x, y = self.x, self.y
        if len(rows) < len(ids):
            (x, y), ids = select_rows((x, y), rows), ids[rows]
        fed = Federation(x, y, ids, test=self.test, classes=self.classes, name=self.name)
        if not isinstance(partitioner, ByOwner) or self.owner is None:
            return fed
        owners = partitioner.owners(self.owner, clients, seed)
        names = tuple(self.owners[int(i)] for i in owners) if self.owners else fed.names
        return fed.with_names(names, self._test_ids(owners))

    def _test_ids(self, owners: Tensor) -> Tensor | None:
        """Return the client of each test row, -1 for none; None if no test row has a client."""
        if self.test_owner is None:
            return None
        place = torch.searchsorted(owners, self.test_owner).clamp(max=len(owners) - 1)
        ids = torch.where(owners[place] == self.test_owner, place, -1)
        return ids if bool((ids >= 0).any()) else None
