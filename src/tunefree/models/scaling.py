"""Standardised tables: a model of (x - mean) / scale as a model of x, and so with its outputs."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Read = Callable[[Any], Any]
ROWS, TOLERANCE = 64, 1e-3  # samples and error, relative to the largest output, of the check
EPS = 1e-30  # beside any variance nothing; PyTorch 2.11 refuses 0


def identity_scaling(columns: int, like: Tensor) -> Tensor:
    """Return the scaling (2, columns) that changes nothing, with the dtype and device of `like`."""
    return torch.stack([like.new_zeros(columns), like.new_ones(columns)])


def standardise(x: Tensor, scaling: Tensor) -> Tensor:
    """Return (x - mean) / scale of each column; `scaling` is (2, columns)."""
    return (x - scaling[0]) / scaling[1]


def fold_scaling(module: nn.Module, scaling: Tensor, read: Read = lambda out: out) -> nn.Module:
    """Return a module of raw inputs that is `module` of standardised inputs, in evaluation mode.

    Where linear layers take the inputs, their weights and biases absorb the scaling and the module
    keeps its form. Otherwise a `torch.nn.BatchNorm1d` with the means and variances comes first.
    `read` returns the tensor in the module's output.

    >>> layer, scaling = nn.Linear(2, 1), torch.tensor([[5.0, 100.0], [1.0, 50.0]])
    >>> x = torch.tensor([[4.0, 150.0]])
    >>> torch.allclose(fold_scaling(layer, scaling)(x), layer(standardise(x, scaling)), atol=1e-5)
    True
    """
    scaling = scaling.detach().to(next(module.parameters()).device)
    noise = torch.randn(ROWS, scaling.shape[1], generator=torch.Generator().manual_seed(0))
    z = noise.to(scaling)
    x = z * scaling[1] + scaling[0]
    folded = copy.deepcopy(module).eval()
    with torch.no_grad():
        for layer in _input_layers(folded, x):
            layer.weight.div_(scaling[1])
            layer.bias.sub_(layer.weight @ scaling[0])
        wanted, got = read(module.eval()(z)), read(folded(x))
        if bool((wanted - got).abs().max() <= TOLERANCE * wanted.abs().max()):
            return folded
    first = nn.BatchNorm1d(scaling.shape[1], eps=EPS, affine=False).to(scaling)
    first.load_state_dict(
        {"running_mean": scaling[0], "running_var": scaling[1] ** 2}, strict=False
    )
    return nn.Sequential(first, module).eval()


def restore_targets(output: Tensor, scaling: Tensor) -> Tensor:
    """Return outputs in the targets' own units; `scaling` is (2, targets)."""
    each = scaling.reshape(2, *output.shape[1:])
    return output * each[1] + each[0]


def fold_targets(module: nn.Module, scaling: Tensor, columns: int) -> nn.Module | None:
    """Return a module whose outputs are those of `module` in the targets' own units.

    The weight and bias of the last linear layer absorb the scaling. None if the module does not end
    in a linear layer with a bias and as many outputs as targets. It is a copy, in evaluation mode.

    >>> layer, scaling = nn.Linear(2, 1), torch.tensor([[150.0], [80.0]])
    >>> folded, x = fold_targets(layer, scaling, 2), torch.ones(1, 2)
    >>> torch.allclose(folded(x), restore_targets(layer(x), scaling))
    True
    """
    first = next(module.parameters())
    scaling = scaling.detach().to(first)
    noise = torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(0)).to(first)
    folded = copy.deepcopy(module).eval()
    with torch.no_grad():
        before = folded(noise)
        layer = _output_layer(folded, noise)
        if layer is None or layer.out_features != scaling.shape[1]:
            return None
        wanted = restore_targets(before, scaling)
        layer.weight.mul_(scaling[1][:, None])
        layer.bias.mul_(scaling[1]).add_(scaling[0])
        error, largest = (folded(noise) - wanted).abs().max(), wanted.abs().max()
    return folded if bool(error <= TOLERANCE * largest) else None


def _output_layer(module: nn.Module, x: Tensor) -> nn.Linear | None:
    """Return the linear layer with a bias whose output is the module's own."""
    calls, output = _linear_calls(module, x)
    if not isinstance(output, Tensor):
        return None
    last = [layer for layer, _, own in calls if own.data_ptr() == output.data_ptr()]
    return last[0] if len(last) == 1 else None


def _input_layers(module: nn.Module, x: Tensor) -> list[nn.Linear]:
    """Return the linear layers with a bias that are called with x itself."""
    calls, _ = _linear_calls(module, x)
    found = [layer for layer, own, _ in calls if own.data_ptr() == x.data_ptr()]
    return list(dict.fromkeys(layer for layer in found if layer.in_features == x.shape[1]))


def _linear_calls(
    module: nn.Module, x: Tensor
) -> tuple[list[tuple[nn.Linear, Tensor, Tensor]], Any]:
    """Return the linear layers with a bias, their inputs and outputs in module(x), and its output.

    All inputs and outputs are held, so that two of them have one address only if they share memory.
    """
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def note(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(layer, nn.Linear) and layer.bias is not None and args:
            calls.append((layer, args[0], output))

    hooks = [m.register_forward_hook(note) for m in module.modules() if isinstance(m, nn.Linear)]
    output = module(x)
    for hook in hooks:
        hook.remove()
    return calls, output
