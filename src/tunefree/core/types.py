"""The words every room uses, and the plain data that walks between them."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Vector: TypeAlias = Tensor
"""Server-side parameters or anything of their shape: (d,)."""
Rows: TypeAlias = Tensor
"""One row per client of a chunk: (m, d), or (m,) for one number each."""
Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A batch of model inputs; every tensor's first axis counts samples."""
Pair: TypeAlias = tuple[Inputs, Tensor]
"""Inputs and targets, row by row."""
State: TypeAlias = dict[str, Tensor]
"""Memory of a part between rounds, by name; plain data, so that it can be saved and compared."""
Channels: TypeAlias = dict[str, Tensor]
"""What crosses the network, by name: vectors and scalars."""
Trace: TypeAlias = dict[str, Tensor]
"""A rule's own numbers for the history, by name: scalars."""


def map_inputs(f: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply `f` to each tensor of a batch and keep the batch's form.

    >>> import torch
    >>> map_inputs(lambda t: t + 1, {"ids": torch.zeros(2)})
    {'ids': tensor([1., 1.])}
    """
    if isinstance(inputs, Tensor):
        return f(inputs)
    if isinstance(inputs, dict):
        return {name: f(part) for name, part in inputs.items()}
    return tuple(f(part) for part in inputs)


def tensor_list(inputs: Inputs) -> list[Tensor]:
    """Return the tensors of a batch in a fixed order."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device; the host goes on while a GPU is still busy."""
    if device.type != "cuda" or t.device.type != "cpu":
        return t.to(device)
    return t.contiguous().pin_memory().to(device, non_blocking=True)
