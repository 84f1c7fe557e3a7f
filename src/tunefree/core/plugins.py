"""Catalogues by name: built-in entries, and entries of other installed packages (entry points)."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ArgumentError, TunefreeError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Catalogue(Mapping[str, T]):
    """Entries by name, which other packages extend through an entry-point group.

    Entry points are read when a name is not built in or when the names are listed, and loaded when
    their entry is used. A built-in name always means the built-in entry.

    Args:
        kind: What an entry is, for error messages: "method".
        group: The entry-point group: "tunefree.methods".
        built_in: The entries of this package.
        adapt: Returns the entry for (name, loaded object, package); raises `ArgumentError` for an
            object that cannot be one.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T],
        adapt: Callable[[str, Any, str], T],
    ) -> None:
        self._kind, self._group, self._adapt = kind, group, adapt
        self._entries = dict(built_in)

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name that is taken is refused."""
        if name in self._entries:
            raise ArgumentError(f"The {self._kind} name {name!r} is taken; choose another.")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            found = self._points()[name]  # KeyError, as of any mapping
            entry = self._load(name, found)
            self._entries.setdefault(name, entry)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._points()

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from (name for name in self._points() if name not in self._entries)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def loaded(self) -> Mapping[str, T]:
        """Entries that are built in, added, or already loaded from an entry point."""
        return self._entries

    def _points(self) -> dict[str, tuple["EntryPoint", ...]]:
        return _entry_points(self._group, tuple(sys.path))

    def _load(self, name: str, found: tuple["EntryPoint", ...]) -> T:
        packages = sorted({_package(point) for point in found})
        if len(found) > 1:
            raise ArgumentError(
                f"The {self._kind} {name!r} is offered more than once, by {', '.join(packages)}; "
                "uninstall all but one."
            )
        try:
            return self._adapt(name, found[0].load(), packages[0])
        except Exception as error:  # another package's module may raise anything
            why = "" if isinstance(error, TunefreeError) else f"{type(error).__name__}: "
            raise ArgumentError(
                f"Cannot load the {self._kind} {name!r} of the package {packages[0]} "
                f"({why}{first_line(error).rstrip('.')})."
            ) from error


@lru_cache(maxsize=8)
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, tuple["EntryPoint", ...]]:
    """Return the entry points of a group by name; `path` is the sys.path they were read from."""
    from importlib.metadata import entry_points

    points = entry_points(group=group)
    return {name: tuple(points.select(name=name)) for name in sorted(points.names)}


def _package(point: "EntryPoint") -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]
