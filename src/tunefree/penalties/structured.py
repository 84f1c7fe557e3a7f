"""Penalties of whole tensors: groups that become zero together, and matrices of low rank.

Group lasso: Yuan & Lin, JRSS B 68(1), 2006. Nuclear norm: Cai, Candès & Shen, SIAM Journal on
Optimization 20(4), 2010 (singular value thresholding).

    GroupLasso:  h(x) = sum_g w_g |x_g|,   w_g = weight, or weight sqrt(size of g) if scaled
                 prox(v, alpha)_g = max(0, 1 - alpha w_g / |v_g|) v_g
    Nuclear:     h(x) = weight sum_tensors sum_r s_r(X),   X = U diag(s) V'
                 prox(v, alpha) = U diag(max(s - alpha weight, 0)) V'

Groups are "row": one for each index of a tensor's first axis, so an output unit's incoming
weights, a filter, or a single bias; or "layer": one for each tensor. X is a tensor with two or more
axes as (first axis, the rest); Nuclear does not change other tensors.

Differences from the paper: groups are not scaled by their size unless asked, and not
orthonormalised; the nuclear norm is over several matrices, and filters are read as matrices.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.fields import NonNegative
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

    weight: NonNegative = 1e-4
    groups: Literal["row", "layer"] = "row"
    scaled: bool = False

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
        total = x.new_zeros(x.shape[:-1])
        for group, weight in self._grouped(x, layout):
            total = total + weight * length(group).sum(-1)
        return total

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        self.check(alpha, "GroupLasso.prox")
        if alpha == 0 or self.weight == 0:
            return v
        parts = []
        for group, weight in self._grouped(v, layout):
            size = length(group)
            keep = torch.where(size == 0, 0.0, 1 - alpha * weight / size).clamp(min=0)
            parts.append(group * keep[..., None])
        return layout.join(parts, v.ndim - 1)


@dataclass(frozen=True)
class Nuclear(Penalty):
    """weight times the singular values of every weight matrix.

    Args:
        weight: How strong, >= 0.
    """

    weight: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        total = x.new_zeros(x.shape[:-1])
        for part, shape in zip(layout.split(x), layout.shapes, strict=True):
            if len(shape) >= 2:
                matrix, finite = _matrix(part, x.ndim - 1)
                norm = torch.linalg.svdvals(matrix).sum(-1)
                total = total + torch.where(finite[..., 0, 0], norm, float("nan"))
        return self.weight * total

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        self.check(alpha, "Nuclear.prox")
        if alpha == 0 or self.weight == 0:
            return v
        parts = []
        for part, shape in zip(layout.split(v), layout.shapes, strict=True):
            if len(shape) >= 2:
                matrix, finite = _matrix(part, v.ndim - 1)
                u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
                low = u * (s - alpha * self.weight).clamp(min=0)[..., None, :] @ vh
                part = torch.where(finite, low, part.reshape(low.shape))
            parts.append(part)
        return layout.join(parts, v.ndim - 1)


def _matrix(part: Tensor, lead: int) -> tuple[Tensor, Tensor]:
    """Return a tensor as a matrix for each row, 0 where the SVD would raise, and where not."""
    matrix = part.flatten(lead + 1)
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(finite, matrix, 0.0), finite
