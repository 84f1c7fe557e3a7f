"""Error feedback: what a compressor drops is remembered and sent later.

Seide et al. 2014; Stich et al., NeurIPS 2018; over a federation Fed-EF, Li & Li, ICML 2023,
arXiv:2211.14292, Algorithm 1.

    q_i = C(v_i + e_i),     e_i <- v_i + e_i - q_i        hence   sum_t q_i + e_i = sum_t v_i

The memory e_i starts at zero, one for each client and channel. Clients that are absent keep
theirs, since nothing is packed for them.

Differences from the paper: the inner compressor may have memory of its own.
"""

from dataclasses import dataclass

import torch

from ..core.errors import ArgumentError
from ..core.layout import Layout
from ..core.types import Rows, State, Vector, select_prefix
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class ErrorFeedback(Wire):
    """Wire with memory around another wire.

    `encode` takes the corrected vector v + e, as every wire's does: `corrected` returns it.

    Args:
        inner: The compressor C, best a contraction.
    """

    inner: Wire

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.inner, ErrorFeedback):
            raise ArgumentError(
                "Cannot use ErrorFeedback around ErrorFeedback. This is because the inner one "
                "already sends what it dropped; use it once."
            )

    def init(self, x: Vector) -> State:
        """Return a zero error, and the inner wire's memory."""
        inside = {f"inner.{name}": v for name, v in self.inner.init(x).items()}
        return {"error": torch.zeros_like(x), **inside}

    def corrected(self, rows: Rows, own: State) -> Rows:
        """Return v + e, and what the inner wire's memory adds to it."""
        return self.inner.corrected(rows + own["error"], select_prefix(own, "inner"))

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Return what the inner wire makes of rows and error, and the new error."""
        meant = rows + own["error"]
        packed = self.inner.pack(meant, select_prefix(own, "inner"), sender, layout)
        inside = {f"inner.{name}": v for name, v in packed.own.items()}
        memory = {"error": meant - packed.rows, **inside}
        return Packed(packed.rows, packed.bytes, packed.counted, memory)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return the inner wire's encoding of a corrected vector."""
        return self.inner.encode(row, sender, layout)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return what the inner wire decodes."""
        return self.inner.decode(data, like, sender, layout)
