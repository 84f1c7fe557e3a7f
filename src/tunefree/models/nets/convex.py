"""A two-layer network whose first layer is frozen, so that training is a convex problem."""

from torch import Tensor, nn

from . import _shapes


class Convex(nn.Module):
    """Frozen random ReLU features and a trainable linear head (P0, task T1, Fashion-MNIST).

    For 28x28 -> 10: 81,930 trainable parameters (8,192 x 10 + 10) of 6,512,650 in all. The first
    layer has `requires_grad=False`: it is neither trained nor sent.

    Args:
        shape: Shape of one sample; any, it is flattened.
        classes: Number of classes, >= 2.
        hidden: Number of frozen features, 8,192 in the paper.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 8192) -> None:
        super().__init__()
        _shapes.check_sizes("Convex", hidden=hidden)
        self.size = _shapes.flat_size("Convex", shape)
        self.features = nn.Linear(self.size, hidden).requires_grad_(False)
        self.head = nn.Linear(hidden, _shapes.check_classes("Convex", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, *shape) -> (B, classes)."""
        features = self.features(_shapes.check_batch("Convex", x, (self.size,))).relu()
        logits: Tensor = self.head(features)
        return logits
