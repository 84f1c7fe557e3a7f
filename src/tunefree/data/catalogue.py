"""The datasets by name, as files/datasets.toml lists them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentError, DataError, check_known, convert_errors
from ..core.plugins import Catalogue
from .dataset import Dataset
from .sources import SOURCES, DataFolder, DatasetSource, locate


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset by name; `find` returns where its files are, None if missing."""

    load: Callable[..., Dataset]
    source: DatasetSource
    find: Callable[[DataFolder], Path | None] | None = None  # None if it needs no files
    package: str | None = None  # the installed package that adds it, if it is not built in


def _get_function(text: str) -> Any:
    """Return the function of MODULE:FUNCTION in this package."""
    module, _, name = text.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def _make_entry(source: DatasetSource) -> DatasetEntry:
    find = _get_function(source.find) if source.find else None
    find = partial(locate, source) if source.files else find
    return DatasetEntry(_get_function(source.load), source, find)


def _adapt(name: str, found: Any, package: str) -> DatasetEntry:
    """Return the entry of an entry point in the group tunefree.datasets: a loader."""
    if not callable(found):
        raise ArgumentError(f"it must be a function that returns a Dataset, got {found!r}")
    return DatasetEntry(found, DatasetSource(""), package=package)


_BUILT_IN = {name: _make_entry(SOURCES[name]) for name in sorted(SOURCES)}
_CATALOGUE = Catalogue("dataset", "tunefree.datasets", _BUILT_IN, _adapt)


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
            row = {key: getattr(entry.source, key) for key in row}
            found = f"in the package {entry.package}" if entry.package else "in the package"
            if entry.find is not None:
                found = str(entry.find(folder) or "missing")
        out.append({"name": name, **row, "found": found})
    return out
