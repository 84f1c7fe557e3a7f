"""The datasets by name, built-in or of an installed package: what each is, and its loader."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentError, DataError, convert_errors, unknown_name
from ..core.plugins import Catalogue
from . import a9a, digits, femnist, images, shakespeare, sources, sst2, synthetic, toy
from .dataset import Dataset
from .sources import DatasetSource, Folder


@dataclass(frozen=True)
class DatasetEntry:
    """One line of the table of datasets."""

    load: Callable[..., Dataset]  # takes `folder` and the dataset's own options
    rows: str  # training + test
    classes: str
    owners: str
    size: str
    licence: str
    find: Callable[[Folder], Path | None] | None = None  # None: in the package
    package: str | None = None  # the installed package that adds it, if it is not built in


def _at(source: DatasetSource) -> Callable[[Folder], Path | None]:
    return partial(sources.locate, source)


_BUILT_IN: dict[str, DatasetEntry] = {
    "a9a": DatasetEntry(a9a.a9a, "32,561 + 16,281", "2", "", "3.5 MB", a9a.LICENCE, _at(a9a.A9A)),
    "cifar10": DatasetEntry(
        images.cifar10,
        "50,000 + 10,000",
        "10",
        "",
        "170 MB",
        images.CIFAR_LICENCE,
        _at(images.CIFAR10),
    ),
    "cifar10-subset": DatasetEntry(
        images.cifar10_subset,
        "5,000 + 1,000",
        "10",
        "",
        "10 MB",
        images.CIFAR_LICENCE,
        _at(images.CIFAR10_SUBSET),
    ),
    "cifar100": DatasetEntry(
        images.cifar100,
        "50,000 + 10,000",
        "100",
        "",
        "169 MB",
        images.CIFAR_LICENCE,
        _at(images.CIFAR100),
    ),
    "digits": DatasetEntry(digits.digits, "1,438 + 359", "10", "", "embedded", digits.LICENCE),
    "fashion-mnist": DatasetEntry(
        images.fashion_mnist,
        "60,000 + 10,000",
        "10",
        "",
        "31 MB",
        images.FASHION_MNIST_LICENCE,
        _at(images.FASHION_MNIST),
    ),
    "femnist": DatasetEntry(
        femnist.femnist, "as made", "62", "writers", "as made", femnist.LICENCE, femnist.locate
    ),
    "mnist": DatasetEntry(
        images.mnist,
        "60,000 + 10,000",
        "10",
        "",
        "12 MB",
        images.MNIST_LICENCE,
        _at(images.MNIST),
    ),
    "mnist-writers": DatasetEntry(
        images.mnist_writers,
        "23,409 + 2,000",
        "10",
        "200 writers",
        "3.5 MB",
        images.WRITERS_LICENCE,
        _at(images.MNIST_WRITERS),
    ),
    "shakespeare": DatasetEntry(
        shakespeare.shakespeare,
        "by stride",
        "80",
        "speaking roles",
        "5.5 MB",
        shakespeare.LICENCE,
        _at(shakespeare.SHAKESPEARE),
    ),
    "sst2": DatasetEntry(sst2.sst2, "67,349 + 872", "2", "", "7 MB", sst2.LICENCE, _at(sst2.SST2)),
    "synthetic": DatasetEntry(
        synthetic.synthetic, "600 + 0", "regression", "20 clients", "made", "Made here; no terms."
    ),
    "toy": DatasetEntry(
        toy.toy, "2 + 0", "regression", "2 clients", "made", "Made here; no terms."
    ),
}


def _adapt(name: str, found: Any, package: str) -> DatasetEntry:
    """Return the entry of an entry point in the group tunefree.datasets: a loader."""
    if not callable(found):
        raise ArgumentError(f"it must be a function that returns a Dataset, got {found!r}")
    return DatasetEntry(found, "", "", "", "", "", package=package)


_CATALOGUE = Catalogue("dataset", "tunefree.datasets", _BUILT_IN, _adapt)


def names() -> tuple[str, ...]:
    """Return the name of every dataset.

    >>> "digits" in names()
    True
    """
    return tuple(_CATALOGUE)


def load(name: str, folder: Folder = None, **options: object) -> Dataset:
    """Return a dataset by name.

    Args:
        name: One of `names()`.
        folder: Where to look for its files first; then $TUNEFREE_DATA, the user's cache, and its
            public home.
        options: The dataset's own, such as `stride` for "shakespeare".

    >>> load("digits").x.shape
    torch.Size([1438, 1, 8, 8])
    """
    if name not in _CATALOGUE:
        raise unknown_name("dataset", name, _CATALOGUE)
    entry = _CATALOGUE[name]
    taken = inspect.signature(entry.load).parameters
    known = [option for option in taken if option != "folder"]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of dataset {name!r}", option, known)
    if entry.package is None:
        return entry.load(**options) if entry.find is None else entry.load(folder, **options)
    given = {"folder": folder, **options} if "folder" in taken else options
    with convert_errors(f"The dataset {name!r} of {entry.package} failed"):
        dataset = entry.load(**given)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"The dataset {name!r} of {entry.package} must return a Dataset, got {dataset!r}."
        )
    return dataset


def describe(folder: Folder = None) -> list[dict[str, str]]:
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
