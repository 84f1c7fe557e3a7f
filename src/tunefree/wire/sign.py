"""Scaled signs: one bit for each entry, and the mean magnitude.

Bernstein et al., ICML 2018, arXiv:1802.04434; with the scale that makes it a contraction,
Karimireddy, Rebjock, Stich & Jaggi, ICML 2019, arXiv:1901.09847.

    C(v) = (|v|_1 / d) sign(v),     |C(v) - v|^2 = |v|^2 - |v|_1^2 / d <= (1 - 1/d) |v|^2

A message is the scale of each layer, then one bit for each entry.

Differences from the paper: sign(0) is +1, there being one bit; the scale is each layer's own by
default, as in the authors' code.
"""

from dataclasses import dataclass

import torch

from ..core.errors import DataError
from ..core.layout import Layout
from ..core.types import Rows, State, Vector
from ._bits import bit_bytes, bytes_for, check_length, number_bytes, read_bits, read_numbers
from ._layers import fold, spans
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class Sign(Wire):
    """Wire that sends signs and one scale; biased, a contraction.

    Args:
        per_layer: Whether each layer has its own scale, or the vector as a whole.
    """

    per_layer: bool = True

    def contraction(self, layout: Layout) -> float:
        """Return 1 - 1/d of the largest layer."""
        return 1 - 1 / max(e - b for b, e in spans(layout, self.per_layer))

    def _scales(self, rows: Rows, layout: Layout) -> Rows:
        """Return the mean magnitudes (m, layers)."""
        sums = [(fold(rows[:, b:e].abs()), e - b) for b, e in spans(layout, self.per_layer)]
        # tensors divide: GPUs divide by numbers inexactly
        return torch.cat([total / torch.full_like(total, d) for total, d in sums], -1)

    def _rows(self, scales: Rows, negative: Rows, layout: Layout) -> Rows:
        sizes = [e - b for b, e in spans(layout, self.per_layer)]
        wide = scales.repeat_interleave(torch.tensor(sizes, device=scales.device), dim=-1)
        return torch.where(negative, -wide, wide)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return scaled signs."""
        scales = self._scales(rows, layout)
        numbers = scales.shape[1] * rows.element_size()
        size, counted = numbers + bytes_for(layout.size), 8 * numbers + layout.size
        arrived = self._rows(scales, rows < 0, layout)
        return Packed(arrived, len(rows) * size, len(rows) * counted, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return scales and signs."""
        bits = (row < 0).to(torch.uint8).cpu().numpy()
        return number_bytes(self._scales(row[None], layout)) + bit_bytes([bits])

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return the vector; refuse scales below 0."""
        begin = len(spans(layout, self.per_layer)) * like.element_size()
        check_length("sign", data, begin + bytes_for(layout.size))
        scales = read_numbers(data[:begin], like)
        if bool((scales < 0).any()):
            raise DataError("The scales of a sign message must be at least 0.")
        bits = torch.from_numpy(read_bits("sign", data[begin:], layout.size))
        negative = bits.bool().to(like.device)
        return self._rows(scales[None], negative[None], layout)[0].reshape(like.shape)
