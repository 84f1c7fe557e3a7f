"""ResNet-18 with group normalisation in place of batch normalisation."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016, figure 5 left), with GroupNorm.

    (B, inputs, H, W) -> (B, width, H/stride, W/stride)
    """

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.GroupNorm(groups, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)) + self.shortcut(x)
        return y.relu()


class ResNet18(nn.Module):
    """ResNet-18 (He et al., CVPR 2016) with GroupNorm (Wu & He, ECCV 2018), as P0, P1, P3 and P4.

    With `stem="cifar"` (3x3, stride 1; P0, P1, P3) 11,173,962 parameters for 3x32x32 -> 10 and
    11,220,132 for 100 classes. With `stem="imagenet"` (7x7, stride 2, then a 3x3 pool; P4)
    11,175,370 for one channel and 11,181,642 for three, both with 10 classes. Normalisations start
    as the identity.

    Args:
        shape: (channels, height, width) or (height, width).
        stem: The first layer, "cifar" or "imagenet".
        groups: Groups of each normalisation; must divide `width`. 2 in P3's released code.
        width: Channels of the first stage, 64 in the paper; later stages double it.
        init: How convolutions are drawn: "kaiming" is Kaiming-normal by fan-out (He et al.),
            "torch" PyTorch's default, uniform with variance 1 / (3 fan-in), as the code of P3
            and that of FedExP, which P1 follows. A convolution that keeps its number of channels
            has 6 times the squared length with "kaiming".
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        stem: Literal["cifar", "imagenet"] = "cifar",
        groups: int = 2,
        width: int = 64,
        init: Literal["kaiming", "torch"] = "kaiming",
    ) -> None:
        super().__init__()
        _shapes.check_sizes("ResNet18", groups=groups, width=width)
        if init not in ("kaiming", "torch"):
            raise ArgumentError(f"ResNet18(init=...) must be 'kaiming' or 'torch', got {init!r}.")
        if stem not in ("cifar", "imagenet"):
            raise ArgumentError(f"ResNet18(stem=...) must be 'cifar' or 'imagenet', got {stem!r}.")
        if width % groups:
            raise ArgumentError(
                f"ResNet18(groups=...) must divide the width {width}, got {groups!r}."
            )
        self.shape = _shapes.image_shape("ResNet18", shape, smallest=8)
        self.shrink = stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if self.shrink else (3, 1, 1)
        self.conv = nn.Conv2d(self.shape[0], width, kernel, stride, padding, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        blocks = []
        inputs = width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(_Block(inputs, width << stage, stride, groups))
                inputs = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, _shapes.check_classes("ResNet18", classes))
        for module in self.modules():
            if init == "kaiming" and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, C, H, W) -> (B, classes)."""
        x = self.norm(self.conv(_shapes.check_batch("ResNet18", x, self.shape))).relu()
        if self.shrink:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        logits: Tensor = self.head(self.blocks(x).mean(dim=(2, 3)))
        return logits
