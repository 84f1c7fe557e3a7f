"""The compiler: what it is told, and where it cannot be trusted."""

from collections.abc import Callable
from typing import Any

import torch

# On a CPU, PyTorch 2.11 forgets that what is read has to be read before it is overwritten
# (pytorch/pytorch#177631): steps in place then use weights that have already moved.
SAFE_IN_PLACE = (2, 12)


def compiled(graph: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return the graph compiled for the shapes it will be called with.

    Left to itself, the compiler times several kernels on a GPU and keeps the fastest: their sums
    round differently, so that the same seed would give other bits in the next process.
    """
    told: dict[str, Any] = {"deterministic": True, "shape_padding": False}
    return torch.compile(graph, dynamic=False, options=told if device.type == "cuda" else None)


def in_place(device: torch.device) -> bool:
    """Return whether a compiled graph may overwrite what it reads."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return device.type != "cpu" or found >= SAFE_IN_PLACE
