"""The compiler: what it is told, and where it cannot be trusted."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

# On a CPU, PyTorch 2.11 forgets that what is read has to be read before it is overwritten
# (pytorch/pytorch#177631): steps in place then use weights that have already moved.
SAFE_IN_PLACE = (2, 12)


LONG = 60  # operations on a number before it is written; dropout's masks take half of them


def compiled(graph: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return the graph compiled for the shapes it will be called with.

    Left to itself, the compiler times several kernels on a GPU and keeps the fastest: their sums
    round differently, so that the same seed would give other bits in the next process. And it would
    write the bits that decide dropout's masks, 64 for each unit, rather than work them out again.
    """
    told: dict[str, Any] = {
        "deterministic": True,
        "shape_padding": False,
        "realize_opcount_threshold": LONG,
    }
    if device.type != "cuda":
        return torch.compile(graph, dynamic=False, options=None)
    return _quiet(torch.compile(graph, dynamic=False, options=told))


def _quiet(fast: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without what PyTorch 2.11 says of every network with under 8 classes."""

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
            return fast(*args)

    return call


def in_place(device: torch.device) -> bool:
    """Return whether a compiled graph may overwrite what it reads."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return device.type != "cpu" or found >= SAFE_IN_PLACE
