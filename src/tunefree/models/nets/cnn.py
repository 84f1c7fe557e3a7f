"""Small convolutional networks of the papers, each with its exact parameter count."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import ArgumentError, check_in_range
from . import _shapes


class CnnP2(nn.Module):
    """P2's network: two 5x5 convolutions (10, 20), each with ReLU and a 2x2 pool, dense 50.

    21,840 parameters for 1x28x28 -> 10 (260 + 5,020 + 16,050 + 510). The paper's text says three
    convolutions; its count, 21,840, is this network with two, which was PyTorch's example for
    MNIST. The example drops half of the second convolution's channels and of the dense units
    (`dropout=0.5`) and takes inputs of mean 0 and deviation 1.

    Args:
        shape: (channels, height, width) or (height, width), sides >= 16.
        dropout: Probability of dropping a channel and a dense unit, in [0, 1).
    """

    def __init__(self, shape: tuple[int, ...], classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_in_range("CnnP2", "dropout", dropout, 0, 1)
        self.shape = _shapes.image_shape("CnnP2", shape, smallest=16)
        channels, high, wide = self.shape
        self.conv1 = nn.Conv2d(channels, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(20 * (((high - 4) // 2 - 4) // 2) * (((wide - 4) // 2 - 4) // 2), 50)
        self.fc2 = nn.Linear(50, _shapes.check_classes("CnnP2", classes))
        self.drop1 = nn.Dropout2d(dropout) if dropout else nn.Identity()
        self.drop2 = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, C, H, W) -> (B, classes)."""
        x = _shapes.check_batch("CnnP2", x, self.shape)
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = self.drop1(F.max_pool2d(self.conv2(x).relu(), 2))
        logits: Tensor = self.fc2(self.drop2(self.fc1(x.flatten(1)).relu()))
        return logits


class CnnP4(nn.Module):
    """P4's network: two padded 3x3 convolutions (16, 32), each with ReLU and a 2x2 pool, dense 128.

    268,362 parameters for grey and 268,650 for colour images with 10 classes, both at 32x32: images
    with smaller sides (MNIST's 28x28) are padded with zeros to 32x32.

    Args:
        shape: (channels, height, width) or (height, width).
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.shape = _shapes.image_shape("CnnP4", shape, smallest=1)
        channels, high, wide = self.shape
        tall, broad = max(high, 32), max(wide, 32)
        left, top = (broad - wide) // 2, (tall - high) // 2
        self.pad = (left, broad - wide - left, top, tall - high - top)
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * (tall // 2 // 2) * (broad // 2 // 2), 128)
        self.fc2 = nn.Linear(128, _shapes.check_classes("CnnP4", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, C, H, W) -> (B, classes)."""
        x = F.pad(_shapes.check_batch("CnnP4", x, self.shape), self.pad)
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        logits: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return logits


class CnnDropout(nn.Module):
    """Two 3x3 convolutions (32, 64) without padding, one 2x2 pool, dense 128, dropout .25 and .5.

    `cnn-p1` is P1's FEMNIST network: 1,206,590 parameters for 1x28x28 -> 62, of which the dense
    layer 9,216 -> 128 has the 1,179,776 of the paper's table (9,216 = 64 x 12 x 12 needs the pool
    that the table leaves out). `cnn-pfl` is the same network at CIFAR-10's size with pfl-research's
    initialisation: 1,626,442 for 3x32x32 -> 10. The count settles the padding: none, so that the
    dense layer sees 64 x 14 x 14; one padded convolution would give 1,864,010, two 2,117,962.

    Args:
        shape: (channels, height, width) or (height, width), sides >= 6.
        init: "torch" keeps PyTorch's defaults; "xavier" draws all weights Xavier-uniform, biases
            by default.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        init: Literal["torch", "xavier"] = "torch",
    ) -> None:
        super().__init__()
        if init not in ("torch", "xavier"):
            raise ArgumentError(f"CnnDropout(init=...) must be 'torch' or 'xavier', got {init!r}.")
        self.shape = _shapes.image_shape("CnnDropout", shape, smallest=6)
        channels, high, wide = self.shape
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.drop1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * ((high - 4) // 2) * ((wide - 4) // 2), 128)
        self.drop2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, _shapes.check_classes("CnnDropout", classes))
        if init == "xavier":
            for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, C, H, W) -> (B, classes)."""
        x = self.conv1(_shapes.check_batch("CnnDropout", x, self.shape)).relu()
        x = self.drop1(F.max_pool2d(self.conv2(x).relu(), 2))
        logits: Tensor = self.fc2(self.drop2(self.fc1(x.flatten(1)).relu()))
        return logits
