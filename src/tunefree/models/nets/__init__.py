"""Reference networks of the papers, by name, with their exact parameter counts.

Each takes `shape`, the shape of one sample without the batch axis, and `classes`, the number of
classes, at least 2; `mlp` and `regression` may have 1 output. The networks of dense layers flatten
samples of any shape.

They use plain operations without data-dependent control flow, so that torch.func can batch them
over clients. A tensor batch is passed as `module(x)`, a tuple as `module(*x)`, a dict as
`module(**x)`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from ...core.errors import ArgumentError, check_int, check_known, convert_errors
from ...core.plugins import Catalogue
from ...core.random import torch_seed
from ...core.types import MAX_CLASSES
from .bert import Bert
from .cnn import CnnDropout, CnnP2, CnnP4
from .dense import Convex, Linear, Mlp, Regression
from .gpt import Gpt
from .resnet import ResNet18
from .text import Gru, Lstm, Text
from .vit import ViT

_BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "regression": Regression,
    "mlp": Mlp,
    "convex": Convex,
    "cnn-p1": CnnDropout,
    "cnn-p2": CnnP2,
    "cnn-p4": CnnP4,
    "cnn-pfl": partial(CnnDropout, init="xavier"),
    "lstm": Lstm,
    "gru": Gru,
    "resnet18": ResNet18,
    "vit": ViT,
    "text": Text,
    "bert": Bert,
    "gpt": Gpt,
}


def _adapt(name: str, found: Any, package: str) -> Callable[..., nn.Module]:
    """Return the network of an entry point in the group tunefree.models."""
    if not callable(found):
        raise ArgumentError(f"it must be a function that returns a module, got {found!r}")
    return cast(Callable[..., nn.Module], found)


NETS = Catalogue("model", "tunefree.models", _BUILT_IN, _adapt)
"""Every network by name; each takes `shape` and `classes`, and its own keyword arguments."""


def names() -> list[str]:
    """Return the names of the reference networks, sorted."""
    return sorted(NETS)


def build(
    name: str, *, shape: tuple[int, ...], classes: int, seed: int = 0, **args: Any
) -> nn.Module:
    """Return a newly initialised network; the same seed gives the same parameters.

    PyTorch's global generator is not changed.

    Args:
        name: One of `names()`.
        shape: Shape of one sample, without the batch axis.
        classes: Number of classes; 1 for one number, from `regression` or `mlp`.
        seed: Seed of the initialisation.
        **args: The network's own arguments, such as `hidden` of `mlp` or `stem` of `resnet18`.

    >>> net = build("mlp", shape=(1, 28, 28), classes=10)
    >>> sum(p.numel() for p in net.parameters())
    109386
    """
    check_known("model", name, NETS)
    known = set(inspect.signature(NETS[name]).parameters) - {"shape", "classes"}
    for arg in args:
        if not known:
            raise ArgumentError(f"Model {name!r} takes no arguments of its own, got {arg!r}.")
        check_known(f"argument of model {name!r}", arg, known)
    check_int("build", "seed", seed, 0)
    check_int("build", "classes", classes, below=MAX_CLASSES)
    with torch_seed(seed), torch.device("cpu"):
        if name in _BUILT_IN:
            return NETS[name](tuple(shape), classes, **args)
        with convert_errors(f"The model {name!r} of another package failed", ArgumentError):
            made = NETS[name](tuple(shape), classes, **args)
    if not isinstance(made, nn.Module):
        raise ArgumentError(f"The model {name!r} must be a torch.nn.Module, got {made!r}.")
    return made


def default_for(
    shape: tuple[int, ...] | Mapping[str, tuple[int, ...]],
    classes: int,
    dtype_is_integer: bool = False,
    name: str = "",
) -> str:
    """Return the name of the default network for a dataset.

    Args:
        shape: Shape of one sample; for a dict batch, the shapes by name.
        classes: Number of classes; below 2 the target is a real number.
        dtype_is_integer: Whether the inputs are token ids rather than real numbers.
        name: Name of the dataset, if it has one.

    >>> default_for((3, 32, 32), 10)
    'cnn-p4'
    >>> default_for((80,), 80, dtype_is_integer=True)
    'lstm'
    """
    if isinstance(shape, Mapping):
        return "text"
    if classes < 2:
        return "regression"
    if dtype_is_integer and len(shape) == 1:
        return "lstm"
    if name == "a9a":
        return "linear"
    if len(shape) == 3 and shape[0] > 1:
        return "cnn-p4"
    return "mlp"
