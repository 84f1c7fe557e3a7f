"""What travels between server and nodes: plain data, and nothing that could run.

A parcel has facts (words and numbers that say what it is), arrays (as raw bytes of a declared type
and shape, or as the bytes of a wire), scalars (channels of one number) and measurements (numbers
for the history). Flower carries the four as records; a test can carry them as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.types import Channels
from ..wire._bits import number_bytes, read_numbers

HeaderValue = str | int | float
Number = float | list[float]


@dataclass(frozen=True)
class EncodedArray:
    """An array as bytes: its own numbers, little-endian ("dense"), or a wire's code ("wire")."""

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: bytes


@dataclass(frozen=True)
class Payload:
    """One message, either way."""

    header: dict[str, HeaderValue] = field(default_factory=dict)
    arrays: dict[str, EncodedArray] = field(default_factory=dict)
    scalars: dict[str, Number] = field(default_factory=dict)
    metrics: dict[str, Number] = field(default_factory=dict)

    def size(self) -> int:
        """Return the bytes of channels: arrays as they are, scalars at 8 each."""
        return sum(len(a.data) for a in self.arrays.values()) + 8 * len(self.scalars)


def encode_dense(value: Tensor) -> EncodedArray:
    """Return a tensor's own numbers as bytes."""
    kind = str(value.dtype).removeprefix("torch.")
    return EncodedArray(kind, tuple(value.shape), "dense", number_bytes(value))


def wrap_bytes(data: bytes) -> EncodedArray:
    """Return a wire's code."""
    return EncodedArray("uint8", (len(data),), "wire", data)


def decode_dense(name: str, raw: EncodedArray, like: Tensor) -> Tensor:
    """Return the tensor; refuse whatever has not the form, dtype, shape and length of `like`."""
    kind = str(like.dtype).removeprefix("torch.")
    if raw.form != "dense":
        raise DataError(f"{name} must come as plain numbers, got {raw.form!r}.")
    if raw.dtype != kind:
        raise DataError(f"{name} must have dtype {kind}, got {raw.dtype!r}.")
    if tuple(raw.shape) != tuple(like.shape):
        raise DataError(f"{name} must have shape {tuple(like.shape)}, got {tuple(raw.shape)}.")
    if len(raw.data) != like.nbytes:
        raise DataError(f"{name} must have {like.nbytes} bytes, got {len(raw.data)}.")
    return read_numbers(raw.data, like).reshape(like.shape)


PackedChannels = tuple[dict[str, EncodedArray], dict[str, Number]]


def pack_channels(channels: Channels) -> PackedChannels:
    """Return vectors as arrays and single numbers as scalars; both keep every bit."""
    arrays = {name: encode_dense(v) for name, v in channels.items() if v.ndim}
    return arrays, {name: float(v) for name, v in channels.items() if not v.ndim}


def unpack_channels(
    arrays: Mapping[str, EncodedArray], scalars: Mapping[str, Number], like: Tensor
) -> Channels:
    """Undo `pack_channels` for vectors of the shape of `like`."""
    vectors = {name: decode_dense(name, raw, like) for name, raw in arrays.items()}
    return vectors | {name: decode_scalar(name, v, like) for name, v in scalars.items()}


def decode_scalar(name: str, value: Number, like: Tensor) -> Tensor:
    """Return one number in the dtype and place of `like`: ()."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{name} must be one number, got {type(value).__name__}.")
    if isinstance(value, int) and abs(value) > 1 << 64:
        raise DataError(f"{name} must be a number that Flower carries, got one far beyond.")
    return torch.tensor(float(value), dtype=like.dtype, device=like.device)


def strip_prefix(parts: Mapping[str, EncodedArray], head: str) -> dict[str, EncodedArray]:
    """Return the arrays under a dotted name."""
    return {n.removeprefix(head): raw for n, raw in parts.items() if n.startswith(head)}
