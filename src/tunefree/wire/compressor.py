"""What a wire is: how an upload is packed, and what it costs.

`pack` is what the simulation uses: rows as the server will see them, and the bytes they cost.
`encode` and `decode` are the real thing; the cost is the length of the real encoding.
"""

from typing import Protocol, runtime_checkable

from ..types import Rows


@runtime_checkable
class Wire(Protocol):
    """Packs one vector channel of an upload."""

    def pack(self, rows: Rows) -> tuple[Rows, int]:
        """Return the rows as they arrive, and the bytes sent by all of them together."""
        ...

    def encode(self, row: Rows) -> bytes:
        """Return one client's vector as bytes."""
        ...

    def decode(self, data: bytes, like: Rows) -> Rows:
        """Return the vector that was encoded, in the shape and dtype of `like`."""
        ...
