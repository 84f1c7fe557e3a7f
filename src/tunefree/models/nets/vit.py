"""A small vision transformer, with attention in plain operations."""

from typing import Literal

import torch
from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class _Layer(nn.Module):
    """One pre-norm transformer layer: attention, then two dense layers with GELU.

    Scores are divided by the root of the width per head, or, if `whole`, of the whole width; then
    GELU also follows the second dense layer.
    """

    def __init__(self, width: int, heads: int, hidden: int, whole: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width if whole else width // heads) ** -0.5
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        last = [nn.GELU()] if whole else []
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), *last
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x))  # (B, tokens, width)
        x = x + self.mlp(self.norm2(x))
        return x

    def _attend(self, x: Tensor) -> Tensor:
        # softmax(scale q k^T) v, in plain products: see ViT's docstring
        b, t, width = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * self.scale) @ k.transpose(-1, -2)  # (B, heads, t, t)
        mixed = scores.softmax(dim=-1) @ v
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, width))
        return y


class ViT(nn.Module):
    """Vision transformer (Dosovitskiy et al., ICLR 2021) for CIFAR-sized images.

    810,890 parameters for 3x32x32 -> 10: 4x4 patches, 6 pre-norm layers of width 128 with 4 heads
    and dense width 256, learned positions, mean over tokens, no dropout. P1 (figure 3, table 8)
    has the network of the repository omihub777/ViT-CIFAR: `variant="vit-cifar"`, 7 layers of width
    384 with 12 heads and dense width 384, 6,268,810 parameters for 10 classes.

    Attention is plain products and a softmax: PyTorch's fused one (2.13) has no batching rule on
    the CPU, where vmap falls back to a loop and warns.

    Args:
        shape: (channels, height, width) or (height, width), sides divisible by `patch`.
        patch: Side of a patch.
        width: Features per token.
        layers: Number of layers.
        heads: Attention heads; must divide `width`.
        hidden: Width between the two dense layers of each layer.
        variant: "plain", or "vit-cifar": the head reads a class token instead of the mean, token
            and positions start as N(0, 1) instead of N(0, 0.02^2), scores are divided by the root
            of the whole width, and GELU also follows the second dense layer.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        patch: int = 4,
        width: int = 128,
        layers: int = 6,
        heads: int = 4,
        hidden: int = 256,
        variant: Literal["plain", "vit-cifar"] = "plain",
    ) -> None:
        super().__init__()
        if variant not in ("plain", "vit-cifar"):
            raise ArgumentError(
                f"ViT(variant=...) must be 'plain' or 'vit-cifar', got {variant!r}."
            )
        _shapes.check_sizes(
            "ViT", patch=patch, width=width, layers=layers, heads=heads, hidden=hidden
        )
        if width % heads:
            raise ArgumentError(f"ViT(heads=...) must divide the width {width}, got {heads!r}.")
        self.shape = _shapes.image_shape("ViT", shape, smallest=patch)
        channels, high, wide = self.shape
        if high % patch or wide % patch:
            raise ArgumentError(
                f"ViT(patch=...) must divide the image's sides {high} and {wide}, got {patch!r}."
            )
        self.patch = patch
        self.embed = nn.Linear(channels * patch * patch, width)
        cited = variant == "vit-cifar"
        tokens, deviation = (high // patch) * (wide // patch), 1.0 if cited else 0.02
        self.token = nn.Parameter(torch.randn(1, width)) if cited else None
        self.position = nn.Parameter(torch.randn(tokens + cited, width) * deviation)
        self.layers = nn.Sequential(*(_Layer(width, heads, hidden, cited) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _shapes.check_classes("ViT", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (B, C, H, W) -> (B, classes)."""
        x = _shapes.check_batch("ViT", x, self.shape)
        b, c, high, wide = x.shape
        p = self.patch
        x = x.reshape(b, c, high // p, p, wide // p, p).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(x.reshape(b, (high // p) * (wide // p), c * p * p))
        if self.token is not None:
            x = torch.cat([self.token.expand(b, 1, -1), x], dim=1)
        x = self.norm(self.layers(x + self.position))  # (B, tokens, width)
        logits: Tensor = self.head(x.mean(dim=1) if self.token is None else x[:, 0])
        return logits
