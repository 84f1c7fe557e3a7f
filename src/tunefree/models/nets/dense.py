"""Networks of dense layers: logistic and linear regression, perceptrons, a convex problem."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class Linear(nn.Module):
    """Multinomial logistic regression: one dense layer with bias from all inputs to the logits.

    7,850 parameters for 28x28 -> 10 and 248 for A9A's 123 -> 2 (P4, "Linear"); P3 uses it for
    FEMNIST (48,670 for 62 classes). The loss is convex in the parameters.
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


class Mlp(nn.Module):
    """Dense layers with ReLU between them: in-128-64-out by default (P4, "MLP").

    109,386 parameters for 28x28 -> 10.

    Args:
        classes: Number of outputs; 1 for real-valued targets, or one logit for two classes.
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
        _shapes.check_sizes("Mlp", classes=classes)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, *shape) -> (B, classes)."""
        logits: Tensor = self.head(self.body(_shapes.check_batch("Mlp", x, (self.size,))))
        return logits


class Convex(nn.Module):
    """Frozen random ReLU features and a trainable linear head (P0, task T1, Fashion-MNIST).

    For 28x28 -> 10: 81,930 trainable parameters (8,192 x 10 + 10) of 6,512,650 in all. The first
    layer has `requires_grad=False`: it is neither trained nor sent.

    Args:
        hidden: Number of frozen features, 8,192 in the paper.
        outputs: Number of logits, at least the number of classes, which it is by default. What the
            paper measured of memory is that of 100 (819,300 trainable parameters).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        hidden: int = 8192,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        wide = classes if outputs is None else outputs
        _shapes.check_sizes("Convex", hidden=hidden, outputs=wide)
        if wide < _shapes.check_classes("Convex", classes):
            raise ArgumentError(
                f"Convex(outputs=...) must be at least the {classes} classes, got {outputs!r}."
            )
        self.size = _shapes.flat_size("Convex", shape)
        self.features = nn.Linear(self.size, hidden).requires_grad_(False)
        self.head = nn.Linear(hidden, wide)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, *shape) -> (B, outputs)."""
        features = self.features(_shapes.check_batch("Convex", x, (self.size,))).relu()
        logits: Tensor = self.head(features)
        return logits
