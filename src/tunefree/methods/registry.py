"""Methods by name: built-in ones, those of installed packages, and how to register another.

`register_method` adds a factory with its paper and its grid; `get` builds a method.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from ..core.errors import ArgumentError, check_known, convert_errors
from ..core.plugins import Catalogue
from .method import Method

F = TypeVar("F", bound=Callable[..., Method])
P = ParamSpec("P")

COMMON = ("wire", "output", "weights", "schedule", "weight_decay", "clip")  # for every method
FAMILIES = {
    "free": "Nothing to choose",
    "self-setting": "The server's step sets itself",
    "server": "Averaging and adaptive servers",
    "controls": "Control variates and momentum on clients",
    "compressed": "Compressed",
    "penalty": "With a regulariser",
    "subproblems": "Clients solve problems of their own",
}
"""Families of methods, as the documentation groups them."""


def decades(low: float, high: float, per_decade: int = 1) -> tuple[float, ...]:
    """Return 10^low .. 10^high with `per_decade` values in each decade, to three digits.

    >>> decades(-2, 0, 2)
    (0.01, 0.0316, 0.1, 0.316, 1.0)
    """
    count = round((high - low) * per_decade)
    return tuple(float(f"{10 ** (low + i / per_decade):.3g}") for i in range(count + 1))


# Grids of the FedDuA paper for images, which tune most baselines of the field. Every other grid in
# this package spans decades around the default. That paper also tunes the server step of FedAvg and
# SCAFFOLD over 1e-1 .. 1e1, which has a default here: `--grid server_lr=0.1,1,10` searches it.
LR = decades(-2, 0, 2)
ADAM_SERVER_LR = decades(-4, -2, 2)
PROX_MU = decades(-3, 0)


@dataclass(frozen=True)
class MethodEntry:
    """A named method.

    Args:
        make: The factory; the first line of its docstring says what the method is.
        paper: Where the method comes from.
        grid: Values to search, for each setting that has no default for every problem.
        arxiv: Number of the paper on arXiv.
        family: A key of `FAMILIES`.
        package: The installed package that adds it, if it is not built in.
    """

    make: Callable[..., Method]
    paper: str
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    arxiv: str | None = None
    family: str = "server"
    package: str | None = None

    @property
    def choose(self) -> tuple[str, ...]:
        """Settings that no default can set for every problem."""
        return tuple(self.grid)

    @property
    def summary(self) -> str:
        """What the method is, in one line."""
        return (inspect.getdoc(self.make) or "").strip().partition("\n")[0]


def _adapt(name: str, found: Any, package: str) -> MethodEntry:
    """Return the entry of an entry point: a registered factory, or any function."""
    if not callable(found):
        raise ArgumentError(f"it must be a function that returns a Method, got {found!r}")
    registered = {e.make: n for n, e in CATALOGUE.loaded.items()}.get(found, name)
    if registered != name:
        raise ArgumentError(f"its entry point must be called {registered!r}, like its factory")
    return CATALOGUE.loaded.get(name) or MethodEntry(found, package, package=package)


CATALOGUE: Catalogue[MethodEntry] = Catalogue("method", "tunefree.methods", {}, _adapt)
"""Every method by name."""


def register_method(
    paper: str,
    *,
    choose: Mapping[str, tuple[float, ...]] | None = None,
    arxiv: str | None = None,
    family: str | None = None,
) -> Callable[[F], F]:
    """Add a factory to the catalogue under its own name.

    The factory's keyword arguments are the method's settings. The first line of its docstring is
    shown in lists, and an `Args` section describes settings that no part describes.

    Args:
        paper: Author and year.
        choose: Settings that no default can set for every problem, each with the values that
            `tune` searches.
        arxiv: Number of the paper on arXiv.
        family: A key of `FAMILIES`. By default, "free" if there is nothing to choose, "compressed"
            or "penalty" if the factory takes such a setting, "server" otherwise.

    Example:
        @register_method("Our report", choose={"lr": (0.01, 0.1)})
        def fedmine(*, lr: float = 0.1) -> Method:
            return Method(step=Constant(lr), server=Mine())
    """
    grid = dict(choose or {})

    def register(factory: F) -> F:
        own = inspect.signature(factory).parameters
        for setting in grid:
            check_known(f"setting of {factory.__name__}", setting, own)
        kind = family
        if kind is None:
            named = next((n for n in ("compressor", "penalty") if n in own), "server")
            kind = {"compressor": "compressed"}.get(named, named) if grid else "free"
        check_known("family", kind, FAMILIES)
        top = factory.__module__.partition(".")[0]
        package = None if top == __name__.partition(".")[0] else top
        entry = MethodEntry(factory, paper, grid, arxiv, kind, package)
        CATALOGUE.add(factory.__name__, entry)
        return factory

    return register


def register_variant(
    of: Callable[P, Method], paper: str, **entry: Any
) -> Callable[[Callable[[Method], Method]], Callable[P, Method]]:
    """Add a method with the settings of another one, which the decorated function changes.

    Args:
        of: The other method's factory.
        paper: Author and year.
        entry: What else `register_method` takes.
    """

    def register(change: Callable[[Method], Method]) -> Callable[P, Method]:
        @functools.wraps(change)
        def factory(*args: P.args, **settings: P.kwargs) -> Method:
            return change(of(*args, **settings))

        factory.__signature__ = inspect.signature(of)  # type: ignore[attr-defined]
        return register_method(paper, **entry)(factory)

    return register


def add_user_method(text: str, found: Any) -> None:
    """Add a method of the user's own file, a `Method` or a factory, under its text PATH.py:NAME."""
    if text in CATALOGUE.loaded:
        return
    registered = {e.make: e for e in CATALOGUE.loaded.values()}
    if not isinstance(found, Method) and not callable(found):
        raise ArgumentError(f"{text!r} must be a Method, or a function that returns one.")
    known = None if isinstance(found, Method) else registered.get(found)
    make = (lambda: found) if isinstance(found, Method) else found
    file = text.rpartition(":")[0]
    entry = known or MethodEntry(make, file, package=file)
    CATALOGUE.add(text, entry)


def names() -> list[str]:
    """Return every method name.

    >>> "fedavg" in names()
    True
    """
    return sorted(CATALOGUE)


def settings(name: str) -> dict[str, inspect.Parameter]:
    """Return a named method's own arguments, with types and defaults."""
    check_known("method", name, CATALOGUE)
    return dict(inspect.signature(CATALOGUE[name].make).parameters)


def get(name: str, **arguments: Any) -> Method:
    """Return a named method; arguments are its own, or those every method takes.

    >>> get("fedavg", lr=0.3, weights="samples").server
    Average(server_lr=1.0)
    """
    own = settings(name)
    for key in arguments:
        check_known(f"argument of {name}", key, [*own, *COMMON])
    if "wire" in arguments and "compressor" in own:
        use = f"give compressor=..., not wire=..., got wire={arguments['wire']!r}"
        raise ArgumentError(f"{name} packs its uploads by its own setting: {use}.")
    entry = CATALOGUE[name]
    given = {k: v for k, v in arguments.items() if k in own}
    if entry.package is None:
        method = entry.make(**given)
    else:
        with convert_errors(f"The method {name!r} of {entry.package} failed", ArgumentError):
            method = entry.make(**given)
        if not isinstance(method, Method):
            what = f"The method {name!r} of {entry.package}"
            raise ArgumentError(f"{what} must return a Method, got {method!r}.")
    common = {k: v for k, v in arguments.items() if k in COMMON}
    if common.get("weights", "") is None:
        del common["weights"]  # what the method comes with
    return replace(method, name=name, **common)
