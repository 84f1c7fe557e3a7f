"""Frozen features, computed once instead of in every step.

A model head(body(x)) with a frozen body has the outputs, losses and gradients of head(z) at
z = body(x). The head is the smallest child module that holds every trainable parameter, the body
all that comes before it; nothing may come after it.
"""

import copy

import torch
from torch import Tensor, nn

from tunefree.core.errors import ArgumentError
from tunefree.core.types import Inputs, Samples, map_inputs
from tunefree.data.federation import Federation

ROWS = 4096  # rows mapped at once


def features(
    model: nn.Module, federation: Federation, device: torch.device | str = "cpu"
) -> tuple[nn.Module, Federation]:
    """Return the model's trainable head, and the federation as the frozen body sees it.

    Args:
        model: A module whose trainable parameters are all in one child that ends it.
        federation: Data that the model takes.
        device: Where the features are computed; they are returned on the host.
    """
    name = _head(model)
    body = copy.deepcopy(model).to(device).eval()
    head = body.get_submodule(name)
    caught: list[Tensor] = []
    head.register_forward_pre_hook(lambda _, inputs: caught.extend(inputs))

    @torch.no_grad()
    def seen(inputs: Inputs) -> tuple[Tensor, Tensor]:
        caught.clear()
        output = _call(body, map_inputs(lambda t: t.to(device), inputs))
        if len(caught) != 1:
            raise ArgumentError(
                f"features(model=...) must call its trainable part {name!r} once, with one tensor; "
                f"got {len(caught)} in {type(model).__name__}."
            )
        return caught[0], output

    def map_pair(pair: Samples | None) -> Samples | None:
        if pair is None:
            return None
        z = []
        for low in range(0, len(pair[1]), ROWS):
            part = map_inputs(lambda t, low=low: t[low : low + ROWS], pair[0])  # type: ignore[misc]
            z.append(seen(part)[0].cpu())
        return torch.cat(z), pair[1]

    z, output = seen(map_inputs(lambda t: t[:8], federation.x))
    with torch.no_grad():
        again = head(z)
    if again.shape != output.shape or not torch.allclose(again, output):
        raise ArgumentError(
            f"features(model=...) must end with its trainable part {name!r}, but "
            f"{type(model).__name__} changes what that returns."
        )
    rows = map_pair((federation.x, federation.y))
    assert rows is not None
    out = Federation(
        *rows,
        federation.owners(),
        test=map_pair(federation.test),
        held=map_pair(federation.held),
        classes=federation.classes,
        clients=federation.clients,
        name=federation.name,
    )
    tail = copy.deepcopy(model.get_submodule(name))
    return tail, out.replace(names=federation.names, test_owner=federation.test_owner)


def _head(model: nn.Module) -> str:
    """Return the name of the smallest child with every trainable parameter."""
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    found = [
        name
        for name, child in model.named_modules()
        if name and trainable and trainable <= {id(p) for p in child.parameters()}
    ]
    if not found:
        raise ArgumentError(
            "features(model=...) must have its trainable parameters in one child module and the "
            f"rest frozen, got {type(model).__name__}."
        )
    head: str = max(found, key=lambda name: name.count("."))
    for name, child in model.named_modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and not f"{name}.".startswith(
            f"{head}."
        ):
            raise ArgumentError(
                f"features(model=...) cannot compute once what has dropout in it, got {name!r} "
                f"in {type(model).__name__}."
            )
    return head


def _call(module: nn.Module, inputs: Inputs) -> Tensor:
    if isinstance(inputs, dict):
        return module(**inputs)  # type: ignore[no-any-return]
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)  # type: ignore[no-any-return]
