"""Layout of a model's trainable tensors in the flat parameter vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable tensors, in their order in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each tensor."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @property
    def size(self) -> int:
        """Number of parameters, the papers' d."""
        return sum(self.sizes)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split (..., d) into views of the tensors' shapes; leading axes are kept."""
        lead = x.shape[:-1]
        parts = torch.split(x, self.sizes, dim=-1)
        return tuple(p.reshape((*lead, *s)) for p, s in zip(parts, self.shapes, strict=True))

    def join(self, parts: Sequence[Tensor], lead: int = 0) -> Tensor:
        """Invert `split`; `lead` is the number of leading axes."""
        return torch.cat([p.reshape(*p.shape[:lead], -1) for p in parts], dim=-1)
