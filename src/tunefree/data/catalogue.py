"""The datasets by name: what each one is, and the function that loads it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..core.errors import unknown_name
from . import a9a, digits, femnist, images, shakespeare, sources, sst2, synthetic, toy
from .dataset import Dataset
from .sources import DatasetSource, Folder


@dataclass(frozen=True)
class DatasetEntry:
    """One line of the table of datasets."""

    load: Callable[..., Dataset]
    rows: str  # training + test
    classes: str
    owners: str
    size: str
    licence: str
    find: Callable[[Folder], Path | None] | None = None  # None: in the package


def _at(source: DatasetSource) -> Callable[[Folder], Path | None]:
    return partial(sources.locate, source)


_TABLE: dict[str, DatasetEntry] = {
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


def names() -> tuple[str, ...]:
    """Return the name of every dataset.

    >>> "digits" in names()
    True
    """
    return tuple(_TABLE)


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
    if name not in _TABLE:
        raise unknown_name("dataset", name, _TABLE)
    entry = _TABLE[name]
    known = [option for option in inspect.signature(entry.load).parameters if option != "folder"]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of dataset {name!r}", option, known)
    return entry.load(**options) if entry.find is None else entry.load(folder, **options)


def describe(folder: Folder = None) -> list[dict[str, str]]:
    """Return one row per dataset: name, rows, classes, owners, size, licence, and where it is."""
    out = []
    for name, entry in _TABLE.items():
        found = "in the package" if entry.find is None else str(entry.find(folder) or "missing")
        out.append(
            {
                "name": name,
                "rows": entry.rows,
                "classes": entry.classes,
                "owners": entry.owners,
                "size": entry.size,
                "licence": entry.licence,
                "found": found,
            }
        )
    return out
