"""What goes wrong, in sentences: one family of errors, so that callers can catch ours alone."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real


class TunefreeError(Exception):
    """Base of every error raised on purpose; its text is meant for the user."""


class ArgumentError(TunefreeError, ValueError):
    """An argument is out of its range, or parts do not fit together."""


class DataError(TunefreeError, ValueError):
    """The data cannot be used as given: missing, damaged, or of the wrong shape."""


class ResumeError(TunefreeError):
    """A run folder cannot be continued with these settings."""


class CheckpointError(TunefreeError):
    """A checkpoint cannot be read."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed; the run so far is in `run`, and on disk if it has a folder."""

    def __init__(self, message: str, run: object) -> None:
        super().__init__(message)
        self.run = run


def first_line(error: BaseException) -> str:
    """Return what another library's error says, in one line."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ArgumentError:
    """Return the error for a name that is not in the list, with the nearest one that is.

    >>> print(unknown_name("method", "fedagv", ["fedavg", "scaffold"]))
    Unknown method 'fedagv'. Did you mean 'fedavg'? Known: fedavg, scaffold.
    """
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ArgumentError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # NumPy numbers too


def check_positive(owner: str, name: str, value: float) -> None:
    """Refuse what is not a finite number > 0."""
    if not (_number(value) and 0 < value < float("inf")):
        raise ArgumentError(f"{owner}({name}=...) must be a finite number > 0, got {value!r}.")


def check_finite(owner: str, name: str, value: float) -> None:
    """Refuse what is not a finite number."""
    if not (_number(value) and float("-inf") < value < float("inf")):
        raise ArgumentError(f"{owner}({name}=...) must be a finite number, got {value!r}.")


def check_nonnegative(owner: str, name: str, value: float) -> None:
    """Refuse what is not a finite number >= 0."""
    if not (_number(value) and 0 <= value < float("inf")):
        raise ArgumentError(f"{owner}({name}=...) must be a finite number >= 0, got {value!r}.")


def check_in_range(owner: str, name: str, value: float, low: float, high: float) -> None:
    """Refuse what is not a number in [low, high)."""
    if not (_number(value) and low <= value < high):
        raise ArgumentError(
            f"{owner}({name}=...) must be a number in [{low:g}, {high:g}), got {value!r}."
        )


def check_between(owner: str, name: str, value: float, low: float, high: float) -> None:
    """Refuse what is not a number strictly between low and high."""
    if not (_number(value) and low < value < high):
        raise ArgumentError(
            f"{owner}({name}=...) must be a number between {low:g} and {high:g}, got {value!r}."
        )


def check_fraction(owner: str, name: str, value: float) -> None:
    """Refuse what is not a number in (0, 1]."""
    if not (_number(value) and 0 < value <= 1):
        raise ArgumentError(f"{owner}({name}=...) must be a number in (0, 1], got {value!r}.")


def check_at_least(owner: str, name: str, value: float, low: float) -> None:
    """Refuse what is not a finite number >= low."""
    if not (_number(value) and low <= value < float("inf")):
        raise ArgumentError(
            f"{owner}({name}=...) must be a finite number >= {low:g}, got {value!r}."
        )


def check_int(owner: str, name: str, value: int, low: int = 1) -> None:
    """Refuse what is not an int >= low."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ArgumentError(f"{owner}({name}=...) must be an int >= {low}, got {value!r}.")


@contextmanager
def convert_errors(
    says: str, kind: type[TunefreeError] = DataError, hint: str = ""
) -> Iterator[None]:
    """Within it, whatever bytes of a stranger do to a parser becomes one of our errors.

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
    except Exception as error:  # parsers of other libraries raise nearly everything
        why = first_line(error)[:200].rstrip(".")
        raise kind(f"{says} ({why}){f'; {hint}' if hint else ''}.") from error
