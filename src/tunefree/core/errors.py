"""Exceptions of this package, and checks of arguments that raise them."""

import importlib
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


class TunefreeError(Exception):
    """Base class of the errors of this package; the message is meant for the user."""


class ArgumentError(TunefreeError, ValueError):
    """An argument is out of range, or parts cannot be combined."""


class DataError(TunefreeError, ValueError):
    """The data is missing, damaged or of the wrong shape."""


class ResumeError(TunefreeError):
    """A run folder cannot be continued with these settings."""


class CheckpointError(TunefreeError):
    """A checkpoint cannot be read."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by Ctrl-C or by a callback; `run` holds it so far, as does its folder."""

    def __init__(self, message: str, run: object) -> None:
        super().__init__(message)
        self.run = run


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ArgumentError:
    """Return the error for an unknown name, with the nearest known one.

    >>> print(unknown_name("method", "fedagv", ["fedavg", "scaffold"]))
    Unknown method 'fedagv'. Did you mean 'fedavg'? Known: fedavg, scaffold.
    """
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ArgumentError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")


def cannot_use(one: str, other: str, why: str) -> ArgumentError:
    """Return the error for a combination that is not defined.

    >>> print(cannot_use("clip=1.0", "Armijo", "its line search is exact; leave clip out"))
    Cannot use clip=1.0 with Armijo. This is because its line search is exact; leave clip out.
    """
    return ArgumentError(f"Cannot use {one} with {other}. This is because {why}.")


def check_known(kind: str, name: object, known: Collection[str]) -> None:
    """Check that a name is known."""
    if name not in known:
        raise unknown_name(kind, name, known)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # NumPy numbers too


def check_argument(owner: str, name: str, value: object, rule: str, is_valid: bool) -> None:
    """Raise an ArgumentError that says what an argument must be, unless it is valid."""
    if not is_valid:
        raise ArgumentError(f"{owner}({name}=...) must be {rule}, got {value!r}.")


def check_positive(owner: str, name: str, value: float) -> None:
    """Check that a value is a finite number > 0."""
    check_argument(
        owner, name, value, "a finite number > 0", _is_number(value) and 0 < value < math.inf
    )


def check_finite(owner: str, name: str, value: float) -> None:
    """Check that a value is a finite number."""
    is_valid = _is_number(value) and -math.inf < value < math.inf
    check_argument(owner, name, value, "a finite number", is_valid)


def check_nonnegative(owner: str, name: str, value: float) -> None:
    """Check that a value is a finite number >= 0."""
    check_at_least(owner, name, value, 0)


def check_in_range(owner: str, name: str, value: float, low: float, high: float) -> None:
    """Check that a value is a number in [low, high)."""
    rule = f"a number in [{low:g}, {high:g})"
    check_argument(owner, name, value, rule, _is_number(value) and low <= value < high)


def check_between(owner: str, name: str, value: float, low: float, high: float) -> None:
    """Check that a value is a number strictly between low and high."""
    rule = f"a number between {low:g} and {high:g}"
    check_argument(owner, name, value, rule, _is_number(value) and low < value < high)


def check_fraction(owner: str, name: str, value: float) -> None:
    """Check that a value is a number in (0, 1]."""
    check_argument(owner, name, value, "a number in (0, 1]", _is_number(value) and 0 < value <= 1)


def check_at_least(owner: str, name: str, value: float, low: float) -> None:
    """Check that a value is a finite number >= low."""
    is_valid = _is_number(value) and low <= value < math.inf
    check_argument(owner, name, value, f"a finite number >= {low:g}", is_valid)


def check_int(owner: str, name: str, value: int, low: int = 1) -> None:
    """Check that a value is an int >= low."""
    is_valid = isinstance(value, Integral) and not isinstance(value, bool) and value >= low
    check_argument(owner, name, value, f"an int >= {low}", is_valid)


@contextmanager
def convert_errors(
    message: str, kind: type[TunefreeError] = DataError, hint: str = ""
) -> Iterator[None]:
    """Convert any exception within the context to an error of this package.

    For parsers of files from elsewhere, which may raise anything.

    Args:
        message: What failed; the first line of the exception follows in parentheses.
        kind: The class of the error.
        hint: What the user can do.

    >>> with convert_errors("The file is damaged", hint="fetch it again"):
    ...     int("x")
    Traceback (most recent call last):
    tunefree.core.errors.DataError: The file is damaged (invalid literal for int() with base 10: \
'x'); fetch it again.
    """
    try:
        yield
    except TunefreeError:
        raise
    except Exception as error:
        why = first_line(error)[:200].rstrip(".")
        raise kind(f"{message} ({why}){f'; {hint}' if hint else ''}.") from error


def import_optional(module: str, user: str, package: str, *, extra: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        ArgumentError: It cannot be imported; the message says which extra installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{user} needs the package {package}, which cannot be imported ({first_line(error)}); "
            f"pip install 'tunefree[{extra}]' installs it."
        ) from None
