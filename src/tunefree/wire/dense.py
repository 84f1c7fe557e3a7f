"""The plain wire: every number as it is, little-endian.

    bytes = d * bytes per number

Differences from the paper: none; this is what uncompressed methods send.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..errors import DataError
from ..types import Rows


@dataclass(frozen=True)
class Dense:
    """Wire without compression."""

    def pack(self, rows: Rows) -> tuple[Rows, int]:
        """Return the rows unchanged and their size."""
        return rows, rows.numel() * rows.element_size()

    def encode(self, row: Rows) -> bytes:
        """Return the numbers' own bytes."""
        array = row.detach().cpu().contiguous().numpy()
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()

    def decode(self, data: bytes, like: Rows) -> Rows:
        """Return the numbers; refuse a message of another length."""
        want = like.numel() * like.element_size()
        if len(data) != want:
            raise DataError(
                f"A dense message must have {want} bytes for {like.numel()} numbers of "
                f"{like.dtype}, got {len(data)}."
            )
        kind = np.dtype(str(like.dtype).removeprefix("torch.")).newbyteorder("<")
        array = np.frombuffer(data, kind).astype(kind.newbyteorder("="))
        return torch.from_numpy(array).reshape(like.shape).to(like.device)
