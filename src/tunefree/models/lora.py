"""LoRA: freeze a model and train low-rank corrections of some of its linear layers.

Hu et al., ICLR 2022, section 4. arXiv:2106.09685

    out = W x + b + scale B A x,     W, b frozen,   A: rank x in,   B: out x rank, zero at first

Differences from the paper: A is drawn as nn.Linear draws its weights, not from a Gaussian; the
factor alpha / r is one number, `scale`.

Clients that are batched (`batched.VmapEngine`) share W, which has no axis for clients: W x is one
product over all clients' rows, and only A and B are batched products.
"""

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import ArgumentError, check_int, check_positive
from ..core.random import torch_seed


class LowRankLinear(nn.Module):
    """A linear layer, which is frozen, plus a trainable low-rank correction that starts at zero."""

    def __init__(self, base: nn.Module, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), float(scale)
        weight = _weight(base)
        assert weight is not None
        outputs, inputs = weight.shape
        down = torch.empty(rank, inputs, device="cpu")  # the same numbers on any device
        nn.init.kaiming_uniform_(down, a=5**0.5)
        self.down = nn.Parameter(down.to(weight))  # A
        self.up = nn.Parameter(weight.new_zeros(outputs, rank))  # B

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the layer's output and the correction."""
        out: Tensor = self.base(x)
        small = self.scale * F.linear(x, self.down)  # scaled where there are few numbers
        return out + F.linear(small, self.up)


def _weight(layer: nn.Module) -> Tensor | None:
    """Return a linear layer's weight as (outputs, inputs), None for another layer.

    A Conv1D of GPT-2 (the reference network's or that of transformers) stores inputs x outputs.
    """
    if isinstance(layer, nn.Linear):
        return layer.weight
    weight = getattr(layer, "weight", None)
    if type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2:
        return weight.t()
    return None


def lora(
    module: nn.Module,
    rank: int = 8,
    targets: Sequence[str] = ("query", "value"),
    *,
    head: Sequence[str] = ("classifier",),
    scale: float = 1.0,
    seed: int = 0,
) -> nn.Module:
    """Return a copy of the model that trains only low-rank corrections and its head.

    All other parameters are frozen: they are neither trained nor sent. At the start the copy
    computes the same function as the model. Shared layers stay shared.

    Args:
        module: Any module; it is not changed.
        rank: Rank of each correction, >= 1.
        targets: Names of the linear layers to correct, with as much of their path as tells them
            apart ("c_proj", "attn.c_proj"); "*", "?" and "[...]" match as in file names. Layers are
            nn.Linear, or the Conv1D of GPT-2.
        head: Names of the submodules that are trained in full, likewise; () for none.
        scale: Factor of the corrections, > 0; alpha / r in the paper.
        seed: Seed of the corrections' initialisation.

    >>> net = nn.Sequential()
    >>> net.value, net.classifier = nn.Linear(100, 100), nn.Linear(100, 2)
    >>> small = lora(net, rank=2, targets=["value"])
    >>> sum(p.numel() for p in small.parameters() if p.requires_grad)
    602
    """
    check_int("lora", "rank", rank)
    check_int("lora", "seed", seed, 0)
    check_positive("lora", "scale", scale)
    module = copy.deepcopy(module).requires_grad_(False)
    named = module.named_modules(remove_duplicate=False)
    parts = [(path, part) for path, part in named if path]
    linear = [(path, part) for path, part in parts if _weight(part) is not None]
    _check_names("targets", targets, [path for path, _ in linear])
    _check_names("head", head, [path for path, _ in parts])
    done: dict[nn.Module, LowRankLinear] = {}
    with torch_seed(seed):
        for path, layer in linear:
            if _matches(path, targets) and layer not in done:
                done[layer] = LowRankLinear(layer, rank, scale)
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child in done and not isinstance(parent, LowRankLinear):
                parent._modules[name] = done[child]
    for path, part in parts:
        if _matches(path, head):
            part.requires_grad_(True)
    return module


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a module's path, or its end from a dot on, is one of the patterns.

    >>> [_matches("h.0.attn.c_proj", [p]) for p in ("c_proj", "attn.c_proj", "h.[12].*", "proj")]
    [True, True, False, False]
    """
    return any(fnmatchcase(path, p) or fnmatchcase(path, f"*.{p}") for p in patterns)


def _check_names(argument: str, names: Sequence[str], paths: list[str]) -> None:
    if isinstance(names, str) or any(not any(_matches(q, [n]) for q in paths) for n in names):
        known = sorted({path.rpartition(".")[2] for path in paths})
        raise ArgumentError(
            f"lora({argument}=...) must be a list of names from {', '.join(known)}, got {names!r}."
        )
