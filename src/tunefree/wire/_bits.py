"""Bits and bytes of messages: little-endian numbers, unsigned ints of any width, sets."""

import struct

import numpy as np

from ..core.errors import DataError
from ..core.types import Array

RATIO = struct.Struct("<d")


def check_length(kind: str, data: bytes, want: int) -> None:
    """Refuse a message of another length."""
    if len(data) != want:
        raise DataError(f"This {kind} message must have {want} bytes, got {len(data)}.")


def check_header(kind: str, data: bytes, size: int) -> None:
    """Refuse a message that ends within its header."""
    if len(data) < size:
        raise DataError(f"A {kind} message must have at least {size} bytes, got {len(data)}.")


def read_ratio(kind: str, data: bytes) -> float:
    """Return the ratio at a message's head."""
    check_header(kind, data, RATIO.size)
    ratio: float = RATIO.unpack_from(data)[0]
    if not 0 < ratio <= 1:
        raise DataError(f"The ratio of a {kind} message must be in (0, 1], got {ratio!r}.")
    return ratio


def count_bytes(bits: int) -> int:
    """Return the number of bytes that hold this number of bits."""
    return (bits + 7) // 8


def pack_bits(parts: list[Array]) -> bytes:
    """Return bits (uint8, 0 or 1) as bytes, first bit lowest; zeros fill the last byte."""
    return np.packbits(np.concatenate(parts), bitorder="little").tobytes()


def read_bits(kind: str, data: bytes, count: int) -> Array:
    """Return the first `count` bits; the rest must be zeros."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count:].any():
        raise DataError(f"This {kind} message has bits set beyond its end.")
    return bits[:count]


def split_bits(values: Array, width: int) -> Array:
    """Return unsigned ints as bits, `width` each, lowest first.

    >>> split_bits(np.array([5, 2]), 3).tolist()
    [1, 0, 1, 0, 1, 0]
    """
    out = np.empty((values.size, width), np.uint8)
    for b in range(width):
        out[:, b] = (values >> b) & 1
    return out.reshape(-1)


def join_bits(bits: Array, width: int) -> Array:
    """Undo `split_bits`, for width > 0."""
    out = np.zeros(bits.size // width, np.int64)
    for b, column in enumerate(bits.reshape(-1, width).T):
        out |= column.astype(np.int64) << b
    return out


def _choose_index_width(size: int, k: int) -> int | None:
    """Return the bits of an index when `k` of `size` are listed; None where a bitmap is shorter."""
    width = (size - 1).bit_length()
    return width if k * width <= size else None


def measure_set(size: int, k: int) -> int:
    """Return the bits that say which `k` of `size` entries are meant.

    A list of ceil(log2 size) bits each or a bitmap, whichever is shorter; nothing for all of them.

    >>> measure_set(100, 5), measure_set(100, 50), measure_set(100, 100)
    (35, 100, 0)
    """
    if k == size:
        return 0
    width = _choose_index_width(size, k)
    return size if width is None else k * width


def encode_set(mask: Array) -> Array:
    """Return the bits of a set given as a mask."""
    size, k = mask.size, int(mask.sum())
    if k == size:
        return np.empty(0, np.uint8)
    width = _choose_index_width(size, k)
    return mask.astype(np.uint8) if width is None else split_bits(np.flatnonzero(mask), width)


def read_set(kind: str, bits: Array, size: int, k: int) -> Array:
    """Return the indices of a set, ascending; refuse what is not `k` of `size`."""
    if k == size:
        return np.arange(size)
    width = _choose_index_width(size, k)
    if width is None:
        found = np.flatnonzero(bits)
        if found.size != k:
            raise DataError(f"This {kind} message must mark {k} entries, got {found.size}.")
        return found
    found = join_bits(bits, width)
    if found[-1] >= size or (np.diff(found) <= 0).any():
        raise DataError(f"The indices in this {kind} message must ascend below {size}.")
    return found
