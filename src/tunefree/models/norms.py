"""Batch normalisation is refused, and can be converted to group normalisation.

Running statistics are no part of a client's gradient, and a batch's statistics couple its samples.
Group normalisation (Wu & He, ECCV 2018, arXiv:1803.08494) has neither problem; the papers that
train ResNets (P0, P1, P3) use it with 2 groups.
"""

import copy
from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..core.errors import ArgumentError, check_int


def groupnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """Return a copy of the model with every BatchNorm replaced by a GroupNorm.

    The copy keeps the affine weights (and their `requires_grad`), eps and the training flag, but
    not the running statistics: a trained model must be trained further. Shared layers stay shared.
    BatchNorm1d, 2d, 3d and SyncBatchNorm are converted.

    Args:
        model: Any module; it is not changed.
        groups: Groups per layer, >= 1; a layer whose number of channels it does not divide gets the
            greatest common divisor of both.

    >>> type(groupnorm(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)))[1]).__name__
    'GroupNorm'
    """
    check_int("groupnorm", "groups", groups)
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.num_features < 1:
            raise ArgumentError(
                f"groupnorm(model=...) must know its channels, but {_place(path)} is a "
                f"{type(module).__name__} that has not seen a batch; run one through the model "
                "first."
            )
    model = copy.deepcopy(model)
    done: dict[nn.Module, nn.GroupNorm] = {
        module: _to_groupnorm(module, groups)
        for module in model.modules()
        if isinstance(module, _BatchNorm)
    }
    if model in done:
        return done[model]
    for module in model.modules():
        for name, child in module._modules.items():
            if child in done:
                module._modules[name] = done[child]
    return model


def _to_groupnorm(old: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = old.num_features
    new = nn.GroupNorm(gcd(groups, channels), channels, eps=old.eps, affine=old.affine)
    new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def refuse_batchnorm(model: nn.Module) -> None:
    """Raise an ArgumentError if a layer of the model uses statistics of a batch.

    >>> refuse_batchnorm(nn.Sequential(nn.Linear(4, 2)))
    """
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ArgumentError(
                f"Cannot train this model: {_place(path)} is a {type(module).__name__}, whose "
                "statistics mix the samples of a batch and belong to no client; "
                "use tf.models.groupnorm(model), which replaces it by GroupNorm."
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ArgumentError(
                f"Cannot train this model: {_place(path)} is a {type(module).__name__} with "
                "track_running_stats=True, whose running statistics belong to no client; "
                "build it with track_running_stats=False."
            )


def _place(path: str) -> str:
    return f"layer {path!r}" if path else "the model itself"
