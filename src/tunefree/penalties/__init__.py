"""Regularisers h(x), their proximal maps, and texts for them such as "l1:1e-4" or "box:-1:1"."""

from ..core.errors import ArgumentError
from ..core.text import Registry, parse_value
from .penalty import Penalty, sparsity, stationarity
from .separable import L1, L2, MCP, SCAD, ElasticNet, Scaled, Zero
from .sets import Box, L1Ball, L2Ball, Simplex
from .structured import GroupLasso, Nuclear

__all__ = [  # noqa: RUF022  # sorted without regard to case
    "Box",
    "ElasticNet",
    "GroupLasso",
    "L1",
    "L1Ball",
    "L2",
    "L2Ball",
    "MCP",
    "Nuclear",
    "Penalty",
    "SCAD",
    "Scaled",
    "Simplex",
    "Zero",
    "get",
    "names",
    "sparsity",
    "stationarity",
]

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
