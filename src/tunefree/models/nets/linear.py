"""Linear models: multinomial logistic regression, and least squares."""

import torch
from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class Linear(nn.Module):
    """Multinomial logistic regression: one dense layer with bias from all inputs to the logits.

    7,850 parameters for 28x28 -> 10 and 248 for A9A's 123 -> 2 (P4, "Linear"); P3 uses it for
    FEMNIST (48,670 for 62 classes). The loss is convex in the parameters.

    Args:
        shape: Shape of one sample; any, it is flattened.
        classes: Number of classes, >= 2.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.size = _shapes.flat_size("Linear", shape)
        self.head = nn.Linear(self.size, _shapes.check_classes("Linear", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, *shape) -> (B, classes)."""
        logits: Tensor = self.head(_shapes.check_batch("Linear", x, (self.size,)))
        return logits


class Regression(nn.Module):
    """Linear regression without intercept: (B, d) -> (B,), for the loss "mse".

    d parameters: 1,000 on P1's synthetic problem, as few as the problem has on
    P3's two-client toy. Starts at zero, so that the first point does not depend on the seed.

    Args:
        shape: Shape of one sample; any, it is flattened.
        classes: 1 (or 0): the target is one real number.
        bias: Whether to add an intercept; one more parameter.
    """

    def __init__(self, shape: tuple[int, ...], classes: int = 1, bias: bool = False) -> None:
        super().__init__()
        if classes not in (0, 1):
            raise ArgumentError(
                f"Regression(classes=...) must be 1 (one real-valued target), got {classes!r}; "
                "for labels use the 'linear' model."
            )
        self.size = _shapes.flat_size("Regression", shape)
        self.head = nn.Linear(self.size, 1, bias=bias)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictions: (B, *shape) -> (B,)."""
        out: Tensor = self.head(_shapes.check_batch("Regression", x, (self.size,)))
        return torch.squeeze(out, -1)
