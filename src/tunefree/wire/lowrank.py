"""Low rank: each matrix travels as two thin factors.

PowerSGD without memory: Vogels, Karimireddy & Jaggi, NeurIPS 2019, arXiv:1905.13727. For a layer
M of a x b, turned so that b <= a, and r = min(rank, b):

    Q0 = r random columns of length b
    P  = orth(M Q),   F = M' P,   Q = orth(F)              `passes` times, from Q = Q0
    C(M) = P F' = P P' M                                   an orthogonal projection
    |C(M) - M|^2 <= |M - M Q0 Q0^+|^2,   hence   E |C(M) - M|^2 <= (1 - r / b) |M|^2

for (I - P P') M Q0 = 0, E Q0 Q0^+ = (r / b) I, and no later pass makes the error larger. Layers
that are vectors, and those whose factors would be longer than themselves, travel as they are.
A message is the rank (4 bytes, so that it may vary), then numbers layer by layer.

Differences from the paper: Q0 is drawn anew each time (uniform entries, from the sender's key)
rather than kept from the last round, so two passes are made for the one; error feedback is
`ErrorFeedback(LowRank(...))`; factors are computed client by client, not all-reduced.
"""

import struct
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from ..core.errors import DataError, check_int
from ..core.fields import PositiveInt
from ..core.files import encode_numbers, read_numbers
from ..core.layout import Layout
from ..core.random import uniform
from ..core.types import Rows, State, Vector
from ._bits import check_header, check_length
from ._layers import compute_norm, sum_halves
from .compressor import Packed, Sender, Wire

HEADER = struct.Struct("<I")


@dataclass(frozen=True)
class LowRank(Wire):
    """Wire that sends matrices as products of thin ones; biased, a contraction.

    Args:
        rank: Columns of each factor, an int >= 1.
        passes: Power iterations, an int >= 1.
    """

    rank: Annotated[int, partial(check_int, below=1 << 32)] = 1
    passes: PositiveInt = 2

    def contraction(self, layout: Layout) -> float:
        thin = [form for form in _list_forms(layout, self.rank) if form.rank]
        return max((1 - form.rank / form.short for form in thin), default=0.0)

    def _numbers(self, rows: Rows, sender: Sender, layout: Layout) -> Rows:
        """Return all that is sent, layer by layer (m, numbers)."""
        keys, parts, at = sender.keys.to(rows.device)[:, None], [], 0
        for form, layer in zip(_list_forms(layout, self.rank), layout.split(rows), strict=True):
            if not form.rank:
                parts.append(layer.reshape(len(rows), -1))
                continue
            draws = form.short * form.rank
            q = 2 * uniform(keys, torch.arange(at, at + draws, device=rows.device), rows.dtype) - 1
            at += draws
            p, f = _factorise(form.turn(layer), q.reshape(-1, form.short, form.rank), self.passes)
            parts += [p.reshape(len(rows), -1), f.reshape(len(rows), -1)]
        return torch.cat(parts, -1)

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        numbers = self._numbers(rows, sender, layout)
        size = numbers.shape[1] * rows.element_size()
        arrived = _multiply_out(numbers, _list_forms(layout, self.rank))
        return Packed(arrived, len(rows) * (HEADER.size + size), len(rows) * 8 * size, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        return HEADER.pack(self.rank) + encode_numbers(self._numbers(row[None], sender, layout))

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        check_header("low-rank", data, HEADER.size)
        (rank,) = HEADER.unpack_from(data)
        if rank < 1:
            raise DataError(f"The rank of a low-rank message must be at least 1, got {rank}.")
        forms = _list_forms(layout, rank)
        want = sum(form.numbers for form in forms) * like.element_size()
        check_length("low-rank", data, HEADER.size + want)
        numbers = read_numbers(data[HEADER.size :], like)
        return _multiply_out(numbers[None], forms)[0].reshape(like.shape)


@dataclass(frozen=True)
class _Form:
    """How one layer travels: as a long x short matrix of this rank, or, with rank 0, as it is."""

    long: int
    short: int
    rank: int
    is_upright: bool  # whether the layer has its long side first

    @property
    def numbers(self) -> int:
        """How many numbers are sent."""
        return self.rank * (self.long + self.short) if self.rank else self.long * self.short

    def turn(self, layer: Rows) -> Rows:
        """Return a layer (m, ...) as matrices (m, long, short)."""
        if self.is_upright:
            return layer.reshape(-1, self.long, self.short)
        return layer.reshape(-1, self.short, self.long).transpose(1, 2)

    def turn_back(self, matrix: Rows) -> Rows:
        """Undo `turn` (m, long * short)."""
        return (matrix if self.is_upright else matrix.transpose(1, 2)).reshape(len(matrix), -1)


def _list_forms(layout: Layout, rank: int) -> list[_Form]:
    out = []
    for shape, size in zip(layout.shapes, layout.sizes, strict=True):
        a = shape[0] if shape else 1
        b = size // a if a else 0
        long, short = max(a, b), min(a, b)
        r = min(rank, short)
        thin = len(shape) > 1 and r * (long + short) < size
        out.append(_Form(long, short, r if thin else 0, a >= b))
    return out


def _multiply_out(numbers: Rows, forms: list[_Form]) -> Rows:
    """Multiply out, one outer product after the other."""
    parts, at = [], 0
    for form in forms:
        n, r = form.numbers, form.rank
        part = numbers[:, at : at + n]
        at += n
        if r:
            p = part[:, : form.long * r].reshape(-1, form.long, r)
            f = part[:, form.long * r :].reshape(-1, form.short, r)
            outer = [p[:, :, None, k] * f[:, None, :, k] for k in range(r)]
            part = form.turn_back(sum(outer[1:], outer[0]))
        parts.append(part)
    return torch.cat(parts, -1)


def _factorise(matrix: Rows, q: Rows, passes: int) -> tuple[Rows, Rows]:
    """Return P (m, a, r) with orthonormal or zero columns and F = M' P (m, b, r)."""
    for left in range(passes, 0, -1):
        p = _orthogonalise([sum_halves(matrix * c[:, None, :])[:, :, 0] for c in q.unbind(-1)])
        f = [sum_halves(matrix * c[:, :, None], 1)[:, 0] for c in p]
        q = torch.stack(_orthogonalise(f) if left > 1 else f, -1)
    return torch.stack(p, -1), q


def _orthogonalise(columns: list[Tensor]) -> list[Tensor]:
    """Gram-Schmidt, twice; a column that lies in the others' span becomes zero."""
    out: list[Tensor] = []
    for v in columns:
        w = v
        for _ in range(2):
            for p in out:
                w = w - sum_halves(p * w) * p
        length = compute_norm(w)
        new = length > 100 * torch.finfo(v.dtype).eps * compute_norm(v)
        out.append(torch.where(new, w / length, 0))
    return out
