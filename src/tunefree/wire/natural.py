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

from dataclasses import dataclass

import torch

from ..core.layout import Layout
from ..core.random import bits
from ..core.types import Rows, State, Vector
from ._bits import bit_bytes, bytes_for, check_length, read_bits, read_whole, whole_bits
from ._layers import spans
from .compressor import Packed, Sender, Wire

FORMS = {torch.float32: (torch.int32, 8, 23), torch.float64: (torch.int64, 11, 52)}
"""By dtype: the int dtype of the same size, bits of the exponent, bits of the fraction."""


@dataclass(frozen=True)
class Natural(Wire):
    """Wire that rounds to powers of two; unbiased, and a contraction."""

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def contraction(self, layout: Layout) -> float:
        """Return 1/8."""
        return 0.125

    def _exponents(self, rows: Rows, sender: Sender, layout: Layout) -> Rows:
        """Return the rounded exponents as they stand in a number (m, d)."""
        kind, exponent, fraction = FORMS[rows.dtype]
        keys, parts = sender.keys.to(rows.device)[:, None], []
        for b, e in spans(layout, per_layer=True):  # layers only to bound the memory of draws
            form = rows[:, b:e].contiguous().view(kind).long()
            power = (form >> fraction) & ((1 << exponent) - 1)
            part = (1 << fraction) - 1
            draws = bits(keys, torch.arange(b, e, device=rows.device)) & part
            up = (draws < (form & part)) & (power < (1 << exponent) - 2)
            parts.append(power + up)
        return torch.cat(parts, -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return the rounded rows."""
        size = layout.size * (1 + FORMS[rows.dtype][1])
        arrived = _powers(self._exponents(rows, sender, layout), rows.signbit(), rows)
        return Packed(arrived, len(rows) * bytes_for(size), len(rows) * size, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return signs and exponents."""
        width = FORMS[row.dtype][1]
        codes = self._exponents(row[None], sender, layout)[0] | (row.signbit().long() << width)
        return bit_bytes([whole_bits(codes.cpu().numpy(), 1 + width)])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return the powers of two."""
        width = FORMS[like.dtype][1]
        size = like.numel() * (1 + width)
        check_length("natural", data, bytes_for(size))
        codes = torch.from_numpy(read_whole(read_bits("natural", data, size), 1 + width))
        powers = _powers(codes & ((1 << width) - 1), codes >> width > 0, like)
        return powers.reshape(like.shape).to(like.device)


def _powers(exponents: Rows, negative: Rows, like: Rows) -> Rows:
    kind, _, fraction = FORMS[like.dtype]
    size = (exponents << fraction).to(kind).view(like.dtype)
    return torch.where(negative, -size, size)
