"""The nuclear norm: weight matrices of low rank.

Cai, Candès & Shen, SIAM Journal on Optimization 20(4), 2010 (singular value thresholding).

    h(x) = weight sum_tensors sum_r s_r(X),   X = U diag(s) V'
    prox(v, alpha) = U diag(max(s - alpha weight, 0)) V'

X is a tensor with two or more axes as (first axis, the rest); other tensors are not changed.

Differences from the paper: several matrices, and filters read as matrices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import check_nonnegative
from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class Nuclear(Penalty):
    """weight times the singular values of every weight matrix.

    Args:
        weight: How strong, >= 0.
    """

    weight: float = 1e-4

    def __post_init__(self) -> None:
        check_nonnegative("Nuclear", "weight", self.weight)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the weighted sum of singular values."""
        total = x.new_zeros(x.shape[:-1])
        for part, shape in zip(layout.split(x), layout.shapes, strict=True):
            if len(shape) >= 2:
                matrix, finite = _matrix(part, x.ndim - 1)
                norm = torch.linalg.svdvals(matrix).sum(-1)
                total = total + torch.where(finite[..., 0, 0], norm, float("nan"))
        return self.weight * total

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return every matrix with its singular values lowered."""
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
