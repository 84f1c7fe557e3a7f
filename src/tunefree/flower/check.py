"""Validation of what clients send: every answer is checked before the server uses it.

The server refuses answers to another request, missing and additional channels, other dtypes, shapes
and lengths, bytes that the channel's wire cannot decode, non-finite numbers and vectors of absurd
norm. Lengths are checked before anything is decoded, so that decoding needs no more memory than the
model.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import DataError, TunefreeError, first_line
from ..core.plan import Round
from ..core.types import Channels, Vector
from ..core.vectors import row_sq
from ..methods import Method
from ..rounds import make_sender, wire_for_round
from ..simulation.context import WORK_COUNTS
from .payload import EncodedArray, Number, Payload, decode_dense, decode_scalar

MAX_COUNT = 1e15


class RefusedError(TunefreeError):
    """An answer is not used; the text states why."""


@dataclass(frozen=True)
class Upload:
    """One client's upload: the decoded channels, their bytes, and its metrics."""

    rows: Channels  # (1, d) and (1,)
    sizes: dict[str, int]
    counted: float  # bytes by the papers' count
    loss: Tensor  # (phases,)
    lr: Tensor  # (phases,)
    work: list[float]  # as in WORK_COUNTS
    passes: float  # gradients over all data of the client


@dataclass(frozen=True)
class RequestContext:
    """The request that an answer must belong to."""

    client: int
    round: int
    version: str

    def check(self, payload: Payload) -> None:
        """Refuse an answer to another request."""
        for name, want in vars(self).items():
            got = payload.header.get(name)
            if got != want:
                raise RefusedError(f"its {name} is {got!r}, not {want!r}")


def read_upload(
    payload: Payload, request: RequestContext, method: Method, x: Vector, t: Round, largest: float
) -> Upload:
    """Return a client's upload, or raise `RefusedError`.

    Args:
        payload: The answer.
        request: The request.
        method: Defines the channels and their wires.
        x: The model; uploads have its shape, dtype and device.
        t: The round.
        largest: Largest norm of a vector that is accepted, in units of 1 + |x|.
    """
    request.check(payload)
    names = method.channels(t.preparing)
    vectors = [n for n in names if n in method.vectors]
    _check_names("channel", set(payload.arrays), set(vectors))
    _check_names("scalar", set(payload.scalars), set(names) - set(vectors))
    ids = torch.tensor([request.client])
    bound = largest * (1 + float(torch.linalg.vector_norm(x)))
    rows: Channels = {}
    sizes: dict[str, int] = {}
    try:
        for name in vectors:
            array = payload.arrays[name]
            rows[name] = _decode_vector(name, array, method, x, ids, t)[None]
            sizes[name] = len(array.data)
            _check_norm(name, rows[name], bound)
        for name in payload.scalars:
            rows[name] = decode_scalar(name, payload.scalars[name], x)[None]
            sizes[name] = x.element_size()
            _check_norm(name, rows[name], bound * bound)
    except DataError as error:
        raise RefusedError(str(error)) from None
    if "delta_sq" in rows and "delta" in rows:
        _check_delta_sq(rows["delta_sq"], row_sq(rows["delta"]))
    phases = method.direction.local_phases(t).times
    loss, lr = (x.new_tensor(_read_list(n, payload.metrics.get(n), phases)) for n in ("loss", "lr"))
    work, passes = read_work(payload)
    counted = min(_read_count(payload, "counted"), float(sum(sizes.values())))
    ordered = {n: rows[n] for n in names}
    return Upload(ordered, sizes, counted, loss, lr, work, passes)


def read_work(payload: Payload) -> tuple[list[float], float]:
    """Return the counts of a client's work, and its number of gradients over all of its data."""
    found = _read_list("tally", payload.metrics.get("tally"), len(WORK_COUNTS))
    if min(found) < 0:
        raise RefusedError("its tally has a count below zero")
    return found, read_passes(payload)


def read_passes(payload: Payload) -> float:
    """Return how many gradients over all of its data a client computed."""
    return _read_count(payload, "passes")


def read_probe(
    payload: Payload, request: RequestContext, what: str, points: list[Vector], largest: float
) -> tuple[list[Tensor], float]:
    """Return a client's measurement at each point, one row each, and its number of gradients."""
    request.check(payload)
    names = [f"point {j}" for j in range(len(points))]
    _check_names("channel", set(payload.arrays), set(names) if what == "grad" else set())
    _check_names("scalar", set(payload.scalars), set() if what == "grad" else set(names))
    out = []
    try:
        for name, x in zip(names, points, strict=True):
            bound = largest * (1 + float(torch.linalg.vector_norm(x)))
            if what == "grad":
                value = decode_dense(name, payload.arrays[name], x)[None]
                _check_norm(name, value, bound)
            else:
                value = decode_scalar(name, payload.scalars[name], x)[None]
                _check_norm(name, value, bound * bound)
            out.append(value)
    except DataError as error:
        raise RefusedError(str(error)) from None
    return out, read_passes(payload)


def _check_names(kind: str, got: set[str], want: set[str]) -> None:
    if got - want:
        raise RefusedError(f"it sends the unknown {kind} {min(got - want)!r}")
    if want - got:
        raise RefusedError(f"it lacks the {kind} {min(want - got)!r}")


def _decode_vector(
    name: str, array: EncodedArray, method: Method, x: Vector, ids: Tensor, t: Round
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


def _check_norm(name: str, value: Tensor, bound: float) -> None:
    if not bool(torch.isfinite(value).all()):
        raise DataError(f"{name} must be finite, got NaN or Inf.")
    norm = float(torch.linalg.vector_norm(value.double()))
    if norm > bound:
        raise DataError(f"{name} must have a length of at most {bound:.1e}, got {norm:.1e}.")


def _check_delta_sq(sent: Tensor, found: Tensor) -> None:
    if not torch.allclose(sent, found, rtol=1e-3, atol=float(torch.finfo(sent.dtype).tiny)):
        raise RefusedError(
            f"its delta_sq is {float(sent):.3e}, but |delta|^2 is {float(found):.3e}"
        )


def _read_count(payload: Payload, name: str) -> float:
    (found,) = _read_list(name, [payload.metrics.get(name)], 1)  # type: ignore[list-item]
    if found < 0:
        raise RefusedError(f"its {name} is a count below zero")
    return found


def _read_list(name: str, value: Number | None, length: int) -> list[float]:
    numbers = value if isinstance(value, list) else None
    if numbers is None or len(numbers) != length:
        raise RefusedError(f"its {name} must be {length} numbers")
    for v in numbers:
        if isinstance(v, bool) or not isinstance(v, int | float) or v != v or abs(v) == math.inf:
            raise RefusedError(f"its {name} must be finite, got {v!r}"[:200])
        if abs(v) > MAX_COUNT:
            raise RefusedError(f"its {name} is absurd: {v!r}"[:200])
    return [float(v) for v in numbers]
