"""Quantization for secure sums, which add integers modulo 2^k.

Client i sends q_i = round(w_i v_i / s), with weights 0 < w_i <= 1, and the server reads

    sum_i w_i v_i  ~  s sum_i q_i,      |error| <= m s  at every entry, for m clients

(half a step of rounding per client, and less than another half for float64's rounding). The entries
of a channel are at most its bound B; the step s is the smallest power of two for which the sum of
`max_clients` clients fits: m (B / s) < 2^(k-1), and B / s <= 2^50, so that float64 represents it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import (
    ArgumentError,
    DataError,
    check_argument,
    check_at_least,
    check_fraction,
)
from ..core.fields import Checked, PositiveInt
from ..core.types import Channels

UnsignedArray = NDArray[np.unsignedinteger[Any]]
BITS: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
MAX_STEPS = 2**50  # of one entry
MIN_BOUND = 2.0**-900  # so that float64 represents the step and its inverse


@dataclass(frozen=True)
class Channel(Checked):
    """A channel's name, the shape of one client's part, and the bound on its entries."""

    name: str
    shape: tuple[int, ...]
    bound: Annotated[float, partial(check_at_least, low=MIN_BOUND)]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Quantizer(Checked):
    """Converts channels to one vector of integers, and the integers' sum back to channels.

    Args:
        channels: The channels, in the order of the vector.
        max_clients: Largest number of clients in a sum.
        bits: Bits k of an integer, 32 or 64.
    """

    channels: tuple[Channel, ...]
    max_clients: PositiveInt
    bits: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument("Quantizer", "bits", self.bits, "32 or 64", self.bits in tuple(BITS))
        if self._levels < 2**8:
            few = f"Quantizer(bits={self.bits}) leaves fewer than 256 steps for the numbers of"
            raise ArgumentError(f"{few} {self.max_clients} clients; take 64.")

    @property
    def _levels(self) -> int:
        return int(min(MAX_STEPS, (2 ** (self.bits - 1) - 1) // self.max_clients))

    @property
    def length(self) -> int:
        """Number of integers of one client."""
        return sum(c.size for c in self.channels)

    def step(self, channel: Channel) -> float:
        """Return the step size s of a channel.

        >>> Quantizer((), max_clients=100, bits=32).step(Channel("delta", (5,), 1.0))
        5.960464477539063e-08
        """
        return 2.0 ** math.ceil(math.log2(channel.bound / self._levels))

    def encode(self, values: Channels, weight: float = 1.0) -> UnsignedArray:
        """Return one client's channels, times its weight in (0, 1], as integers modulo 2^k."""
        check_fraction("Quantizer.encode", "weight", weight)
        names = [c.name for c in self.channels]
        if set(values) != set(names):
            raise DataError(f"The channels must be {names}, got {sorted(values)}.")
        parts = [self._steps(c, values[c.name], weight) for c in self.channels]
        flat = np.concatenate([np.zeros(0, np.int64), *parts])
        return flat.astype(np.int64).view(np.uint64).astype(BITS[self.bits])

    def _steps(self, channel: Channel, value: Tensor, weight: float) -> NDArray[np.int64]:
        array = value.detach().to("cpu", torch.float64).numpy()
        if array.shape != channel.shape:
            raise DataError(f"{channel.name} must have shape {channel.shape}, got {array.shape}.")
        if not np.isfinite(array).all():
            raise DataError(f"{channel.name} must be finite, got NaN or Inf.")
        largest = float(np.abs(array).max(initial=0.0))
        if largest > channel.bound:
            beyond = f"an entry of size {largest:.3g}, beyond its bound {channel.bound:.3g}"
            raise DataError(f"{channel.name} has {beyond}. Give a larger one; nothing is clipped.")
        steps: NDArray[np.int64] = np.rint(array * (weight / self.step(channel))).astype(np.int64)
        return steps.reshape(-1)

    def decode(self, total: UnsignedArray, weight: float | None = None) -> Channels:
        """Return the weighted sums of the channels, in float64, from the sum of the integers.

        Args:
            total: The sum of the integers, modulo 2^k.
            weight: Sum of the weights of the clients in it; None is one each for `max_clients`.

        Raises:
            DataError: If an entry is larger than clients within their bounds can make it. Within
                that range, a client that does not keep its own bound goes unnoticed: it can move
                an entry by up to twice the bound times all weights.
        """
        if total.shape != (self.length,) or total.dtype != BITS[self.bits]:
            raise DataError(f"A total must be {self.length} numbers of {self.bits} bits.")
        signed = total.astype(BITS[self.bits].newbyteorder("=")).view(f"i{self.bits // 8}")
        out: Channels = {}
        at = 0
        for c in self.channels:
            part = signed[at : at + c.size].astype(np.float64) * self.step(c)
            most = (self.max_clients if weight is None else weight) * c.bound
            largest = float(np.abs(part).max(initial=0.0))
            if largest > most + self.max_clients * self.step(c):
                beyond = f"an entry of size {largest:.3g}, beyond the sum of bounds {most:.3g}"
                raise DataError(f"The sum of {c.name} has {beyond}; a client sent wrong numbers.")
            out[c.name], at = torch.from_numpy(part.reshape(c.shape)), at + c.size
        return out


def make_quantizer(
    rows: Channels, bound: float | Mapping[str, float], max_clients: int, bits: int = 64
) -> Quantizer:
    """Return the quantizer for channels with rows (m, ...).

    Args:
        rows: The channels; only their names and the shapes of one row are used.
        bound: Bound on the entries, of all channels or by name.
        max_clients: Largest number of clients in a sum.
        bits: Bits of an integer, 32 or 64.
    """
    bounds = bound if isinstance(bound, Mapping) else dict.fromkeys(rows, bound)
    missing = [n for n in rows if n not in bounds]
    if missing:
        raise ArgumentError(f"The channel {missing[0]!r} has no bound; name it in bound=...")
    channels = (Channel(n, tuple(v.shape[1:]), bounds[n]) for n, v in rows.items())
    return Quantizer(tuple(channels), max_clients, bits)
