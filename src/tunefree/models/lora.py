"""LoRA: freeze a model and train low-rank corrections of some of its linear layers.

Hu et al., ICLR 2022, section 4. arXiv:2106.09685

    out = W x + b + scale B A x,     W, b frozen,   A: rank x in,   B: out x rank, zero at first

Differences from the paper: A is drawn as nn.Linear draws its weights, not from a Gaussian; the
factor alpha / r is one number, `scale`.
"""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import ArgumentError, check_int, check_positive


class LowRankLinear(nn.Module):
    """A linear layer, which is frozen, plus a trainable low-rank correction that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), float(scale)
        down = torch.empty(rank, base.in_features, device="cpu")  # the same numbers on any device
        nn.init.kaiming_uniform_(down, a=5**0.5)
        self.down = nn.Parameter(down.to(base.weight))  # A
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))  # B

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the layer's output and the correction."""
        out: Tensor = self.base(x)
        return out + self.scale * F.linear(F.linear(x, self.down), self.up)


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
        targets: Names of the linear layers to correct, without their path.
        head: Names of the submodules that are trained in full, without their path; () for none.
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
    parts = [(path.rpartition(".")[2], part) for path, part in named if path]
    linear = [(name, part) for name, part in parts if isinstance(part, nn.Linear)]
    _check_names("targets", targets, {name for name, _ in linear})
    _check_names("head", head, {name for name, _ in parts})
    done: dict[nn.Module, LowRankLinear] = {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, layer in linear:
            if name in targets and layer not in done:
                done[layer] = LowRankLinear(layer, rank, scale)
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child in done and not isinstance(parent, LowRankLinear):
                parent._modules[name] = done[child]
    for name, part in parts:
        if name in head:
            part.requires_grad_(True)
    return module


def _check_names(argument: str, names: Sequence[str], known: set[str]) -> None:
    if isinstance(names, str) or not set(names) <= known:
        raise ArgumentError(
            f"lora({argument}=...) must be a list of names from {', '.join(sorted(known))}, "
            f"got {names!r}."
        )
