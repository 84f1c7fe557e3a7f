"""The candidates and seeds of a study, checked before anything is trained."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import methods
from ..core.errors import ArgumentError, check_int, unknown_name
from ..core.plugins import get_user_object, is_user_object, load_user_object
from ..methods import Method
from ..methods.registry import add_user_method
from ..training.command import parse_method_settings

TUNED = "tuned"
MAX_SEEDS = 1_000_000
NEXT_SETTING = re.compile(rf":(?=[A-Za-z_]\w*=|{TUNED}$)")  # not the colon inside topk:0.05


@dataclass(frozen=True)
class Candidate:
    """A method in a study."""

    label: str  # its name in tables
    method: Method | None  # None where a folder keeps no more than its description
    name: str | None = None  # in the catalogue; None for a `Method` without one
    texts: tuple[str, ...] = ()  # its settings as KEY=VALUE
    settings: dict[str, Any] = field(default_factory=dict)
    is_tuned: bool = False  # whether its other settings are searched first


def parse_candidate(text: str) -> Candidate:
    """Return the candidate of a text: NAME, NAME:KEY=VALUE:KEY=VALUE or NAME:tuned.

    >>> parse_candidate("fedavg:lr=0.3:wire=ef+topk:0.05").texts
    ('lr=0.3', 'wire=ef+topk:0.05')
    """
    name, *parts = NEXT_SETTING.split(text.strip())
    texts = tuple(part for part in parts if part != TUNED)
    if name not in methods.CATALOGUE:
        if is_user_object(name):
            get_user_object(name)
        raise unknown_name("method", name, methods.CATALOGUE)
    return replace(make_candidate(name, texts), label=text.strip(), is_tuned=TUNED in parts)


def load_user_methods(text: str) -> None:
    """Run the user's files that a list of methods names, which must have been typed."""
    for one in text.split(","):
        name = NEXT_SETTING.split(one.strip())[0]
        if is_user_object(name):
            add_user_method(name, load_user_object(name))


def make_candidate(name: str, texts: tuple[str, ...]) -> Candidate:
    """Return the method of a name with its settings as KEY=VALUE texts."""
    settings = parse_method_settings(name, texts)
    return Candidate(name, methods.get(name, **settings), name, texts, settings)


def parse_candidates(given: Sequence[str | Method] | Mapping[str, Any]) -> list[Candidate]:
    """Return the candidates of a comparison; their labels must differ."""
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping) or not given:
        rule = "a list of names and Methods, or a dict of them by label"
        raise ArgumentError(f"compare(methods=...) must be {rule}, got {given!r}.")
    if not isinstance(given, Mapping):
        pairs = [(m.name if isinstance(m, Method) else str(m).strip(), m) for m in given]
    else:
        pairs = list(given.items())
    out = []
    for label, method in pairs:
        if not isinstance(method, Method | str):
            given = f"{method!r} for {str(label)!r}"
            raise ArgumentError(f"compare(methods=...) must hold names and Methods, got {given}.")
        found = parse_candidate(method) if isinstance(method, str) else Candidate("", method)
        out.append(replace(found, label=str(label)))
    taken: dict[str, str] = {}
    for label in (candidate.label for candidate in out):
        key = folder_name(label).lower()  # some file systems ignore case
        if key in taken:
            both = f"{taken[key]!r} and {label!r}; give a dict with labels that differ"
            raise ArgumentError(f"compare(methods=...) must tell its methods apart, got {both}.")
        taken[key] = label
    return out


def folder_name(label: str) -> str:
    """Return a readable folder name for a label; different labels have different names.

    >>> folder_name("fedavg:lr=0.1")
    'fedavg,lr=0.1'
    >>> folder_name("../a b")
    'a-b-2c2c791a'
    """
    name = re.sub(r"[^A-Za-z0-9._=+,-]", "-", label.replace(":", ","))[:80]
    is_safe = re.fullmatch(r"[A-Za-z0-9_=+][A-Za-z0-9._=+:-]{0,79}", label) is not None
    if is_safe and not label.endswith((".", ":")) and label.lower() != "tuning":
        return name
    return f"{name.lstrip('-.') or 'run'}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def make_seeds(given: int | Sequence[int], what: str = "compare") -> list[int]:
    """Return the seeds: 0 .. n-1 for an int n, or the given ones."""
    if not isinstance(given, Sequence):
        check_int(what, "seeds", given)
        if given > MAX_SEEDS:
            raise ArgumentError(f"{what}(seeds=...) must be at most {MAX_SEEDS:,}, got more.")
        return list(range(given))
    if not given or isinstance(given, str) or len(set(given)) < len(given):
        rule = "a number of seeds or a list of different ones"
        raise ArgumentError(f"{what}(seeds=...) must be {rule}, got {given!r}.")
    for seed in given:
        check_int(what, "seeds", seed, 0)
    return [int(seed) for seed in given]


def parse_seeds(text: str) -> int | list[int]:
    """Return a number of seeds from "3", or seeds from "0,4,7".

    >>> parse_seeds("0,4,7")
    [0, 4, 7]
    """
    try:
        if "," in text:
            return [int(part) for part in text.split(",") if part.strip()]
        return int(text)
    except ValueError:
        rule = "a number of seeds, such as 3, or seeds, such as 0,4,7"
        raise ArgumentError(f"--seeds must be {rule}, got {text!r}.") from None
