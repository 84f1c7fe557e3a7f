"""What a study is told: methods, labels and seeds, checked before anything is trained."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .. import methods
from ..core.errors import ArgumentError, check_int, unknown_name
from ..methods import Method
from ..training.command import parse_method_settings
from ..training.config import RunConfig, check_option_names

TUNED = "tuned"
MOST_SEEDS = 1_000_000
NEXT_SETTING = re.compile(rf":(?=[A-Za-z_]\w*=|{TUNED}$)")  # not the colon inside topk:0.05


@dataclass(frozen=True)
class Entrant:
    """A method that takes part.

    Args:
        label: What tables call it.
        method: The method.
        name: Its name in the catalogue; None for a method made of parts.
        words: Its settings as the command line has them.
        fixed: The same as values.
        tuned: Whether what is left to choose is to be searched first.
    """

    label: str
    method: Method
    name: str | None = None
    words: tuple[str, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False


def parse(word: str) -> Entrant:
    """Read a method in words: NAME, NAME:KEY=VALUE:KEY=VALUE, NAME:tuned.

    >>> parse("fedavg:lr=0.3:wire=ef+topk:0.05").words
    ('lr=0.3', 'wire=ef+topk:0.05')
    """
    name, *words = NEXT_SETTING.split(word.strip())
    tuned = TUNED in words
    words = [w for w in words if w != TUNED]
    if name not in methods.CATALOGUE:
        raise unknown_name("method", name, methods.CATALOGUE)
    fixed = parse_method_settings(name, tuple(words))
    return Entrant(word.strip(), methods.get(name, **fixed), name, tuple(words), fixed, tuned)


def entrants(given: Sequence[str | Method] | Mapping[str, Any]) -> list[Entrant]:
    """Return the methods of a comparison, each under a label of its own."""
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping) or not given:
        raise ArgumentError(
            "compare(methods=...) must be a list of names and Methods, or a dict of them by label, "
            f"got {given!r}."
        )
    pairs = given.items() if isinstance(given, Mapping) else [(_label(m), m) for m in given]
    out = [_entrant(str(label), method) for label, method in pairs]
    taken: dict[str, str] = {}
    for label in (entrant.label for entrant in out):
        key = place(label).lower()  # folders may not tell capitals apart
        if key in taken:
            raise ArgumentError(
                f"compare(methods=...) must tell its methods apart, got {taken[key]!r} and "
                f"{label!r}; give a dict with labels that differ."
            )
        taken[key] = label
    return out


def _label(method: Any) -> str:
    return method.name if isinstance(method, Method) else str(method).strip()


def _entrant(label: str, method: Any) -> Entrant:
    if isinstance(method, Method):
        return Entrant(label, method)
    if not isinstance(method, str):
        raise ArgumentError(
            f"compare(methods=...) must hold names and Methods, got {method!r} for {label!r}."
        )
    return replace(parse(method), label=label)


def place(label: str) -> str:
    """Return a folder name for a label: readable, and not that of another label.

    >>> place("fedavg:lr=0.1")
    'fedavg,lr=0.1'
    >>> place("../a b")
    'a-b-2c2c791a'
    """
    name = re.sub(r"[^A-Za-z0-9._=+,-]", "-", label.replace(":", ","))[:80]
    plain = re.fullmatch(r"[A-Za-z0-9_=+][A-Za-z0-9._=+:-]{0,79}", label) is not None
    if plain and not label.endswith((".", ":")) and label.lower() != "tuning":
        return name
    return f"{name.lstrip('-.') or 'run'}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def seeds(given: int | Sequence[int], what: str = "compare") -> list[int]:
    """Return the seeds: 0 .. n-1 for a number n, or those given."""
    if not isinstance(given, Sequence):
        check_int(what, "seeds", given)
        if given > MOST_SEEDS:
            raise ArgumentError(f"{what}(seeds=...) must be at most {MOST_SEEDS:,}, got more.")
        return list(range(given))
    if not given or isinstance(given, str) or len(set(given)) < len(given):
        raise ArgumentError(
            f"{what}(seeds=...) must be a number of seeds or a list of different ones, got "
            f"{given!r}."
        )
    for seed in given:
        check_int(what, "seeds", seed, 0)
    return [int(seed) for seed in given]


def read_seeds(text: str) -> int | list[int]:
    """Read "3" as a number of seeds, "0,4,7" as seeds.

    >>> read_seeds("0,4,7")
    [0, 4, 7]
    """
    try:
        if "," in text:
            return [int(word) for word in text.split(",") if word.strip()]
        return int(text)
    except ValueError:
        raise ArgumentError(
            f"--seeds must be a number of seeds, such as 3, or seeds, such as 0,4,7, got {text!r}."
        ) from None


def check_settings(what: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments that `fit` does not have, or that the study sets itself."""
    options = {name: value for name, value in given.items() if name != "callbacks"}
    for name in ("method", "seed"):
        if name in options:
            known = [f.name for f in fields(RunConfig) if f.name not in ("method", "seed")]
            raise unknown_name(f"argument of {what}", name, known)
    check_option_names(what, options)
