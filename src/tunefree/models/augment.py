"""Image augmentation of whole batches on the device, with counter-based random numbers.

The usual CIFAR recipe (He et al., CVPR 2016, section 4.2): pad with zeros, crop the original size
at a random position, mirror horizontally with probability 1/2. A sample's augmentation depends only
on its own key, not on the rest of its batch, the chunk or the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_int, check_known
from ..core.random import below


@dataclass(frozen=True)
class CropFlip:
    """Random crop after zero padding, and a random horizontal flip; shapes do not change.

    Args:
        pad: Pixels of padding on every side, >= 0; 0 means no crop. The padding is 0 in the units
            of the input, i.e. the mean after the usual normalisation.
        flip: Whether to mirror half of the images.

    >>> CropFlip()(torch.ones(2, 3, 8, 8), torch.tensor([1, 2])).shape
    torch.Size([2, 3, 8, 8])
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_int("CropFlip", "pad", self.pad, 0)

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return the augmented images.

        Args:
            x: Images (B, C, H, W), or (m, B, C, H, W) for m clients.
            key: One int64 key per image: (B,) or (m, B).
        """
        if x.ndim < 4 or key.shape != x.shape[:-3]:
            raise ArgumentError(
                "CropFlip takes images of shape (..., C, H, W) with one key each, got "
                f"{tuple(x.shape)!r} with keys of shape {tuple(key.shape)!r}."
            )
        if self.pad == 0 and not self.flip:
            return x
        high, wide = x.shape[-2:]
        row = torch.arange(high, device=x.device).expand(*key.shape, high)  # source pixels
        col = torch.arange(wide, device=x.device).expand(*key.shape, wide)
        draw = key.unsqueeze(-1)
        if self.flip:
            mirrored = below(draw, draw.new_zeros(()), 2) == 1
            col = torch.where(mirrored, wide - 1 - col, col)
        if self.pad:
            row = row + below(draw, draw.new_full((), 1), 2 * self.pad + 1) - self.pad
            col = col + below(draw, draw.new_full((), 2), 2 * self.pad + 1) - self.pad
        in_row, in_col = (row >= 0) & (row < high), (col >= 0) & (col < wide)
        inside = in_row.unsqueeze(-1) & in_col.unsqueeze(-2)  # (..., H, W)
        source = row.clamp(0, high - 1).unsqueeze(-1) * wide + col.clamp(0, wide - 1).unsqueeze(-2)
        flat = source.flatten(-2).unsqueeze(-2).expand(*x.shape[:-2], high * wide)
        moved = x.flatten(-2).gather(-1, flat).reshape(x.shape)
        return torch.where(inside.unsqueeze(-3), moved, torch.zeros_like(moved))


AUGMENTATIONS: dict[str, CropFlip | None] = {"none": None, "crop-flip": CropFlip()}
"""The augmentations by their names in settings."""


def parse(text: str) -> CropFlip | None:
    """Return the augmentation of a name, None for "none".

    >>> parse("crop-flip")
    CropFlip(pad=4, flip=True)
    """
    check_known("augmentation", text, AUGMENTATIONS)
    return AUGMENTATIONS[text]


def name_of(augment: CropFlip | None) -> str:
    """Return the name that `parse` reads as this augmentation.

    Raises:
        ArgumentError: If it has no name.
    """
    for name, known in AUGMENTATIONS.items():
        if known == augment:
            return name
    raise ArgumentError(f"In a federation, augment must be 'none' or 'crop-flip', got {augment}.")
