"""The plain wire: every number as it is, little-endian.

    bytes = d * bytes per number

Differences from the paper: none; this is what uncompressed methods send.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import DataError
from ..core.layout import Layout
from ..core.types import Rows, State, Vector
from ._bits import number_bytes, read_numbers
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class Dense(Wire):
    """Wire without compression."""

    lossless: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def contraction(self, layout: Layout) -> float:
        """Return 0."""
        return 0.0

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return the rows unchanged and their size."""
        size = rows.numel() * rows.element_size()
        return Packed(rows, size, 8 * size, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return the numbers' own bytes."""
        return number_bytes(row)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return the numbers; refuse a message of another length."""
        want = like.numel() * like.element_size()
        if len(data) != want:
            what = f"{want} bytes for {like.numel()} numbers of {like.dtype}"
            raise DataError(f"A dense message must have {what}, got {len(data)}.")
        return read_numbers(data, like).reshape(like.shape)
