"""Methods by name: built-in ones, and those of installed packages."""

import inspect
from dataclasses import replace
from typing import Any

from ..core.errors import ArgumentError, convert_errors, unknown_name
from .method import Method
from .registry import CATALOGUE

COMMON = ("wire", "output", "weights", "schedule", "weight_decay", "clip")  # for every method


def names() -> list[str]:
    """Return every method name.

    >>> "fedavg" in names()
    True
    """
    return sorted(CATALOGUE)


def settings(name: str) -> dict[str, inspect.Parameter]:
    """Return a named method's own arguments, with types and defaults."""
    if name not in CATALOGUE:
        raise unknown_name("method", name, CATALOGUE)
    return dict(inspect.signature(CATALOGUE[name].make).parameters)


def get(name: str, **arguments: Any) -> Method:
    """Return a named method; arguments are its own, or those every method takes.

    >>> get("fedavg", lr=0.3, weights="samples").server
    Average(server_lr=1.0)
    """
    own = settings(name)
    for key in arguments:
        if key not in own and key not in COMMON:
            raise unknown_name(f"argument of {name}", key, [*own, *COMMON])
    if "wire" in arguments and "compressor" in own:
        raise ArgumentError(
            f"{name} packs its uploads by its own setting: give compressor=..., not wire=..., "
            f"got wire={arguments['wire']!r}."
        )
    entry = CATALOGUE[name]
    given = {k: v for k, v in arguments.items() if k in own}
    if entry.package is None:
        method = entry.make(**given)
    else:
        with convert_errors(f"The method {name!r} of {entry.package} failed", ArgumentError):
            method = entry.make(**given)
        if not isinstance(method, Method):
            raise ArgumentError(
                f"The method {name!r} of {entry.package} must return a Method, got {method!r}."
            )
    return replace(method, name=name, **{k: v for k, v in arguments.items() if k in COMMON})
