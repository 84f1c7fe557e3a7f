"""Rand-k: a random set of entries travels; both ends draw it, so that only values cost bytes.

Stich, Cordonnier & Jaggi, NeurIPS 2018, arXiv:1809.07599; Khirirat et al. 2018.

    k      = max(1, floor(ratio d));    A a uniform subset of k entries, drawn anew each time
    C(v)_j = (d / k) v_j if j in A, else 0       unbiased:     E |C(v) - v|^2 = (d / k - 1) |v|^2
    C(v)_j = v_j         if j in A, else 0       contractive:  E |C(v) - v|^2 = (1 - k / d) |v|^2

A message is the ratio (8 bytes, so that it may vary), then the k values.

Differences from the paper: the set follows from the sender's key, a function of seed, round,
client and channel, known to both ends; it can be drawn per layer.
"""

from dataclasses import dataclass

import torch

from ..core.fields import Fraction
from ..core.layout import Layout
from ..core.random import bits
from ..core.types import Rows, State, Vector
from ._bits import RATIO, check_length, number_bytes, read_numbers, read_ratio
from ._layers import largest, shares
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class RandK(Wire):
    """Wire that keeps random entries.

    Args:
        ratio: Share of the entries kept, in (0, 1]; at least one.
        unbiased: Whether values are scaled by d / k, which removes the bias and adds variance.
        per_layer: Whether each layer keeps its own share, or the vector as a whole.
    """

    ratio: Fraction = 0.05
    unbiased: bool = True
    per_layer: bool = False

    def contraction(self, layout: Layout) -> float | None:
        """Return 1 - k / d, or d / k - 1 where that is below 1; of the worst layer."""
        parts = shares(layout, self.per_layer, self.ratio)
        if not self.unbiased:
            return max(1 - k / (e - b) for b, e, k in parts)
        worst = max((e - b) / k - 1 for b, e, k in parts)
        return worst if worst < 1 else None

    def _mask(self, sender: Sender, layout: Layout, ratio: float, like: Rows) -> Rows:
        place = torch.arange(layout.size, device=like.device)
        draws = ~bits(sender.keys.to(like.device)[:, None], place)  # the smallest bits win
        parts = shares(layout, self.per_layer, ratio)
        return torch.cat([largest(draws[:, b:e], k) for b, e, k in parts], -1)

    def _scaled(self, rows: Rows, layout: Layout) -> Rows:
        if not self.unbiased:
            return rows
        parts = shares(layout, self.per_layer, self.ratio)
        return torch.cat([rows[:, b:e] * ((e - b) / k) for b, e, k in parts], -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return the rows with all but the drawn entries set to zero."""
        mask = self._mask(sender, layout, self.ratio, rows)
        parts = shares(layout, self.per_layer, self.ratio)
        values = sum(k for _, _, k in parts) * rows.element_size()
        arrived = torch.where(mask, self._scaled(rows, layout), 0)
        return Packed(arrived, len(rows) * (RATIO.size + values), len(rows) * 8 * values, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return ratio and values, scaled already."""
        mask = self._mask(sender, layout, self.ratio, row)[0]
        return RATIO.pack(self.ratio) + number_bytes(self._scaled(row[None], layout)[0][mask])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Draw the same set and return the vector, zero outside of it."""
        ratio = read_ratio("rand-k", data)
        count = sum(k for _, _, k in shares(layout, self.per_layer, ratio))
        check_length("rand-k", data, RATIO.size + count * like.element_size())
        out = torch.zeros_like(like)
        out[self._mask(sender, layout, ratio, like)[0]] = read_numbers(data[RATIO.size :], like)
        return out
