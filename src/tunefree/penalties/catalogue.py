"""Penalties by name, for the command line: "l1:1e-4", "mcp:1e-4:3", "box:-1:1", "none"."""

from dataclasses import Field, fields

from ..core.errors import ArgumentError, unknown_name
from .box import Box
from .elastic_net import ElasticNet
from .group_lasso import GroupLasso
from .l1 import L1
from .l1_ball import L1Ball
from .l2 import L2
from .l2_ball import L2Ball
from .mcp import MCP
from .nuclear import Nuclear
from .penalty import Penalty
from .scad import SCAD
from .scaled import Scaled
from .simplex import Simplex
from .zero import Zero

MOST = 9
CATALOGUE: dict[str, type[Penalty]] = {
    "none": Zero,
    "l1": L1,
    "l2": L2,
    "elastic-net": ElasticNet,
    "mcp": MCP,
    "scad": SCAD,
    "group-lasso": GroupLasso,
    "nuclear": Nuclear,
    "box": Box,
    "l1-ball": L1Ball,
    "l2-ball": L2Ball,
    "simplex": Simplex,
}


def names() -> list[str]:
    """Return the names that `get` knows."""
    return sorted(CATALOGUE)


def get(penalty: str | Penalty) -> Penalty:
    """Return the penalty that a text means, or the penalty itself.

    The text is a name and the class's arguments in order, all optional, with colons between.

    >>> get("mcp:1e-4:3")
    MCP(weight=0.0001, gamma=3.0)
    >>> get("group-lasso:1e-3:row:scaled")
    GroupLasso(weight=0.001, groups='row', scaled=True)
    >>> get("1e-4*mcp:1")  # a multiple of another one
    Scaled(factor=0.0001, penalty=MCP(weight=1.0, gamma=3.0))
    """
    if isinstance(penalty, Penalty):
        return penalty
    if not isinstance(penalty, str):
        raise ArgumentError(
            f"A penalty must be a Penalty or text such as 'l1:1e-4', got {penalty!r}."
        )
    factor, times, rest = penalty.partition("*")
    if times:
        if rest.count("*") > MOST:
            raise ArgumentError(f"A penalty must be a multiple of a multiple {MOST} times at most.")
        return Scaled(_number(factor, penalty), get(rest))
    name, *words = penalty.strip().lower().split(":")
    if name not in CATALOGUE:
        raise unknown_name("penalty", name, CATALOGUE)
    cls = CATALOGUE[name]
    given = fields(cls)  # type: ignore[arg-type]  # every one is a dataclass
    if len(words) > len(given):
        raise ArgumentError(f"Penalty {penalty!r} has too many parts; write {_usage(name)}.")
    return cls(*(_read(w, f, penalty, name) for w, f in zip(words, given, strict=False)))


def _number(word: str, text: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ArgumentError(
            f"Penalty {text!r} must begin with a number before '*', got {word!r}."
        ) from None


def _usage(name: str) -> str:
    return name + "".join(f"[:{f.name}]" for f in fields(CATALOGUE[name]))  # type: ignore[arg-type]


def _read(word: str, field: Field[object], text: str, name: str) -> object:
    if field.type is bool:
        if word != field.name:
            raise ArgumentError(
                f"Penalty {text!r} must end with {field.name!r} or without it, got {word!r}."
            )
        return True
    if field.type is not float:
        return word
    try:
        return float(word)
    except ValueError:
        raise ArgumentError(
            f"Penalty {text!r} must have a number for {field.name}, got {word!r}; "
            f"write {_usage(name)}."
        ) from None
