"""Every penalty, strong enough to matter at numbers of size one, and a layout of all shapes."""

import torch

from helpers import assert_close as close
from helpers import normal as rows
from tunefree.core.layout import Layout
from tunefree.penalties import (
    L1,
    L2,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    Nuclear,
    Scaled,
    Simplex,
    Zero,
)

__all__ = ["LAYOUT", "PENALTIES", "SETS", "D", "close", "flat", "rows", "vector"]

LAYOUT = Layout(("w", "b", "k", "s"), ((2, 3), (2,), (2, 2, 2, 1), ()))
D = LAYOUT.size
SETS = [Box(-0.4, 0.3), L1Ball(2.0), L2Ball(0.9), Simplex(1.5)]
PENALTIES = {
    repr(part): part
    for part in (
        Zero(),
        L1(0.6),
        L2(0.6),
        ElasticNet(0.6, 0.9),
        MCP(0.6, 2.5),
        SCAD(0.6, 3.5),
        Scaled(0.5, SCAD(0.9, 3.5)),
        GroupLasso(0.6),
        GroupLasso(0.6, "layer", True),
        Nuclear(0.6),
        *SETS,
    )
}


def flat(d):
    return Layout(("x",), ((d,),))


def vector(numbers):
    return torch.as_tensor(numbers, dtype=torch.float64)
