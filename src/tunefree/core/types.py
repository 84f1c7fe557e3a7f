"""Type aliases of tensors and dicts of tensors, and functions on model inputs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Vector: TypeAlias = Tensor
"""Server parameters, or a vector of their shape: (d,)."""
Rows: TypeAlias = Tensor
"""One row per client of a chunk: (m, d), or (m,) for scalars."""
Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A batch of model inputs; every tensor's first axis counts samples."""
Samples: TypeAlias = tuple[Inputs, Tensor]
"""Inputs and targets, row by row."""
Array: TypeAlias = "np.ndarray[Any, Any]"
"""An array of NumPy, of any type."""
State: TypeAlias = dict[str, Tensor]
"""State of a part between rounds, by name."""
Channels: TypeAlias = dict[str, Tensor]
"""What is transmitted, by name: vectors and scalars."""
Metrics: TypeAlias = dict[str, Tensor]
"""A rule's entries of the history, by name: scalars."""
MAX_CLASSES = 1 << 20
"""Largest number of classes of a dataset or network."""


def map_inputs(f: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply `f` to each tensor of a batch; the result has the same structure.

    >>> map_inputs(lambda t: t + 1, {"ids": torch.zeros(2)})
    {'ids': tensor([1., 1.])}
    """
    if isinstance(inputs, Tensor):
        return f(inputs)
    if isinstance(inputs, dict):
        return {name: f(part) for name, part in inputs.items()}
    return tuple(f(part) for part in inputs)


def take_rows(inputs: Inputs, rows: slice | int | Tensor) -> Inputs:
    """Return some samples of a batch.

    >>> take_rows((torch.arange(3), torch.ones(3)), slice(2))
    (tensor([0, 1]), tensor([1., 1.]))
    """
    return map_inputs(lambda t: t[rows], inputs)


def select_prefix(state: Mapping[str, T], part: str) -> dict[str, T]:
    """Return the entries under a dotted prefix, without the prefix."""
    head = f"{part}."
    return {name.removeprefix(head): v for name, v in state.items() if name.startswith(head)}


def list_tensors(inputs: Inputs) -> list[Tensor]:
    """Return the tensors of a batch in a fixed order."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device, without waiting for the GPU."""
    if device.type != "cuda" or t.device.type != "cpu":
        return t.to(device)
    return t.contiguous().pin_memory().to(device, non_blocking=True)
