"""Checks of sizes and shapes that the networks share."""

from math import prod

from torch import Tensor

from ...core.errors import ArgumentError, check_int


def check_sizes(who: str, **values: int) -> None:
    """Raise an ArgumentError unless every size is an int >= 1."""
    for name, value in values.items():
        check_int(who, name, value)


def check_classes(who: str, classes: int) -> int:
    """Return the number of classes, after checking that it is an int >= 2."""
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ArgumentError(
            f"{who}(classes=...) must be an int >= 2, got {classes!r}; "
            "for real-valued targets use the 'regression' model."
        )
    return classes


def flat_size(who: str, shape: tuple[int, ...]) -> int:
    """Return the number of elements of one sample of any shape."""
    if len(shape) == 0 or min(shape) < 1:
        raise ArgumentError(f"{who}(shape=...) must hold sizes >= 1, got {shape!r}.")
    return prod(shape)


def image_shape(who: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of one image; (height, width) means one channel."""
    full = (1, *shape) if len(shape) == 2 else shape
    if len(full) != 3 or min(full) < 1 or min(full[1:]) < smallest:
        raise ArgumentError(
            f"{who}(shape=...) must be (channels, height, width) or (height, width) with height "
            f"and width >= {smallest}, got {shape!r}."
        )
    return full[0], full[1], full[2]


def sequence_length(who: str, shape: tuple[int, ...]) -> int:
    """Return the number of tokens of one sample, after checking that the shape is (length,)."""
    if len(shape) != 1 or shape[0] < 1:
        raise ArgumentError(f"{who}(shape=...) must be (length,), got {shape!r}.")
    return shape[0]


def check_batch(who: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a floating-point batch as (B, *shape).

    Accepts flat samples and additional axes of size 1, but no other order of the axes (such as
    channels last).
    """
    sample = tuple(x.shape[1:])
    same = [s for s in sample if s != 1] == [s for s in shape if s != 1]
    flat_ok = (len(shape) == 1 or len(sample) == 1) and prod(sample) == prod(shape)
    if x.ndim < 2 or not (same or flat_ok):
        wanted = f"(B, {', '.join(map(str, shape))})"
        raise ArgumentError(f"{who} takes batches of shape {wanted}, got {tuple(x.shape)!r}.")
    if not x.is_floating_point():
        raise ArgumentError(f"{who} takes floating-point inputs, got {x.dtype}.")
    return x.reshape(x.shape[0], *shape)


def check_tokens(who: str, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return a batch of token ids, after checking that it is an integer (B, length) as its mask."""
    if mask is not None and mask.shape != ids.shape:
        shapes = f"{tuple(ids.shape)!r}, got {tuple(mask.shape)!r}"
        raise ArgumentError(f"{who} takes a mask of the ids' shape {shapes}.")
    if ids.ndim != 2:
        raise ArgumentError(f"{who} takes batches of shape (B, length), got {tuple(ids.shape)!r}.")
    if ids.is_floating_point():
        raise ArgumentError(f"{who} takes int64 tokens, got {ids.dtype}.")
    return ids
