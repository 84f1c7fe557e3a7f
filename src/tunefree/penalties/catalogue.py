"""Penalties by name, for the command line: "l1:1e-4", "mcp:1e-4:3", "box:-1:1", "none"."""

from ..core.errors import ArgumentError
from ..core.text import Registry, parse_value
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

MAX_FACTORS = 10
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
PENALTIES: Registry[Penalty] = Registry("penalty", CATALOGUE)


def names() -> list[str]:
    """Return the names that `get` knows."""
    return sorted(CATALOGUE)


def get(penalty: str | Penalty) -> Penalty:
    """Return the penalty that a text stands for; a penalty is returned as it is.

    The text is a name and the class's arguments in order or as KEY=VALUE, all optional, with
    colons between.

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
    *factors, name = penalty.lower().split("*")
    if len(factors) > MAX_FACTORS:
        raise ArgumentError(f"A penalty must have at most {MAX_FACTORS} factors before its name.")
    out = PENALTIES.parse(name)
    for factor in reversed(factors):
        out = Scaled(parse_value(f"The factor {factor!r} of a penalty", factor, float), out)
    return out
