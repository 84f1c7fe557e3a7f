"""The mean of the clients' moments, by the aggregation of the run."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.types import Channels
from ..privacy import Bounds, Privacy, Secure
from ..privacy.digits import from_digits, to_digits
from ..robust import Robust
from ..server.aggregate import Aggregation, Mean

OCTAVES = 20  # under a budget, root mean squares count from 2^-20 to 2^20
CLOSE = 0.98  # and means to this share of them: a deviation is at least a fifth of them
MAX_NOISE = 0.5  # octaves by which noise may move a scale


class MomentSums:
    """Adds up moments of clients, each of weight 1 / clients.

    Under masks they are sent as digits, which add up without rounding at any size. A robust rule
    gets the moments of one sample of each client, since any number of samples can be claimed. Under
    a privacy budget, with rms the root mean square of a client's column, it is the bounded numbers

        log2(rms) / 20,    mean / rms

    in [-1, 1], of which the mean over clients is released once, with noise.
    """

    def __init__(self, aggregate: Aggregation, clients: int, columns: int) -> None:
        self._clients, self._columns, self._rule = clients, columns, aggregate
        rule = aggregate
        if isinstance(rule, Secure):
            rule = rule.for_digits()
        elif isinstance(rule, Privacy):
            rule = replace(rule, bounds=Bounds(vectors={"moments": math.sqrt(2 * columns)}))
        self._mean = rule(1.0, -1, "moments")

    def add(self, rows: Tensor) -> None:
        """Add rows of clients, as `column_moments` returns them.

        A plain mean adds one client after the other, so that a federation, whose clients answer
        one by one, has the same bits.
        """
        rows = self._encode(rows)
        weights = torch.full((len(rows),), 1 / self._clients, dtype=torch.float64)
        if isinstance(self._mean, Mean):
            rows = (rows * weights.to(rows.device)[:, None]).cumsum(0)[-1:]
            weights = weights.new_ones(1)
        self._mean.add(weights, {"moments": rows})

    def _encode(self, rows: Tensor) -> Tensor:
        if isinstance(self._rule, Secure):
            return to_digits(rows)
        if isinstance(self._rule, Robust | Privacy):
            rows = rows / rows[:, :1].clamp(min=torch.finfo(rows.dtype).tiny)
        if not isinstance(self._rule, Privacy):
            return rows
        mean, square = rows[:, 1:].chunk(2, dim=1)
        rms = square.clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
        return torch.cat([(rms.log2() / OCTAVES).clamp(-1, 1), mean / rms], 1)

    def result(self) -> Channels:
        """Return the mean, as it was sent."""
        return self._mean.result()

    def zeros(self, shift: Tensor) -> Channels:
        """Return the mean of no clients."""
        return {"moments": self._encode(shift.new_ones(1, 2 * self._columns + 1))[0] * 0}

    def decode(self, found: Tensor) -> Tensor:
        """Return the mean of the moments from that of what was sent."""
        if isinstance(self._rule, Secure):
            return from_digits(found)
        if not isinstance(self._rule, Privacy):
            return found
        octaves, share = found.chunk(2)
        rms = torch.exp2(OCTAVES * octaves.clamp(-1, 1))
        return torch.cat([rms.new_ones(1), rms * share.clamp(-CLOSE, CLOSE), rms.square()])


def is_too_noisy(privacy: Privacy, columns: int) -> bool:
    """Return whether the noise of a budget leaves little of the columns' scales."""
    return OCTAVES * privacy.noise * math.sqrt(2 * columns) > MAX_NOISE * privacy.clients
