"""Catalogues by name: built-in entries, and entries of other installed packages (entry points).

The command line also takes objects of the user's own files, as PATH.py:NAME. Their code runs when
`load_user_object` is called for a text that the user typed; a text that was read from a file
(recorded settings, messages) never runs any.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ArgumentError, TunefreeError, first_line, unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Catalogue(Mapping[str, T]):
    """Entries by name, which other packages extend through an entry-point group.

    Entry points are read when a name is not built in or when the names are listed, and loaded when
    their entry is used. A built-in name always means the built-in entry. `adapt` returns the entry
    for (name, loaded object, package), or raises `ArgumentError` for an object that cannot be one.
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
        names = (p.dist.name if p.dist is not None else p.value.partition(":")[0] for p in found)
        packages = sorted(set(names))
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


_OBJECTS: dict[str, Any] = {}  # objects of the user's files, by the text that was typed
_MODULES: dict[Path, ModuleType] = {}


def is_user_object(text: object) -> bool:
    """Return whether a text names an object of a file: PATH.py:NAME.

    >>> is_user_object("net.py:Net"), is_user_object("fedavg")
    (True, False)
    """
    return isinstance(text, str) and ".py:" in text


def load_user_object(text: str) -> Any:
    """Run the file of PATH.py:NAME once, and return the object, for `get_user_object` too."""
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise ArgumentError(f"{text!r} names an object of a file, but {file!r} is no file.")
    if path not in _MODULES:
        spec = importlib.util.spec_from_file_location(f"tunefree_own_{len(_MODULES)}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str(path.parent))  # for files beside it
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise ArgumentError(f"{file} cannot be run ({why.rstrip('.')}).") from error
        finally:
            sys.path.remove(str(path.parent))
        _MODULES[path] = module
    module = _MODULES[path]
    if not hasattr(module, name):
        known = [n for n in vars(module) if not n.startswith("_")]
        raise unknown_name(f"name in {file}", name, known)
    _OBJECTS[text] = getattr(module, name)
    return _OBJECTS[text]


def get_user_object(text: str) -> Any:
    """Return the object of a text that `load_user_object` was called for."""
    if text not in _OBJECTS:
        raise ArgumentError(
            f"{text!r} names code in a file, which a command line may do, but not a folder; to "
            "continue, give --config FOLDER/config.toml --out FOLDER instead of --resume."
        )
    return _OBJECTS[text]
