"""Multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class Mlp(nn.Module):
    """Dense layers with ReLU between them: in-128-64-out by default (P4, "MLP").

    109,386 parameters for 28x28 -> 10.

    Args:
        shape: Shape of one sample; any, it is flattened.
        classes: Number of classes, >= 2.
        hidden: Widths of the hidden layers, at least one.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (128, 64)
    ) -> None:
        super().__init__()
        if len(hidden) == 0:
            raise ArgumentError(
                f"Mlp(hidden=...) must name at least one width, got {hidden!r}; "
                "without hidden layers use the 'linear' model."
            )
        for width in hidden:
            _shapes.check_sizes("Mlp", hidden=width)
        self.size = _shapes.flat_size("Mlp", shape)
        widths = (self.size, *hidden)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], _shapes.check_classes("Mlp", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, *shape) -> (B, classes)."""
        logits: Tensor = self.head(self.body(_shapes.check_batch("Mlp", x, (self.size,))))
        return logits
