"""Wires that send some of the entries: the largest, or random ones."""

from dataclasses import dataclass

import numpy as np
import torch

from ..core.fields import Fraction
from ..core.files import encode_numbers, read_numbers
from ..core.layout import Layout
from ..core.random import bits
from ..core.types import Rows, State, Vector
from ._bits import (
    RATIO,
    check_length,
    count_bytes,
    encode_set,
    measure_set,
    pack_bits,
    read_bits,
    read_ratio,
    read_set,
)
from ._layers import list_kept, list_spans, mark_largest
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class TopK(Wire):
    """Top-k: only the entries of largest magnitude travel.

    Aji & Heafield 2017; Stich, Cordonnier & Jaggi, NeurIPS 2018, arXiv:1809.07599. Per layer of d_l
    entries, as ComParFreFL uses it:

        k_l    = max(1, floor(ratio d_l))
        C(v)_j = v_j if |v_j| is among the k_l largest of its layer, else 0
        |C(v) - v|^2 <= max_l (1 - k_l / d_l) |v|^2,      C(a v) = a C(v) for a > 0

    A message is the ratio (8 bytes, so that it may vary), then which entries were kept (per layer a
    list of ceil(log2 d_l) bits each or a bitmap, whichever is shorter; nothing where all are), then
    their values.

    Differences from the paper: indices are sent and paid for (`counted` leaves them out, as papers
    do); of equal magnitudes the first is kept.

    Args:
        ratio: Share of the entries kept, in (0, 1]; at least one.
        per_layer: Whether each layer keeps its own share, or the vector as a whole.
    """

    ratio: Fraction = 0.05
    per_layer: bool = True

    def contraction(self, layout: Layout) -> float:
        parts = list_kept(layout, self.per_layer, self.ratio)
        return max(1 - k / (end - begin) for begin, end, k in parts)

    def _mask(self, rows: Rows, layout: Layout) -> Rows:
        size = rows.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)  # NaN is kept, and seen
        parts = list_kept(layout, self.per_layer, self.ratio)
        return torch.cat([mark_largest(size[:, b:e], k) for b, e, k in parts], -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        parts = list_kept(layout, self.per_layer, self.ratio)
        values = sum(k for _, _, k in parts) * rows.element_size()
        size = RATIO.size + count_bytes(_measure_sets(parts)) + values
        arrived = torch.where(self._mask(rows, layout), rows, 0)
        return Packed(arrived, len(rows) * size, len(rows) * 8 * values, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        mask = self._mask(row[None], layout)[0]
        bits = mask.cpu().numpy()
        which = pack_bits([encode_set(bits[b:e]) for b, e in list_spans(layout, self.per_layer)])
        return RATIO.pack(self.ratio) + which + encode_numbers(row[mask])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        parts = list_kept(layout, self.per_layer, read_ratio("top-k", data))
        count = _measure_sets(parts)
        begin = RATIO.size + count_bytes(count)
        check_length("top-k", data, begin + sum(k for _, _, k in parts) * like.element_size())
        bits = read_bits("top-k", data[RATIO.size : begin], count)
        found, at = [], 0
        for b, e, k in parts:
            n = measure_set(e - b, k)
            found.append(b + read_set("top-k", bits[at : at + n], e - b, k))
            at += n
        where = torch.from_numpy(np.concatenate(found)).to(like.device)
        out = torch.zeros_like(like)
        out[where] = read_numbers(data[begin:], like)
        return out


def _measure_sets(parts: list[tuple[int, int, int]]) -> int:
    return sum(measure_set(e - b, k) for b, e, k in parts)


@dataclass(frozen=True)
class RandK(Wire):
    """Rand-k: a random set of entries travels; both ends draw it, so that only values cost bytes.

    Stich, Cordonnier & Jaggi, NeurIPS 2018, arXiv:1809.07599; Khirirat et al. 2018.

        k      = max(1, floor(ratio d));    A a uniform subset of k entries, drawn anew each time
        C(v)_j = (d / k) v_j if j in A, else 0      unbiased:     E |C(v) - v|^2 = (d / k - 1) |v|^2
        C(v)_j = v_j         if j in A, else 0      contractive:  E |C(v) - v|^2 = (1 - k / d) |v|^2

    A message is the ratio (8 bytes, so that it may vary), then the k values.

    Differences from the paper: the set follows from the sender's key, a function of seed, round,
    client and channel, known to both ends; it can be drawn per layer.

    Args:
        ratio: Share of the entries kept, in (0, 1]; at least one.
        unbiased: Whether values are scaled by d / k, which removes the bias and adds variance.
        per_layer: Whether each layer keeps its own share, or the vector as a whole.
    """

    ratio: Fraction = 0.05
    unbiased: bool = True  # type: ignore[misc]
    per_layer: bool = False

    def contraction(self, layout: Layout) -> float | None:
        parts = list_kept(layout, self.per_layer, self.ratio)
        if not self.unbiased:
            return max(1 - k / (e - b) for b, e, k in parts)
        worst = max((e - b) / k - 1 for b, e, k in parts)
        return worst if worst < 1 else None

    def _mask(self, sender: Sender, layout: Layout, ratio: float, like: Rows) -> Rows:
        place = torch.arange(layout.size, device=like.device)
        draws = ~bits(sender.keys.to(like.device)[:, None], place)  # the smallest bits win
        parts = list_kept(layout, self.per_layer, ratio)
        return torch.cat([mark_largest(draws[:, b:e], k) for b, e, k in parts], -1)

    def _scaled(self, rows: Rows, layout: Layout) -> Rows:
        if not self.unbiased:
            return rows
        parts = list_kept(layout, self.per_layer, self.ratio)
        return torch.cat([rows[:, b:e] * ((e - b) / k) for b, e, k in parts], -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        mask = self._mask(sender, layout, self.ratio, rows)
        parts = list_kept(layout, self.per_layer, self.ratio)
        values = sum(k for _, _, k in parts) * rows.element_size()
        arrived = torch.where(mask, self._scaled(rows, layout), 0)
        return Packed(arrived, len(rows) * (RATIO.size + values), len(rows) * 8 * values, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        mask = self._mask(sender, layout, self.ratio, row)[0]
        return RATIO.pack(self.ratio) + encode_numbers(self._scaled(row[None], layout)[0][mask])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        ratio = read_ratio("rand-k", data)
        count = sum(k for _, _, k in list_kept(layout, self.per_layer, ratio))
        check_length("rand-k", data, RATIO.size + count * like.element_size())
        out = torch.zeros_like(like)
        out[self._mask(sender, layout, ratio, like)[0]] = read_numbers(data[RATIO.size :], like)
        return out
