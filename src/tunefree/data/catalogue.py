"""The datasets by name: facts about each one, and the function that loads it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentError, DataError, check_known, convert_errors
from ..core.plugins import Catalogue
from . import a9a, femnist, images, shakespeare, sst2, synthetic
from .dataset import Dataset
from .sources import DataFolder, DatasetSource, locate


@dataclass(frozen=True)
class DatasetEntry:
    """One row of the table of datasets; `find` returns where its files are, None if missing."""

    load: Callable[..., Dataset]
    licence: str
    rows: str  # training + test
    classes: str
    size: str
    owners: str = ""
    find: Callable[[DataFolder], Path | None] | None = None  # None if it needs no files
    package: str | None = None  # the installed package that adds it, if it is not built in


_FILES: tuple[tuple[Callable[..., Dataset], DatasetSource, str, str, str, str], ...] = (
    (a9a.a9a, a9a.A9A, "32,561 + 16,281", "2", "3.5 MB", ""),
    (images.cifar10, images.CIFAR10, "50,000 + 10,000", "10", "170 MB", ""),
    (images.cifar10_subset, images.CIFAR10_SUBSET, "5,000 + 1,000", "10", "10 MB", ""),
    (images.cifar100, images.CIFAR100, "50,000 + 10,000", "100", "169 MB", ""),
    (images.fashion_mnist, images.FASHION_MNIST, "60,000 + 10,000", "10", "31 MB", ""),
    (images.mnist, images.MNIST, "60,000 + 10,000", "10", "12 MB", ""),
    (images.mnist_writers, images.MNIST_WRITERS, "23,409 + 2,000", "10", "3.5 MB", "200 writers"),
    (
        shakespeare.shakespeare,
        shakespeare.SHAKESPEARE,
        "by stride",
        "80",
        "5.5 MB",
        "speaking roles",
    ),
    (sst2.sst2, sst2.SST2, "67,349 + 872", "2", "7 MB", ""),
)
_BUILT_IN = {
    source.name: DatasetEntry(
        load, source.licence, rows, classes, size, owners, partial(locate, source)
    )
    for load, source, rows, classes, size, owners in _FILES
} | {
    "digits": DatasetEntry(images.digits, images.DIGITS_LICENCE, "1,438 + 359", "10", "embedded"),
    "femnist": DatasetEntry(
        femnist.femnist, femnist.LICENCE, "as made", "62", "as made", "writers", femnist.locate
    ),
    "synthetic": DatasetEntry(
        synthetic.synthetic, synthetic.LICENCE, "600 + 0", "regression", "made", "20 clients"
    ),
    "toy": DatasetEntry(
        synthetic.toy, synthetic.LICENCE, "2 + 0", "regression", "made", "2 clients"
    ),
}


def _adapt(name: str, found: Any, package: str) -> DatasetEntry:
    """Return the entry of an entry point in the group tunefree.datasets: a loader."""
    if not callable(found):
        raise ArgumentError(f"it must be a function that returns a Dataset, got {found!r}")
    return DatasetEntry(found, "", "", "", "", package=package)


_CATALOGUE = Catalogue("dataset", "tunefree.datasets", dict(sorted(_BUILT_IN.items())), _adapt)


def names() -> tuple[str, ...]:
    """Return the name of every dataset.

    >>> "digits" in names()
    True
    """
    return tuple(_CATALOGUE)


def load(name: str, folder: DataFolder = None, **options: object) -> Dataset:
    """Return a dataset by name.

    Args:
        name: One of `names()`.
        folder: Where to look for its files first; then $TUNEFREE_DATA, the user's cache, and its
            public home.
        options: The dataset's own, such as `stride` for "shakespeare".

    >>> load("digits").x.shape
    torch.Size([1438, 1, 8, 8])
    """
    check_known("dataset", name, _CATALOGUE)
    entry = _CATALOGUE[name]
    taken = inspect.signature(entry.load).parameters
    for option in options:
        check_known(f"option of dataset {name!r}", option, taken.keys() - {"folder"})
    given = {"folder": folder, **options} if "folder" in taken else options
    if entry.package is None:
        return entry.load(**given)
    with convert_errors(f"The dataset {name!r} of {entry.package} failed"):
        dataset = entry.load(**given)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"The dataset {name!r} of {entry.package} must return a Dataset, got {dataset!r}."
        )
    return dataset


def describe(folder: DataFolder = None) -> list[dict[str, str]]:
    """Return one row per dataset: name, rows, classes, owners, size, licence, and where it is."""
    out = []
    for name in _CATALOGUE:
        row = dict.fromkeys(("rows", "classes", "owners", "size", "licence"), "")
        try:
            entry = _CATALOGUE[name]
        except ArgumentError as error:  # another package's dataset: the others are still listed
            found = str(error)
        else:
            row = {key: getattr(entry, key) for key in row}
            found = f"in the package {entry.package}" if entry.package else "in the package"
            if entry.find is not None:
                found = str(entry.find(folder) or "missing")
        out.append({"name": name, **row, "found": found})
    return out
