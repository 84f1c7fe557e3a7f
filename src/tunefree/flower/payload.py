"""The content of a message between server and nodes: plain data, no executable code.

A payload has a header (strings and numbers that identify the message), arrays (raw bytes with a
declared dtype and shape, or the code of a wire), scalars (channels of one number) and metrics
(numbers for the history). Flower carries the four as records; tests pass payloads on directly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.types import Channels
from ..wire._bits import encode_numbers, read_numbers

HeaderValue = str | int | float
Number = float | list[float]


@dataclass(frozen=True)
class EncodedArray:
    """An array as bytes: little-endian numbers (form "dense") or the code of a wire ("wire")."""

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: bytes


@dataclass(frozen=True)
class Payload:
    """The content of one message, in either direction."""

    header: dict[str, HeaderValue] = field(default_factory=dict)
    arrays: dict[str, EncodedArray] = field(default_factory=dict)
    scalars: dict[str, Number] = field(default_factory=dict)
    metrics: dict[str, Number] = field(default_factory=dict)

    def size(self) -> int:
        """Return the number of bytes of the channels, with 8 bytes per scalar."""
        return sum(len(a.data) for a in self.arrays.values()) + 8 * len(self.scalars)


def encode_dense(value: Tensor) -> EncodedArray:
    """Encode the numbers of a tensor without loss."""
    dtype = str(value.dtype).removeprefix("torch.")
    return EncodedArray(dtype, tuple(value.shape), "dense", encode_numbers(value))


def wrap_bytes(data: bytes) -> EncodedArray:
    """Wrap the code of a wire, or a message of secure aggregation."""
    return EncodedArray("uint8", (len(data),), "wire", data)


def decode_dense(name: str, array: EncodedArray, like: Tensor) -> Tensor:
    """Undo `encode_dense`; the form, dtype, shape and length must be those of `like`."""
    dtype = str(like.dtype).removeprefix("torch.")
    if array.form != "dense":
        raise DataError(f"{name} must come as plain numbers, got {array.form!r}.")
    if array.dtype != dtype:
        raise DataError(f"{name} must have dtype {dtype}, got {array.dtype!r}.")
    if tuple(array.shape) != tuple(like.shape):
        raise DataError(f"{name} must have shape {tuple(like.shape)}, got {tuple(array.shape)}.")
    if len(array.data) != like.nbytes:
        raise DataError(f"{name} must have {like.nbytes} bytes, got {len(array.data)}.")
    return read_numbers(array.data, like).reshape(like.shape)


PackedChannels = tuple[dict[str, EncodedArray], dict[str, Number]]


def pack_channels(channels: Channels) -> PackedChannels:
    """Return vectors as arrays and 0-d tensors as scalars, both without loss."""
    arrays = {name: encode_dense(v) for name, v in channels.items() if v.ndim}
    return arrays, {name: float(v) for name, v in channels.items() if not v.ndim}


def unpack_channels(
    arrays: Mapping[str, EncodedArray], scalars: Mapping[str, Number], like: Tensor
) -> Channels:
    """Undo `pack_channels` for vectors with the shape of `like`."""
    vectors = {name: decode_dense(name, array, like) for name, array in arrays.items()}
    return vectors | {name: decode_scalar(name, v, like) for name, v in scalars.items()}


def decode_scalar(name: str, value: Number, like: Tensor) -> Tensor:
    """Return a scalar as a 0-d tensor with the dtype and device of `like`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{name} must be one number, got {type(value).__name__}.")
    if isinstance(value, int) and abs(value) > 1 << 64:
        raise DataError(f"{name} must be an int of at most 64 bits, got a larger one.")
    return torch.tensor(float(value), dtype=like.dtype, device=like.device)
