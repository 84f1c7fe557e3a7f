"""What the server lets in: every upload is looked at before it counts.

RefusedError are: another client's or another round's answer, a channel too many or too few, another
dtype, shape or length, a code that its wire cannot have written, numbers that are not finite, and
vectors of absurd length. Lengths are checked before anything is made of the bytes, so that
decoding takes no more memory than the model.
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
from ..simulation.desk import WORK_COUNTS
from .payload import EncodedArray, Number, Payload, decode_dense, decode_scalar

MAX_COUNT = 1e15  # of anything that is counted


class RefusedError(TunefreeError):
    """An upload that does not count, and why."""


@dataclass(frozen=True)
class Upload:
    """What one client sent: rows as they arrived, their bytes, and measurements."""

    rows: Channels  # (1, d) and (1,)
    sizes: dict[str, int]
    counted: float  # bytes as papers count
    loss: Tensor  # (turns,)
    lr: Tensor  # (turns,)
    work: list[float]
    passes: float


@dataclass(frozen=True)
class RequestContext:
    """What was asked of a client, against which its answer is read."""

    client: int
    round: int
    version: str

    def check(self, payload: Payload) -> None:
        """Refuse the answer to another question."""
        for name, want in vars(self).items():
            got = payload.header.get(name)
            if got != want:
                raise RefusedError(f"its {name} is {got!r}, not {want!r}")


def read_upload(
    payload: Payload, request: RequestContext, method: Method, x: Vector, t: Round, largest: float
) -> Upload:
    """Return an upload, or refuse it.

    Args:
        parcel: What came.
        question: What was asked.
        method: Which channels there are, and their wires.
        x: The model; uploads have its shape, dtype and place.
        t: The round.
        largest: Longest vector let in, in units of 1 + |x|.
    """
    request.check(payload)
    names = method.channels(t.preparing)
    vectors = [n for n in names if n in method.vectors]
    _match("channel", set(payload.arrays), set(vectors))
    _match("scalar", set(payload.scalars), set(names) - set(vectors))
    ids = torch.tensor([request.client])
    bound = largest * (1 + float(torch.linalg.vector_norm(x)))
    rows: Channels = {}
    sizes: dict[str, int] = {}
    try:
        for name in vectors:
            raw = payload.arrays[name]
            rows[name] = _vector(name, raw, method, x, ids, t)[None]
            sizes[name] = len(raw.data)
            _bounded(name, rows[name], bound)
        for name in payload.scalars:
            rows[name] = decode_scalar(name, payload.scalars[name], x)[None]
            sizes[name] = x.element_size()
            _bounded(name, rows[name], bound * bound)
    except DataError as error:
        raise RefusedError(str(error)) from None
    if "delta_sq" in rows and "delta" in rows:
        _agree(rows["delta_sq"], row_sq(rows["delta"]))
    turns = method.direction.local_phases(t).times
    got = payload.metrics
    loss, lr = (x.new_tensor(_list(n, got.get(n), turns)) for n in ("loss", "lr"))
    found, more = read_work(payload)
    counted = _list("counted", [got.get("counted")], 1)[0]  # type: ignore[list-item]
    if counted < 0:
        raise RefusedError("it counts below zero")
    counted = min(counted, float(sum(sizes.values())))
    ordered = {n: rows[n] for n in names}
    return Upload(ordered, sizes, counted, loss, lr, found, more)


def read_work(payload: Payload) -> tuple[list[float], float]:
    """Return the tally of a client's work, and the gradients it took over all data."""
    found = _list("tally", payload.metrics.get("tally"), len(WORK_COUNTS))
    if min(found) < 0:
        raise RefusedError("it counts below zero")
    return found, read_passes(payload)


def read_passes(payload: Payload) -> float:
    """Return how many gradients over all data a client took."""
    found = _list("passes", [payload.metrics.get("passes")], 1)[0]  # type: ignore[list-item]
    if found < 0:
        raise RefusedError("it counts below zero")
    return found


def read_probe(
    payload: Payload, request: RequestContext, what: str, points: list[Vector], largest: float
) -> tuple[list[Tensor], float]:
    """Return what was measured at each point, one row each, and the gradients it took."""
    request.check(payload)
    names = [f"point {j}" for j in range(len(points))]
    _match("channel", set(payload.arrays), set(names) if what == "grad" else set())
    _match("scalar", set(payload.scalars), set() if what == "grad" else set(names))
    out = []
    try:
        for name, x in zip(names, points, strict=True):
            bound = largest * (1 + float(torch.linalg.vector_norm(x)))
            if what == "grad":
                value = decode_dense(name, payload.arrays[name], x)[None]
                _bounded(name, value, bound)
            else:
                value = decode_scalar(name, payload.scalars[name], x)[None]
                _bounded(name, value, bound * bound)
            out.append(value)
    except DataError as error:
        raise RefusedError(str(error)) from None
    return out, read_passes(payload)


def _match(kind: str, got: set[str], want: set[str]) -> None:
    if got - want:
        raise RefusedError(f"it sends the unknown {kind} {min(got - want)!r}")
    if want - got:
        raise RefusedError(f"it lacks the {kind} {min(want - got)!r}")


def _vector(
    name: str, raw: EncodedArray, method: Method, x: Vector, ids: Tensor, t: Round
) -> Vector:
    wire = wire_for_round(method, name, t)
    if wire.lossless:
        return decode_dense(name, raw, x)
    if raw.form != "wire" or len(raw.data) > 2 * x.nbytes + 64:
        raise DataError(f"{name} must come as the code of a wire, no longer than the model.")
    try:
        return wire.decode(raw.data, x, make_sender(name, ids, t), t.plan.layout)
    except DataError:
        raise
    except Exception as error:  # whatever bytes of a stranger can do to a decoder
        raise DataError(f"{name} cannot be decoded: {first_line(error)}") from None


def _bounded(name: str, value: Tensor, bound: float) -> None:
    if not bool(torch.isfinite(value).all()):
        raise DataError(f"{name} must be finite, got NaN or Inf.")
    length = float(torch.linalg.vector_norm(value.double()))
    if length > bound:
        raise DataError(f"{name} has the length {length:.1e}, beyond the {bound:.1e} let in.")


def _agree(said: Tensor, found: Tensor) -> None:
    if not torch.allclose(said, found, rtol=1e-3, atol=float(torch.finfo(said.dtype).tiny)):
        raise RefusedError(
            f"its delta_sq is {float(said):.3e}, but |delta|^2 is {float(found):.3e}"
        )


def _list(name: str, value: Number | None, length: int) -> list[float]:
    numbers = value if isinstance(value, list) else None
    if numbers is None or len(numbers) != length:
        raise RefusedError(f"its {name} must be {length} numbers")
    for v in numbers:
        if isinstance(v, bool) or not isinstance(v, int | float) or v != v or abs(v) == math.inf:
            raise RefusedError(f"its {name} must be finite, got {v!r}"[:200])
        if abs(v) > MAX_COUNT:
            raise RefusedError(f"its {name} is absurd: {v!r}"[:200])
    return [float(v) for v in numbers]
