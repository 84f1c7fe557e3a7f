"""QSGD: stochastic rounding to s levels of the norm.

Alistarh, Grubic, Li, Tomioka & Vojnovic, NeurIPS 2017, section 3.1. arXiv:1610.02132

For each bucket v of B consecutive entries:

    r_j    = s |v_j| / |v|;     l_j = floor(r_j) + 1 with probability r_j - floor(r_j),
                                      floor(r_j)     otherwise
    C(v)_j = |v| sign(v_j) l_j / s
    E C(v) = v;     E |C(v) - v|^2 <= min(B / (4 s^2), sqrt(B) / s) |v|^2

A message is s (2 bytes, so that it may vary), the norms, then one sign bit and
ceil(log2(s + 1)) level bits for each entry.

Differences from the paper: levels of fixed length instead of Elias codes; the factor 1/4, from
p (1 - p) <= 1/4. Buckets run over the flat vector, across layers, 512 long as in the paper's
example with 4 bits; without them a long vector gets more noise than it has length.
"""

import math
import struct
from dataclasses import dataclass

import torch

from ..core.errors import DataError, check_argument
from ..core.fields import PositiveInt
from ..core.layout import Layout
from ..core.random import uniform
from ..core.types import Rows, State, Vector
from ._bits import (
    bit_bytes,
    bytes_for,
    check_header,
    check_length,
    number_bytes,
    read_bits,
    read_numbers,
    read_whole,
    whole_bits,
)
from ._layers import norm
from .compressor import Packed, Sender, Wire

HEADER = struct.Struct("<H")


@dataclass(frozen=True)
class QSGD(Wire):
    """Wire that rounds to levels; unbiased, and a contraction if levels are many.

    Args:
        levels: Levels above zero, s, an int in 1 .. 65535.
        bucket: Entries that share a norm, B, an int >= 1; None is the whole vector.
    """

    levels: PositiveInt = 15
    bucket: PositiveInt | None = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument("QSGD", "levels", self.levels, "at most 65535", self.levels <= 65535)

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def contraction(self, layout: Layout) -> float | None:
        """Return min(B / (4 s^2), sqrt(B) / s) where that is below 1."""
        size = self._size(layout.size)
        bound = min(size / (4 * self.levels**2), math.sqrt(size) / self.levels)
        return bound if bound < 1 else None

    def _size(self, d: int) -> int:
        return d if self.bucket is None else min(self.bucket, d)

    def _cut(self, rows: Rows) -> Rows:
        """Return the buckets (m, n, B); zeros fill the last."""
        size = self._size(rows.shape[-1])
        full = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % size))
        return full.reshape(len(rows), -1, size)

    def _codes(self, rows: Rows, sender: Sender) -> tuple[Rows, Rows]:
        """Return norms (m, n), and levels with the entries' signs (m, d)."""
        v = self._cut(rows)
        length = norm(v)
        r = torch.where(length > 0, v.abs() / length, 0) * self.levels
        low = r.floor()
        place = torch.arange(v[0].numel(), device=rows.device).reshape(v.shape[1:])
        u = uniform(sender.keys.to(rows.device)[:, None, None], place, rows.dtype)
        level = (low + (u < r - low)).nan_to_num(0).clamp(0, self.levels)
        signed = torch.where(v < 0, -level, level).reshape(len(rows), -1)
        return length[:, :, 0], signed[:, : rows.shape[-1]]

    def _rows(self, norms: Rows, levels: Rows, s: int) -> Rows:
        top = torch.full_like(norms[:, :, None], s)  # a tensor: GPUs divide by numbers inexactly
        out = norms[:, :, None] * (self._cut(levels) / top)
        return out.reshape(len(levels), -1)[:, : levels.shape[-1]]

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return the rounded rows."""
        norms, levels = self._codes(rows, sender)
        scales = norms.shape[1] * rows.element_size()
        bits = rows.shape[1] * _width(self.levels)
        size = HEADER.size + scales + bytes_for(bits)
        arrived = self._rows(norms, levels, self.levels)
        return Packed(arrived, len(rows) * size, len(rows) * (8 * scales + bits), own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return s, norms, signs and levels."""
        norms, levels = self._codes(row[None], sender)
        width = _width(self.levels)
        signs = levels.signbit().long() << (width - 1)
        codes = (levels.abs().long() | signs)[0].cpu().numpy()
        bits = bit_bytes([whole_bits(codes, width)])
        return HEADER.pack(self.levels) + number_bytes(norms) + bits

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return the vector; refuse levels above s and norms below 0."""
        check_header("qsgd", data, HEADER.size)
        (s,) = HEADER.unpack_from(data)
        if s < 1:
            raise DataError(f"A qsgd message must have at least one level, got {s}.")
        width, d = _width(s), like.numel()
        begin = HEADER.size + -(-d // self._size(d)) * like.element_size()
        check_length("qsgd", data, begin + bytes_for(d * width))
        norms = read_numbers(data[HEADER.size : begin], like)
        codes = torch.from_numpy(read_whole(read_bits("qsgd", data[begin:], d * width), width))
        levels = codes & ((1 << (width - 1)) - 1)
        if bool((levels > s).any()) or bool((norms < 0).any()):
            raise DataError(f"A qsgd message must have levels up to {s} and norms from 0.")
        size = levels.to(like.dtype)
        signed = torch.where(codes >> (width - 1) > 0, -size, size).to(like.device)
        return self._rows(norms[None], signed[None], s)[0].reshape(like.shape)


def _width(levels: int) -> int:
    """Bits of a sign and a level in 0 .. levels."""
    return 1 + int(levels).bit_length()
