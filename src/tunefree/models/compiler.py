"""The compiler."""

from collections.abc import Callable
from typing import Any

import torch


def compiled(graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return the graph compiled for the shapes it will be called with.

    Left to itself, the compiler times several kernels of a sum on a GPU and keeps the fastest:
    they round differently, so the same seed would give other bits in the next process.
    """
    return torch.compile(graph, dynamic=False, options={"deterministic": True})
