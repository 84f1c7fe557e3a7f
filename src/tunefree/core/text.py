"""Parts in words: "krum:f=2", "sign-flip:0.2:scale=3", "before=0.1,after=0.2"."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar

from .errors import ArgumentError, unknown_name

T = TypeVar("T")


def value(what: str, text: str, kind: Any) -> Any:
    """Return what a text means where a value of this type is wanted.

    >>> value("--set lr=0.1", "0.1", float | None), value("--set clip=none", "none", float | None)
    (0.1, None)
    """
    union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    kinds = typing.get_args(kind) if union else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ArgumentError(f"{what} must be true or false.")
        return text.lower() == "true"
    numbers: list[type[int] | type[float]] = [n for n in (int, float) if n in kinds]
    for number in numbers:
        try:
            return number(text)
        except ValueError:
            pass
    if numbers and not any(k is str or typing.get_origin(k) is Literal for k in kinds):
        word = "an int" if numbers == [int] else "a number"
        raise ArgumentError(f"{what} must be {word}.")
    return text


def settings(what: str, words: Sequence[str], kind: type) -> dict[str, Any]:
    """Return the arguments of a dataclass that words stand for: values in order, or KEY=VALUE.

    >>> from dataclasses import make_dataclass
    >>> settings("--faults", ["0.1", "after=0.2"], make_dataclass("F", [("before", float),
    ...     ("after", float)]))
    {'before': 0.1, 'after': 0.2}
    """
    known = {f.name: f for f in fields(kind) if f.init}
    out: dict[str, Any] = {}
    for place, word in enumerate(words):
        key, equals, text = word.partition("=")
        if not equals:
            key, text = [*known, ""][min(place, len(known))], word
            if key in ("", *out):
                raise ArgumentError(f"{what}: {word!r} is one value too many; write KEY=VALUE.")
        if key not in known:
            raise unknown_name(f"setting of {what}", key, known)
        if key in out:
            raise ArgumentError(f"{what} has {key} twice; give it once.")
        read = known[key].metadata.get("read")
        wanted = known[key].type
        said = f"{what}: {key}"
        out[key] = value(said, text, wanted) if read is None else read(said, text)
    return out


def part(what: str, text: str, known: Mapping[str, type[T]]) -> T:
    """Return the part that NAME, NAME:VALUE or NAME:KEY=VALUE stands for."""
    name, *words = text.strip().split(":")
    if name.lower() not in known:
        raise unknown_name(what, name, known)
    kind = known[name.lower()]
    given = settings(name, words, kind)
    missing = [n for n in _needed(kind) if n not in given]
    if missing:
        raise ArgumentError(f"The {what} {text!r} lacks {missing[0]}; write {name}:{missing[0]}=…")
    return kind(**given)


def _needed(kind: type) -> list[str]:
    return [
        f.name
        for f in fields(kind)
        if f.init and f.default is MISSING and f.default_factory is MISSING
    ]


def human(count: float) -> str:
    """Return bytes in a readable unit.

    >>> human(1536)
    '1.5 kB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
