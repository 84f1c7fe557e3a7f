"""The mean under secure aggregation, with all members in this process.

The same aggregator as `server.aggregate.Mean`, equal to it up to the grid: with step s of a channel
and m clients of shares p_i,

    |mean - plain mean| <= m s max_i p_i / sum_i p_i      (s, for equal weights)

beside the rounding of the channel's own dtype. It is what a simulation uses to show that a method
lives on sums alone; over a real network each `ProtocolClient` lives on its node.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_at_least, check_int
from ..core.types import Channels
from .messages import ProtocolTerms, default_threshold
from .protocol_client import ProtocolClient
from .protocol_server import ProtocolServer
from .quantizer import MIN_BOUND, Quantizer, UnsignedArray, make_quantizer

MESSAGE_KINDS = (
    "keys",
    "shares",
    "masked",
    "opened",
)  # the messages before which somebody may vanish


def secure_sum(
    terms: ProtocolTerms, values: Mapping[int, UnsignedArray], away: Mapping[int, str] | None = None
) -> tuple[UnsignedArray, tuple[int, ...]]:
    """Play a whole session; return the sum modulo 2^k, and whose numbers are in it.

    Args:
        terms: What was agreed on.
        values: Every member's whole numbers.
        away: Which of `MESSAGE_KINDS` a member does not send any more, by member.
    """
    away = {} if away is None else away
    for stop in away.values():
        if stop not in MESSAGE_KINDS:
            raise ArgumentError(
                f"A member may stop before {', '.join(MESSAGE_KINDS)}, got {stop!r}."
            )

    def there(i: int, message: str) -> bool:
        return (
            MESSAGE_KINDS.index(away.get(i, MESSAGE_KINDS[-1])) > MESSAGE_KINDS.index(message)
            or i not in away
        )

    members = {i: ProtocolClient(i, terms) for i in values}
    server = ProtocolServer(terms)
    for i in [i for i in members if there(i, "keys")]:
        server.receive_keys(i, members[i].advertise())
    roster = server.roster()
    sharing = [i for i in members if there(i, "shares")]
    for i in sharing:
        server.receive_shares(i, members[i].share(roster))
    for i in [i for i in sharing if there(i, "masked")]:
        server.receive_masked(i, members[i].mask(server.inbox(i), values[i]))
    left = server.survivors()
    for i in [i for i in server.survivor_ids if there(i, "opened")]:
        server.receive_opened(i, members[i].open(left))
    return server.unmask_sum(), server.survivor_ids


class SecureMean:
    """A weighted mean of which nothing but the sum is seen in clear; each row is one client.

    Args:
        weight: Total weight of the cohort; rows' weights are divided by it.
        bound: The largest entry of a channel, of all or by name; a larger one is an error.
        bits: Of a masked number, 32 or 64.
        threshold: Fewest clients that are added up; None is above two thirds of them.
        away: Rows, by position, that stop before a message of `MESSAGE_KINDS`, for tests; the
            mean is over the others.
    """

    def __init__(
        self,
        weight: float,
        *,
        bound: float | Mapping[str, float] = 1024.0,
        bits: int = 64,
        threshold: int | None = None,
        away: Mapping[int, str] | None = None,
    ) -> None:
        self._weight, self._bound, self._bits = weight, bound, bits
        self._threshold, self._away = threshold, away
        self._p: list[float] = []
        self._rows: list[Channels] = []

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); they are held until the end."""
        for j, w in enumerate(p.tolist()):
            self._p.append(w)
            self._rows.append({name: value[j] for name, value in rows.items()})

    def result(self) -> Channels:
        """Return the means over those who are left."""
        if not self._rows:
            return {}
        people, top = len(self._rows), max(self._p)
        if people < 2:
            raise ArgumentError(
                "Secure aggregation takes at least 2 clients: a sum of one is bare."
            )
        like = self._rows[0]
        quantizer = make_quantizer(
            {n: v[None] for n, v in like.items()}, self._bound, people, self._bits
        )
        threshold = default_threshold(people) if self._threshold is None else self._threshold
        terms = ProtocolTerms(secrets.token_bytes(16), threshold, quantizer.length, self._bits)
        pairs = enumerate(zip(self._p, self._rows, strict=True))
        values = {i: quantizer.encode(row, p / top) for i, (p, row) in pairs}
        total, left = secure_sum(terms, values, self._away)
        lost = sum(p for i, p in enumerate(self._p) if i not in left)
        scale = top / (self._weight - lost)
        means = {n: v * scale for n, v in quantizer.decode(total).items()}
        return {n: v.to(like[n].device, like[n].dtype) for n, v in means.items()}


@dataclass(frozen=True, kw_only=True)
class Secure:
    """Makes a `SecureMean` for each sum; its settings.

    Args:
        bound: The largest entry of a channel, of all or by name.
        bits: Of a masked number, 32 or 64.
        threshold: Fewest clients that are added up; None is above two thirds of them.
    """

    bound: float | Mapping[str, float] = 1024.0
    bits: int = 64
    threshold: int | None = None

    def __post_init__(self) -> None:
        for bound in self.bound.values() if isinstance(self.bound, Mapping) else [self.bound]:
            check_at_least("Secure", "bound", bound, MIN_BOUND)
        Quantizer((), 1, self.bits)
        if self.threshold is not None:
            check_int("Secure", "threshold", self.threshold, 2)

    def __call__(self, weight: float, round: int | None = None, what: str = "") -> SecureMean:
        """Return the aggregator of a sum."""
        return SecureMean(weight, bound=self.bound, bits=self.bits, threshold=self.threshold)


def mean_error(p: Tensor, step: float) -> float:
    """Return the most by which a mean with weights p (m,) may differ from the exact one."""
    shares = p.to(torch.float64)
    return float(len(shares) * step * shares.max() / shares.sum())
