"""Checks that the networks share: every wrong shape gets one sentence."""

from math import prod

from torch import Tensor

from ...core.errors import ArgumentError, check_int


def positive(who: str, **values: int) -> None:
    """Refuse sizes that are not whole numbers of at least 1."""
    for name, value in values.items():
        check_int(who, name, value)


def labels(who: str, classes: int) -> int:
    """Return the number of classes of a classifier; one class is a regression, not ours."""
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ArgumentError(
            f"{who}(classes=...) must be an int >= 2, got {classes!r}; "
            "for real-valued targets use the 'regression' model."
        )
    return classes


def flat(who: str, shape: tuple[int, ...]) -> int:
    """Return the numbers in one sample of any shape."""
    if len(shape) == 0 or min(shape) < 1:
        raise ArgumentError(f"{who}(shape=...) must hold sizes >= 1, got {shape!r}.")
    return prod(shape)


def image(who: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of one image; (height, width) has one channel."""
    full = (1, *shape) if len(shape) == 2 else shape
    if len(full) != 3 or min(full) < 1 or min(full[1:]) < smallest:
        raise ArgumentError(
            f"{who}(shape=...) must be (channels, height, width) or (height, width) with height "
            f"and width >= {smallest}, got {shape!r}."
        )
    return full[0], full[1], full[2]


def sequence(who: str, shape: tuple[int, ...]) -> int:
    """Return the length of one sequence of tokens."""
    if len(shape) != 1 or shape[0] < 1:
        raise ArgumentError(f"{who}(shape=...) must be (length,), got {shape!r}.")
    return shape[0]


def real(who: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the batch as (B, *shape), after a check that it holds such samples.

    Flat samples and axes of size 1 pass; another order of the axes (channels last) does not.
    """
    sample = tuple(x.shape[1:])
    same = [s for s in sample if s != 1] == [s for s in shape if s != 1]
    flat_ok = (len(shape) == 1 or len(sample) == 1) and prod(sample) == prod(shape)
    if x.ndim < 2 or not (same or flat_ok):
        raise ArgumentError(
            f"{who} takes batches of shape (B, {', '.join(map(str, shape))}), "
            f"got {tuple(x.shape)!r}."
        )
    if not x.is_floating_point():
        raise ArgumentError(f"{who} takes floating-point inputs, got {x.dtype}.")
    return x.reshape(x.shape[0], *shape)


def tokens(who: str, ids: Tensor) -> Tensor:
    """Return the batch of token numbers, after a check that it is one."""
    if ids.ndim != 2:
        raise ArgumentError(f"{who} takes batches of shape (B, length), got {tuple(ids.shape)!r}.")
    if ids.is_floating_point():
        raise ArgumentError(f"{who} takes whole numbers (int64 tokens), got {ids.dtype}.")
    return ids
