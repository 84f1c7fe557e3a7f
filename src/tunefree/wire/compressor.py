"""What a wire is: how an upload is packed, what it costs, and its properties.

`pack` is what the simulation uses: rows as the server will see them, and the bytes they cost.
`encode` and `decode` are used by real clients. The two agree: the cost is the length of the
encoding, and the rows are, bit for bit, what decoding returns. For that every sum in a wire has a
fixed order (`_layers.sum_halves`), so that one row and many, CPU and GPU, round alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.errors import DataError
from ..core.fields import Checked
from ..core.files import encode_numbers, read_numbers
from ..core.layout import Layout
from ..core.types import Rows, State, Vector


@dataclass(frozen=True)
class Sender:
    """Who sends, and when: known to both ends, so that draws they share cost no bytes."""

    ids: Tensor  # client numbers (m,)
    round: int
    keys: Tensor  # of the round, client and channel (m,), int64, for counter-based draws

    def row(self, j: int) -> "Sender":
        """Return one of them, m = 1."""
        return self.rows([j])

    def rows(self, js: Sequence[int]) -> "Sender":
        """Return some of them, in this order."""
        return Sender(self.ids[list(js)], self.round, self.keys[list(js)])


@dataclass(frozen=True)
class Packed:
    """Rows on the other side of the wire, and what it took to get them there."""

    rows: Rows  # as the server sees them (m, d)
    bytes: int  # what all rows cost together
    counted: int  # what papers count, in bits: no indices, no headers
    own: State  # the wire's memory of each row from now on


class Wire(Checked, ABC):
    """Packs one vector channel of an upload.

    `lossless`: what arrives is what was sent, always. `unbiased`: E C(v) = v.
    """

    lossless: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def contraction(self, layout: Layout) -> float | None:
        """Return the least known q^2 < 1 with E |C(v) - v|^2 <= q^2 |v|^2, or None."""
        return None

    def init(self, x: Vector) -> State:
        """Return one client's first memory for one channel."""
        return {}

    def corrected(self, rows: Rows, own: State) -> Rows:
        """Return what is really compressed: the rows, and what memory adds to them."""
        return rows

    @abstractmethod
    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return the rows as they arrive, their cost, and the memory after sending."""

    @abstractmethod
    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return one client's vector as bytes; the vector is `corrected` already."""

    @abstractmethod
    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return the vector as it arrives, in the shape, dtype and place of `like`.

        Raises a DataError for bytes that `encode` cannot have written.
        """


@dataclass(frozen=True)
class Dense(Wire):
    """The plain wire: every number as it is, little-endian.

        bytes = d * bytes per number

    Differences from the paper: none; this is what uncompressed methods send.
    """

    lossless: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def contraction(self, layout: Layout) -> float:
        return 0.0

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        size = rows.numel() * rows.element_size()
        return Packed(rows, size, 8 * size, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        return encode_numbers(row)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        want = like.numel() * like.element_size()
        if len(data) != want:
            what = f"{want} bytes for {like.numel()} numbers of {like.dtype}"
            raise DataError(f"A dense message must have {what}, got {len(data)}.")
        return read_numbers(data, like).reshape(like.shape)
