"""Exceptions of this package, and checks of arguments that raise them."""

import importlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
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
        # Python remembers a KeyboardInterrupt that left `exec(text)`, as dataclasses call it, until
        # the next one, and would end by SIGINT although the program caught it.
        exec("")


def is_overflow(error: Exception) -> bool:
    """Whether an error of Python or PyTorch says that a number is too large for its type."""
    words = ("without overflow", "must be in range [0, 3.40282e+38]")
    return isinstance(error, OverflowError) or any(word in str(error) for word in words)


@contextmanager
def refuse_overflow(name: str, dtype: object) -> Iterator[None]:
    """Report numbers that a method computes from its settings and that are too large."""
    try:
        yield
    except (OverflowError, RuntimeError) as error:
        if not is_overflow(error):
            raise
        why = f"a number that it computes from its settings is too large for {dtype}"
        raise ArgumentError(f"{name} cannot start: {why}.") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def shorten(text: object, most: int = 300) -> str:
    """Return a text from elsewhere for a log or message: one printable line of limited length.

    >>> shorten("a\\nb" + "c" * 1000, most=8)
    'a?bcccc…'
    """
    line = "".join(c if c.isprintable() else "?" for c in str(text)[: most + 1])
    return line if len(line) <= most else line[: most - 1] + "…"


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
    """Whether this is a number, NumPy's included; an int that no float can hold is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 1 << 1023


def check_argument(owner: str, name: str, value: object, rule: str, is_valid: bool) -> None:
    """Raise an ArgumentError that says what an argument must be, unless it is valid."""
    if not is_valid:
        if isinstance(value, int) and abs(value) >= 1 << 1023:  # Python may refuse to print it
            got = f"an int of {value.bit_length()} bits"
        else:
            got = repr(value)
        raise ArgumentError(f"{owner}({name}=...) must be {rule}, got {got}.")


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


def check_int(owner: str, name: str, value: int, low: int = 1, below: int = 1 << 63) -> None:
    """Check that a value is an int >= low, and below 2**63 or another limit."""
    is_int = isinstance(value, Integral) and not isinstance(value, bool)
    rule = f"below {_power(below)}" if is_int and value >= below else f"an int >= {low}"
    check_argument(owner, name, value, rule, is_int and low <= value < below)


def check_cohort(owner: str, cohort: int, clients: int) -> None:
    """Check that a cohort is not larger than the number of clients."""
    rule = f"at most the number of clients, {clients}"
    check_argument(owner, "cohort", cohort, rule, cohort <= clients)


def _power(n: int) -> str:
    return f"2**{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)


def check_numbers(
    owner: str, settings: object, sizes: tuple[float, float] | None = None, name: str = ""
) -> None:
    """Check every number in dataclasses, mappings and short sequences; the rest is skipped.

    They must be finite, ints below 2**63, and others 0 or of a size within `sizes`. `RunConfig` and
    `bind` call this for all options, parts and settings of a run, so that a part that does not
    check a number itself never sees one that it cannot compute with.
    """
    if isinstance(settings, Real) and not isinstance(settings, bool):
        value: Any = settings
        low, high = (0.0, math.inf) if sizes is None else sizes
        high = min(high, 1 << 63) if isinstance(value, Integral) else high
        is_valid = abs(value) < math.inf and (value == 0 or low <= abs(value) <= high)
        limits = f", 0 or of size {low:.2g} to {high:.2g}" if high < math.inf else ""
        check_argument(owner, name, value, f"a finite number{limits}", is_valid)
        return
    inside: Iterable[tuple[Any, Any]] = ()
    if is_dataclass(settings) and not isinstance(settings, type):
        inside = ((f.name, getattr(settings, f.name)) for f in fields(settings))
    elif isinstance(settings, Mapping):
        inside = settings.items()
    elif isinstance(settings, list | tuple) and len(settings) <= 100:
        inside = enumerate(settings)
    for key, value in inside:
        check_numbers(owner, value, sizes, f"{name}.{key}" if name else str(key))


@contextmanager
def convert_errors(
    message: str, kind: type[TunefreeError] = DataError, hint: str = ""
) -> Iterator[None]:
    """Convert any exception within the context, as of parsers of files from elsewhere, to `kind`.

    The first line of the exception follows the message in parentheses, then the hint.

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
