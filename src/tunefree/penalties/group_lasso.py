"""The group lasso: whole units or layers become zero together.

Yuan & Lin, JRSS B 68(1), 2006.

    h(x) = sum_g w_g |x_g|,   w_g = weight, or weight sqrt(size of g) if scaled
    prox(v, alpha)_g = max(0, 1 - alpha w_g / |v_g|) v_g

Groups are "row": one for each index of a tensor's first axis, so an output unit's incoming
weights, a filter, or a single bias; or "layer": one for each tensor.

Differences from the paper: no scaling by the size unless asked; groups are not orthonormalised.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import check_argument, check_nonnegative, unknown_name
from ..core.layout import Layout
from .penalty import Penalty, length


@dataclass(frozen=True)
class GroupLasso(Penalty):
    """Sum of the groups' lengths.

    Args:
        weight: How strong, >= 0.
        groups: "row": first axis of every tensor, a bias entry by entry; "layer": every tensor.
        scaled: Whether a group counts sqrt(size) times, so that large ones are not favoured.
    """

    weight: float = 1e-4
    groups: Literal["row", "layer"] = "row"
    scaled: bool = False

    def __post_init__(self) -> None:
        check_nonnegative("GroupLasso", "weight", self.weight)
        if self.groups not in ("row", "layer"):
            raise unknown_name("GroupLasso groups", self.groups, ("row", "layer"))
        is_valid = isinstance(self.scaled, bool)
        check_argument("GroupLasso", "scaled", self.scaled, "True or False", is_valid)

    def _grouped(self, x: Tensor, layout: Layout) -> list[tuple[Tensor, float]]:
        """Return each tensor as (..., groups, size), with the weight of its groups."""
        out = []
        for part, shape, size in zip(layout.split(x), layout.shapes, layout.sizes, strict=True):
            count = shape[0] if shape and self.groups == "row" else 1
            size //= max(count, 1)
            group = part.reshape(*x.shape[:-1], count, size)
            out.append((group, self.weight * (size**0.5 if self.scaled else 1.0)))
        return out

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the weighted sum of the groups' lengths."""
        total = x.new_zeros(x.shape[:-1])
        for group, weight in self._grouped(x, layout):
            total = total + weight * length(group).sum(-1)
        return total

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return each group, shortened or zero."""
        self.check(alpha, "GroupLasso.prox")
        if alpha == 0 or self.weight == 0:
            return v
        parts = []
        for group, weight in self._grouped(v, layout):
            size = length(group)
            keep = torch.where(size == 0, 0.0, 1 - alpha * weight / size).clamp(min=0)
            parts.append(group * keep[..., None])
        return layout.join(parts, v.ndim - 1)
