"""Validation of what clients send: every answer is checked before the server uses it.

The server refuses answers to another request, missing and additional channels, other dtypes, shapes
and lengths, bytes that the channel's wire cannot decode, non-finite numbers and vectors whose norm
is too large. Lengths are checked before anything is decoded, so that decoding needs no more memory
than the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from ..core.errors import DataError, TunefreeError, first_line
from ..core.plan import Round
from ..core.types import Channels, Vector
from ..core.vectors import row_sq
from ..methods import Method
from ..rounds.client import make_sender, wire_for_round
from ..simulation.context import WORK_COUNTS
from .payload import EncodedArray, HeaderValue, Payload, decode_dense, decode_scalar

MAX_COUNT = 1e15
Decode = Callable[[str, EncodedArray, Vector], Vector]


class RefusedError(TunefreeError):
    """An answer is not used; the text states why."""


@dataclass(frozen=True)
class WorkCost:
    """The cost of a client's local work."""

    counts: list[float]  # as in WORK_COUNTS
    passes: float  # gradients over all data of the client


@dataclass(frozen=True)
class ValidUpload:
    """One client's upload: the decoded channels, their bytes, and its metrics."""

    rows: Channels  # (1, d) and (1,)
    sizes: dict[str, int]
    counted: float  # bytes by the papers' count
    measured: Channels  # loss and lr (1,), the means over the local phases
    work: WorkCost


def check_request(payload: Payload, **request: HeaderValue) -> None:
    """Refuse an answer to another request: its header must have the same values."""
    for name, want in request.items():
        got = payload.header.get(name)
        if got != want:
            raise RefusedError(f"its {name} is {got!r}, not {want!r}")


def read_upload(
    payload: Payload, method: Method, x: Vector, t: Round, largest: float
) -> ValidUpload:
    """Return a client's upload, or raise `RefusedError`.

    Vectors must have the form of the model x, and a norm of at most `largest` (1 + |x|).
    """
    names = method.channels(t.preparing)
    vectors = [n for n in names if n in method.vectors]
    _check_names(payload, set(vectors), set(names) - set(vectors))
    decode = partial(_decode_vector, method, t, torch.tensor([int(payload.header["client"])]))
    rows = {n: _read_row(payload, n, x, largest, decode) for n in names}
    sizes = {n: len(payload.arrays[n].data) for n in vectors}
    sizes |= dict.fromkeys(payload.scalars, x.element_size())
    if "delta_sq" in rows and "delta" in rows:
        sent, found = rows["delta_sq"], row_sq(rows["delta"])
        if not torch.allclose(sent, found, rtol=1e-3, atol=float(torch.finfo(x.dtype).tiny)):
            lengths = f"{float(sent):.3e}, but |delta|^2 is {float(found):.3e}"
            raise RefusedError(f"its delta_sq is {lengths}")
    measured = {}
    for name in ("loss", "lr"):
        phases = _read_list(payload, name, method.direction.local_phases(t).times)
        measured[name] = reduce(torch.add, x.new_tensor(phases)[:, None]) / len(phases)
    counted = min(_read_count(payload, "counted"), float(sum(sizes.values())))
    return ValidUpload(rows, sizes, counted, measured, read_work(payload))


def read_work(payload: Payload) -> WorkCost:
    """Return the cost of a client's work."""
    counts = _read_list(payload, "tally", len(WORK_COUNTS))
    if min(counts) < 0:
        raise RefusedError("its tally has a count below zero")
    return WorkCost(counts, read_passes(payload))


def read_passes(payload: Payload) -> float:
    """Return how many gradients over all of its data a client computed."""
    return _read_count(payload, "passes")


def read_probe(
    payload: Payload, what: str, points: list[Vector], largest: float
) -> tuple[list[Tensor], float]:
    """Return a client's measurement at each point, one row each, and its number of gradients."""
    names = [f"point {j}" for j in range(len(points))]
    vectors = set(names) if what in ("grad", "moments") else set()
    if what == "moments":
        points, largest = [x.new_zeros(2 * len(x) + 1) for x in points], math.inf
    _check_names(payload, vectors, set(names) - vectors)
    pairs = zip(names, points, strict=True)
    rows = [_read_row(payload, n, x, largest) for n, x in pairs]
    if what == "moments":
        for (row,) in rows:
            if float(row[0]) <= 0 or bool((row[1 + len(row) // 2 :] < 0).any()):
                raise RefusedError("its moments have no samples, or a sum of squares below zero")
    return rows, read_passes(payload)


def _check_names(payload: Payload, vectors: set[str], scalars: set[str]) -> None:
    for kind, got, want in (
        ("channel", set(payload.arrays), vectors),
        ("scalar", set(payload.scalars), scalars),
    ):
        if got - want:
            raise RefusedError(f"it sends the unknown {kind} {min(got - want)!r}")
        if want - got:
            raise RefusedError(f"it lacks the {kind} {min(want - got)!r}")


def _read_row(
    payload: Payload, name: str, x: Vector, largest: float, decode: Decode = decode_dense
) -> Tensor:
    """Return a channel as one row: a vector with the form of x, or a scalar."""
    bound = largest * (1 + float(torch.linalg.vector_norm(x)))
    try:
        if name in payload.arrays:
            value = decode(name, payload.arrays[name], x)
        else:
            value, bound = decode_scalar(name, payload.scalars[name], x), bound * bound
    except DataError as error:
        raise RefusedError(str(error)) from None
    if not bool(torch.isfinite(value).all()):
        raise RefusedError(f"{name} must be finite, got NaN or Inf.")
    norm = float(torch.linalg.vector_norm(value.double()))
    if norm > bound:
        raise RefusedError(f"{name} must have a length of at most {bound:.1e}, got {norm:.1e}.")
    return value[None]


def _decode_vector(
    method: Method, t: Round, ids: Tensor, name: str, array: EncodedArray, x: Vector
) -> Vector:
    wire = wire_for_round(method, name, t)
    if wire.lossless:
        return decode_dense(name, array, x)
    if array.form != "wire" or len(array.data) > 2 * x.nbytes + 64:
        raise DataError(f"{name} must come as the code of a wire, no longer than the model.")
    try:
        return wire.decode(array.data, x, make_sender(name, ids, t), t.plan.layout)
    except DataError:
        raise
    except Exception as error:  # a decoder may raise anything on hostile bytes
        raise DataError(f"{name} cannot be decoded: {first_line(error)}") from None


def _read_count(payload: Payload, name: str) -> float:
    found = _read_number(name, payload.metrics.get(name))
    if found < 0:
        raise RefusedError(f"its {name} is a count below zero")
    return found


def _read_list(payload: Payload, name: str, length: int) -> list[float]:
    value = payload.metrics.get(name)
    if not isinstance(value, list) or len(value) != length:
        raise RefusedError(f"its {name} must be {length} numbers")
    return [_read_number(name, v) for v in value]


def _read_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"its {name} must be a number, got {value!r}"[:200])
    if value != value or abs(value) == math.inf:
        raise RefusedError(f"its {name} must be finite, got {value!r}"[:200])
    if abs(value) > MAX_COUNT:
        raise RefusedError(
            f"its {name} must be at most {MAX_COUNT:.0e} in size, got {value!r}"[:200]
        )
    return float(value)
