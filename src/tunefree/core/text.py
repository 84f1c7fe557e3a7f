"""Parsing of texts such as "krum:f=2", "ef+topk:0.05" and "before=0.1,after=0.2" to objects.

A `Registry` maps names to dataclasses; its `parse` reads

    NAME                        the dataclass with its defaults
    NAME:VALUE:VALUE            field values, in the order of the fields
    NAME:KEY=VALUE              field values by name
    NAME:FLAG                   a bool field set to True, by its name
    PREFIX:KEY=VALUE+TEXT       a dataclass whose field `inner` is the object of TEXT

Values are converted to the type of their field. A field may convert its own text with
`field(metadata={"read": f})`, where `f(what, text)` returns the value.
"""

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Generic, Literal, TypeVar

from .errors import ArgumentError, unknown_name
from .fields import bare_types

T = TypeVar("T")

MAX_PREFIXES = 9


class Registry(Generic[T]):
    """Dataclasses by name, and a parser of texts that describe instances.

    Args:
        kind: What the entries are, for error messages, such as "attack".
        entries: Dataclasses by lower-case name.
        constants: Objects by name that take no settings, such as {"none": None}.
        prefixes: Dataclasses with a field `inner`, by name: "PREFIX+TEXT" is one around the object
            of TEXT.
        flags: Words that set a field, such as {"global": ("per_layer", False)},
            for the dataclasses with that field.

    >>> from dataclasses import make_dataclass
    >>> TopK = make_dataclass("TopK", [("ratio", float), ("per_layer", bool, True)])
    >>> Feedback = make_dataclass("Feedback", [("inner", object)])
    >>> wires = Registry("wire", {"topk": TopK}, prefixes={"ef": Feedback},
    ...     flags={"global": ("per_layer", False)})
    >>> wires.parse("topk:ratio=0.1"), wires.parse("ef+topk:0.1:global")
    (TopK(ratio=0.1, per_layer=True), Feedback(inner=TopK(ratio=0.1, per_layer=False)))
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Callable[..., T]],
        *,
        constants: Mapping[str, T] | None = None,
        prefixes: Mapping[str, Callable[..., T]] | None = None,
        flags: Mapping[str, tuple[str, Any]] | None = None,
    ) -> None:
        self.kind, self.entries = kind, entries
        self.constants, self.prefixes = constants or {}, prefixes or {}
        self.flags = flags or {}

    def names(self) -> list[str]:
        """Return the names that `parse` knows."""
        prefixes = (f"{name}+{self.kind.upper()}" for name in self.prefixes)
        return [*self.constants, *self.entries, *prefixes]

    def parse(self, text: str) -> T:
        """Return the object that a text describes.

        Raises:
            ArgumentError: The name is unknown, or a setting is unknown, missing or malformed.
        """
        return self._parse(text.strip(), MAX_PREFIXES)

    def _parse(self, text: str, prefixes_left: int) -> T:
        head, plus, rest = text.partition("+")
        prefix = self.prefixes.get(head.split(":")[0].lower())
        if prefix is not None:
            if not plus:
                raise ArgumentError(
                    f"The {self.kind} {text!r} goes in front of another one; write "
                    f"{text}+{next(iter(self.entries))}, for example."
                )
            if not prefixes_left:
                raise ArgumentError(
                    f"The {self.kind} must have at most {MAX_PREFIXES} parts in front of it."
                )
            inner = self._parse(rest.strip(), prefixes_left - 1)
            return self._make(prefix, head, inner=inner)
        name = text.split(":")[0].lower()
        if text.lower() in self.constants:
            return self.constants[text.lower()]
        if name not in self.entries:
            raise unknown_name(self.kind, text.split(":")[0], self.names())
        return self._make(self.entries[name], text)

    def _make(self, cls: Any, text: str, **given: T) -> T:
        name, *texts = text.split(":")
        values = given | parse_arguments(name, texts, cls, self.flags, skip=given)
        for f in fields(cls):
            required = f.init and f.default is MISSING and f.default_factory is MISSING
            if required and f.name not in values:
                raise ArgumentError(
                    f"The {self.kind} {text!r} lacks {f.name}; write {name}:{f.name}=…"
                )
        made: T = cls(**values)
        return made


def parse_arguments(
    what: str,
    texts: Sequence[str],
    cls: Any,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    skip: typing.Container[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a dataclass: values in the order of its fields, KEY=VALUE, or flags.

    A flag is a word that sets a field; the name of a bool field sets it to True. Fields in `skip`
    are not given by text.

    >>> from dataclasses import make_dataclass
    >>> cls = make_dataclass("Faults", [("before", float), ("after", float), ("log", bool)])
    >>> parse_arguments("--faults", ["0.1", "after=0.2", "log"], cls)
    {'before': 0.1, 'after': 0.2, 'log': True}
    """
    known = {f.name: f for f in fields(cls) if f.init and f.name not in skip}
    known_flags = {f.name: (f.name, True) for f in known.values() if f.type is bool}
    known_flags |= {word: flag for word, flag in (flags or {}).items() if flag[0] in known}
    out: dict[str, Any] = {}
    for index, word in enumerate(texts):
        key, equals, text = word.partition("=")
        flag = known_flags.get(word.strip().lower())
        if flag is not None:
            key = flag[0]
        elif not equals:
            key, text = [*known, ""][min(index, len(known))], word
            if key in ("", *out):
                instead = "write KEY=VALUE" if known else "it takes none"
                raise ArgumentError(f"{what}: {word!r} is one value too many; {instead}.")
        if key not in known:
            raise unknown_name(f"setting of {what}", key, known)
        if key in out:
            raise ArgumentError(f"{what} has {key} twice; give it once.")
        label, read = f"{what}: {key}", known[key].metadata.get("read")
        if flag is not None:
            out[key] = flag[1]
        elif read is not None:
            out[key] = read(label, text)
        else:
            out[key] = parse_value(label, text, known[key].type)
    return out


def parse_value(what: str, text: str, kind: Any) -> Any:
    """Return the value of a type (int, float, bool, str or a union of them) that a text describes.

    >>> parse_value("lr", "0.1", float | None), parse_value("clip", "none", float | None)
    (0.1, None)
    >>> parse_value("warm", "true", bool | str), parse_value("warm", "linear", bool | str)
    (True, 'linear')
    """
    kinds = bare_types(kind)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if bool in kinds and set(kinds) <= {bool, type(None)}:
        raise ArgumentError(f"{what} must be true or false.")
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


def read_argument_docs(doc: str | None) -> dict[str, str]:
    """Return what the Args of a docstring in Google style say, by name.

    >>> read_argument_docs("A step.\\n\\nArgs:\\n    lr: Step size,\\n        > 0.\\n    c: Share.")
    {'lr': 'Step size, > 0.', 'c': 'Share.'}
    """
    found = re.search(r"^Args:\n((?: .*\n?|\n)*)", inspect.cleandoc(doc or ""), re.M)
    if found is None:
        return {}
    items = re.split(r"^(?=\S)", textwrap.dedent(found[1]), flags=re.M)
    pairs = (item.partition(":") for item in items if item.strip())
    return {name.strip(): " ".join(text.split()) for name, _, text in pairs}


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> format_bytes(1536)
    '1.5 kB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
