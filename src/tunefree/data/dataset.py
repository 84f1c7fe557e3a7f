"""A dataset before it is split: training rows, test rows, and natural owners if known."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ArgumentError, DataError, check_known
from ..core.types import Array, Inputs, Samples
from .arrays import (
    Label,
    as_labels,
    as_weights,
    describe_set,
    find_labels,
    number_labels,
    select_rows,
)
from .federation import Federation
from .partition import ByOwner, Partitioner
from .tables import Features, read_file

MOST_CLASSES = 20  # different integers in a file that are taken for classes


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
        labels: The label of each class, if classes are not numbers.
        features: The columns of the table that x was, if it was one.
        sample_weight: Weight of each row in training, if they have weights.
    """

    name: str
    x: Inputs
    y: Tensor
    test: Samples | None = None
    classes: int | None = None
    owner: Tensor | None = None
    owners: tuple[int | str, ...] = ()
    test_owner: Tensor | None = None
    licence: str = ""
    note: str = ""
    words: tuple[str, ...] = ()
    labels: tuple[Label, ...] | None = None
    features: Features | None = None
    sample_weight: Tensor | None = None

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {describe_set(len(self.y), self.classes, self.test)})"

    @staticmethod
    def from_file(
        path: str | Path,
        target: str,
        owner: str | None = None,
        *,
        sample_weight: str | None = None,
        drop: Sequence[str] = (),
        loss: str = "auto",
    ) -> "Dataset":
        """Return the rows of a CSV or Parquet file.

        Args:
            path: The file: CSV with a header, or Parquet (needs polars) if it ends in .parquet.
            target: The column of targets: text, bools and few different integers are classes, other
                numbers are numbers.
            owner: The column with the owner of each row.
            sample_weight: The column with the weight of each row.
            drop: Columns that are no features; one text may name several, with commas.
            loss: "mse" takes any numbers as numbers, "cross_entropy" and "bce" any integers as
                classes.
        """
        table = read_file(
            path, {"--target": target, "--owner": owner, "--sample-weight": sample_weight}
        )
        drop = [
            name.strip()
            for names in drop
            for name in ([names] if names in table.columns else names.split(","))
        ]
        for name in drop:
            check_known("column (--drop)", name, table.columns)
        others = [name for name in (target, owner, sample_weight) if name is not None]
        features = Features.find(table, [*others, *drop])
        y, labels = _read_targets(table.column(target, "the file"), target, loss)
        owners, ids = None, None
        if owner is not None:
            values = as_labels(table.column(owner, "the file"), f"column {owner!r}", len(table))
            owners, numbers = np.unique(values, return_inverse=True)
            ids = torch.from_numpy(numbers)
        weight = None
        if sample_weight is not None:
            weight = as_weights(table.column(sample_weight, "the file"), len(table))
        return Dataset(
            Path(path).stem,
            torch.from_numpy(features.encode(table)),
            y,
            classes=None if labels is None else len(labels),
            owner=ids,
            owners=() if owners is None else tuple(owners.tolist()),
            labels=labels,
            features=features,
            sample_weight=weight,
        )

    @property
    def samples(self) -> int:
        """Number of training rows."""
        return len(self.y)

    def split(
        self, partitioner: Partitioner, clients: int | None = None, seed: int = 0
    ) -> Federation:
        """Assign the rows to clients.

        Args:
            partitioner: `Iid()`, `Dirichlet(alpha)`, `RelaySum(alpha)`, `Shards(k)`, `ByOwner()`,
                or one of your own.
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
        x, y, weight = self.x, self.y, self.sample_weight
        if len(rows) < len(ids):
            (x, y), ids = select_rows((x, y), rows), ids[rows]
            weight = None if weight is None else weight[rows]
        test, classes, name = self.test, self.classes, self.name
        fed = Federation(x, y, ids, test=test, sample_weight=weight, classes=classes, name=name)
        fed.labels, fed.features = self.labels, self.features
        if not isinstance(partitioner, ByOwner) or self.owner is None:
            return fed
        owners = partitioner.owners(self.owner, clients, seed)
        names = tuple(self.owners[int(i)] for i in owners) if self.owners else fed.names
        return fed.replace(names=names, test_owner=self._test_ids(owners))

    def _test_ids(self, owners: Tensor) -> Tensor | None:
        """Return the client of each test row, -1 for none; None if no test row has a client."""
        if self.test_owner is None:
            return None
        place = torch.searchsorted(owners, self.test_owner).clamp(max=len(owners) - 1)
        ids = torch.where(owners[place] == self.test_owner, place, -1)
        return ids if bool((ids >= 0).any()) else None


def _read_targets(values: Array, name: str, loss: str) -> tuple[Tensor, tuple[Label, ...] | None]:
    """Return the targets of a column, and their labels if they are classes."""
    is_number = values.dtype.kind in "fiu"
    if loss == "mse":
        if not is_number and values.dtype.kind != "b":
            raise DataError(f"The loss mse needs numbers, but the target {name!r} is text.")
        return torch.from_numpy(values.astype(np.float64)), None
    if is_number:
        is_whole = bool((values == np.floor(values)).all())
        different = len(np.unique(values)) if is_whole else 0
        if loss == "auto" and values.dtype.kind in "iu" and different > MOST_CLASSES:
            raise DataError(
                f"The target {name!r} has {different} different integers; give loss mse if they "
                "are numbers (regression), or cross_entropy if they are classes."
            )
        if not is_whole or (loss == "auto" and different > MOST_CLASSES):
            return torch.from_numpy(values.astype(np.float64)), None
        values = values.astype(np.int64)
    labels = find_labels([values]) or tuple(np.unique(values).tolist())
    return number_labels(values, labels), labels
