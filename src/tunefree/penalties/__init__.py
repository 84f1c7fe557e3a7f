"""Regularisers h(x) and their proximal maps."""

from .box import Box
from .catalogue import get, names
from .elastic_net import ElasticNet
from .group_lasso import GroupLasso
from .l1 import L1
from .l1_ball import L1Ball
from .l2 import L2
from .l2_ball import L2Ball
from .mcp import MCP
from .nuclear import Nuclear
from .penalty import Penalty, sparsity, stationarity
from .scad import SCAD
from .scaled import Scaled
from .simplex import Simplex
from .zero import Zero

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
