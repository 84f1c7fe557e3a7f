"""Wires that send few bits of every entry."""

import math
import struct
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch

from ..core.errors import DataError, check_int
from ..core.fields import PositiveInt
from ..core.files import encode_numbers, read_numbers
from ..core.layout import Layout
from ..core.random import bits, uniform
from ..core.types import Rows, State, Vector
from ._bits import (
    check_header,
    check_length,
    count_bytes,
    join_bits,
    pack_bits,
    read_bits,
    split_bits,
)
from ._layers import compute_norm, list_spans, sum_halves
from .compressor import Packed, Sender, Wire

HEADER = struct.Struct("<H")


@dataclass(frozen=True)
class QSGD(Wire):
    """QSGD: stochastic rounding to s levels of the norm.

    Alistarh, Grubic, Li, Tomioka & Vojnovic, NeurIPS 2017, section 3.1. arXiv:1610.02132

    For each bucket v of B consecutive entries:

        r_j    = s |v_j| / |v|;     l_j = floor(r_j) + 1 with probability r_j - floor(r_j),
                                          floor(r_j)     otherwise
        C(v)_j = |v| sign(v_j) l_j / s
        E C(v) = v;     E |C(v) - v|^2 <= min(B / (4 s^2), sqrt(B) / s) |v|^2

    A message is s (2 bytes, so that it may vary), the norms, then one sign bit and ceil(log2(s +
    1)) level bits for each entry.

    Differences from the paper: levels of fixed length instead of Elias codes; the factor 1/4, from
    p (1 - p) <= 1/4. Buckets run over the flat vector, across layers, 512 long as in the paper's
    example with 4 bits; without them a long vector gets more noise than it has length.

    Args:
        levels: Levels above zero, s, an int in 1 .. 65535.
        bucket: Entries that share a norm, B, an int >= 1; None is the whole vector.
    """

    levels: Annotated[int, partial(check_int, below=1 << 16)] = 15
    bucket: PositiveInt | None = 512
    unbiased: ClassVar[bool] = True

    def contraction(self, layout: Layout) -> float | None:
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
        length = compute_norm(v)
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
        norms, levels = self._codes(rows, sender)
        scales = norms.shape[1] * rows.element_size()
        bits = rows.shape[1] * _width(self.levels)
        size = HEADER.size + scales + count_bytes(bits)
        arrived = self._rows(norms, levels, self.levels)
        return Packed(arrived, len(rows) * size, len(rows) * (8 * scales + bits), own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        norms, levels = self._codes(row[None], sender)
        width = _width(self.levels)
        signs = levels.signbit().long() << (width - 1)
        codes = (levels.abs().long() | signs)[0].cpu().numpy()
        bits = pack_bits([split_bits(codes, width)])
        return HEADER.pack(self.levels) + encode_numbers(norms) + bits

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        check_header("qsgd", data, HEADER.size)
        (s,) = HEADER.unpack_from(data)
        if s < 1:
            raise DataError(f"A qsgd message must have at least one level, got {s}.")
        width, d = _width(s), like.numel()
        begin = HEADER.size + -(-d // self._size(d)) * like.element_size()
        check_length("qsgd", data, begin + count_bytes(d * width))
        norms = read_numbers(data[HEADER.size : begin], like)
        codes = torch.from_numpy(join_bits(read_bits("qsgd", data[begin:], d * width), width))
        levels = codes & ((1 << (width - 1)) - 1)
        if bool((levels > s).any()) or bool((norms < 0).any()):
            raise DataError(f"A qsgd message must have levels up to {s} and norms from 0.")
        size = levels.to(like.dtype)
        signed = torch.where(codes >> (width - 1) > 0, -size, size).to(like.device)
        return self._rows(norms[None], signed[None], s)[0].reshape(like.shape)


def _width(levels: int) -> int:
    """Bits of a sign and a level in 0 .. levels."""
    return 1 + int(levels).bit_length()


FORMS = {torch.float32: (torch.int32, 8, 23), torch.float64: (torch.int64, 11, 52)}
"""By dtype: the int dtype of the same size, bits of the exponent, bits of the fraction."""


@dataclass(frozen=True)
class Natural(Wire):
    """Natural compression: stochastic rounding to a power of two, sent as sign and exponent.

    Horvath, Ho, Horvath, Sahu, Canini & Richtarik 2019, definition 1. arXiv:1905.10988

        |v_j| = 2^e (1 + f), 0 <= f < 1:     C(v)_j = sign(v_j) 2^(e+1) with probability f,
                                                      sign(v_j) 2^e     otherwise
        E C(v) = v;     E |C(v) - v|^2 <= |v|^2 / 8

    A message is 9 bits (float32) or 12 bits (float64) for each entry: the number's own sign and
    exponent.

    Differences from the paper: numbers below the least normal one are rounded to it or to zero (no
    bias, but more variance than an eighth); the last power before infinity is not rounded up.
    """

    unbiased: ClassVar[bool] = True

    def contraction(self, layout: Layout) -> float:
        return 0.125

    def _exponents(self, rows: Rows, sender: Sender, layout: Layout) -> Rows:
        """Return the rounded exponents as they stand in a number (m, d)."""
        kind, exponent, fraction = FORMS[rows.dtype]
        keys, parts = sender.keys.to(rows.device)[:, None], []
        for b, e in list_spans(layout, per_layer=True):  # layers only to bound the memory of draws
            form = rows[:, b:e].contiguous().view(kind).long()
            power = (form >> fraction) & ((1 << exponent) - 1)
            part = (1 << fraction) - 1
            draws = bits(keys, torch.arange(b, e, device=rows.device)) & part
            up = (draws < (form & part)) & (power < (1 << exponent) - 2)
            parts.append(power + up)
        return torch.cat(parts, -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        size = layout.size * (1 + FORMS[rows.dtype][1])
        arrived = _powers(self._exponents(rows, sender, layout), rows.signbit(), rows)
        return Packed(arrived, len(rows) * count_bytes(size), len(rows) * size, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        width = FORMS[row.dtype][1]
        codes = self._exponents(row[None], sender, layout)[0] | (row.signbit().long() << width)
        return pack_bits([split_bits(codes.cpu().numpy(), 1 + width)])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        width = FORMS[like.dtype][1]
        size = like.numel() * (1 + width)
        check_length("natural", data, count_bytes(size))
        codes = torch.from_numpy(join_bits(read_bits("natural", data, size), 1 + width))
        powers = _powers(codes & ((1 << width) - 1), codes >> width > 0, like)
        return powers.reshape(like.shape).to(like.device)


def _powers(exponents: Rows, negative: Rows, like: Rows) -> Rows:
    kind, _, fraction = FORMS[like.dtype]
    size = (exponents << fraction).to(kind).view(like.dtype)
    return torch.where(negative, -size, size)


@dataclass(frozen=True)
class Sign(Wire):
    """Scaled signs: one bit for each entry, and the mean magnitude.

    Bernstein et al., ICML 2018, arXiv:1802.04434; with the scale that makes it a contraction,
    Karimireddy, Rebjock, Stich & Jaggi, ICML 2019, arXiv:1901.09847.

        C(v) = (|v|_1 / d) sign(v),     |C(v) - v|^2 = |v|^2 - |v|_1^2 / d <= (1 - 1/d) |v|^2

    A message is the scale of each layer, then one bit for each entry.

    Differences from the paper: sign(0) is +1, there being one bit; the scale is each layer's own by
    default, as in the authors' code.

    Args:
        per_layer: Whether each layer has its own scale, or the vector as a whole.
    """

    per_layer: bool = True

    def contraction(self, layout: Layout) -> float:
        return 1 - 1 / max(e - b for b, e in list_spans(layout, self.per_layer))

    def _scales(self, rows: Rows, layout: Layout) -> Rows:
        """Return the mean magnitudes (m, layers)."""
        spans = list_spans(layout, self.per_layer)
        sums = [(sum_halves(rows[:, b:e].abs()), e - b) for b, e in spans]
        # tensors divide: GPUs divide by numbers inexactly
        return torch.cat([total / torch.full_like(total, d) for total, d in sums], -1)

    def _rows(self, scales: Rows, negative: Rows, layout: Layout) -> Rows:
        sizes = [e - b for b, e in list_spans(layout, self.per_layer)]
        wide = scales.repeat_interleave(torch.tensor(sizes, device=scales.device), dim=-1)
        return torch.where(negative, -wide, wide)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        scales = self._scales(rows, layout)
        numbers = scales.shape[1] * rows.element_size()
        size, counted = numbers + count_bytes(layout.size), 8 * numbers + layout.size
        arrived = self._rows(scales, rows < 0, layout)
        return Packed(arrived, len(rows) * size, len(rows) * counted, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        bits = (row < 0).to(torch.uint8).cpu().numpy()
        return encode_numbers(self._scales(row[None], layout)) + pack_bits([bits])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        begin = len(list_spans(layout, self.per_layer)) * like.element_size()
        check_length("sign", data, begin + count_bytes(layout.size))
        scales = read_numbers(data[:begin], like)
        if bool((scales < 0).any()):
            raise DataError("The scales of a sign message must be at least 0.")
        bits = torch.from_numpy(read_bits("sign", data[begin:], layout.size))
        negative = bits.bool().to(like.device)
        return self._rows(scales[None], negative[None], layout)[0].reshape(like.shape)
