"""The mean under secure aggregation, with all clients in this process.

The same as `server.aggregate.Mean` up to quantization: with step s of a channel and m clients of
weights p_i,

    |mean - plain mean| <= m s max_i p_i / sum_i p_i      (s, for equal weights)

besides the rounding of the channel's dtype. A simulation uses it to show that a method needs only
sums; in a federation each `ProtocolClient` runs on its node. The implementation is experimental and
was not audited.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.errors import ArgumentError, check_at_least, check_int
from ..core.types import Channels
from .messages import ProtocolTerms, default_threshold
from .protocol_client import ProtocolClient
from .protocol_server import ProtocolServer
from .quantizer import MIN_BOUND, Quantizer, UnsignedArray, make_quantizer

MESSAGE_KINDS = ("keys", "shares", "masked", "opened")  # that clients send, in this order


def secure_sum(
    terms: ProtocolTerms,
    values: Mapping[int, UnsignedArray],
    dropouts: Mapping[int, str] | None = None,
) -> tuple[UnsignedArray, tuple[int, ...]]:
    """Run a whole session; return the sum modulo 2^k and the members in it.

    Args:
        terms: The session's parameters.
        values: The integers of each member.
        dropouts: The first of `MESSAGE_KINDS` that a member does not send, by member.
    """
    first = {} if dropouts is None else dropouts
    for kind in first.values():
        if kind not in MESSAGE_KINDS:
            raise ArgumentError(f"A member may stop before one of {MESSAGE_KINDS}, got {kind!r}.")

    def sends(i: int, kind: str) -> bool:
        return i not in first or MESSAGE_KINDS.index(kind) < MESSAGE_KINDS.index(first[i])

    members = {i: ProtocolClient(i, terms) for i in values}
    server = ProtocolServer(terms)
    for i in [i for i in members if sends(i, "keys")]:
        server.receive_keys(i, members[i].advertise())
    roster = server.roster()
    sharing = [i for i in members if sends(i, "shares")]
    for i in sharing:
        server.receive_shares(i, members[i].share(roster))
    for i in [i for i in sharing if sends(i, "masked")]:
        server.receive_masked(i, members[i].mask(server.inbox(i), values[i]))
    left = server.survivors()
    for i in [i for i in server.survivor_ids if sends(i, "opened")]:
        server.receive_opened(i, members[i].open(left))
    return server.unmask_sum(), server.survivor_ids


class SecureMean:
    """A weighted mean by secure aggregation, in which each row is one client.

    Args:
        weight: Total weight of the cohort; rows' weights are divided by it.
        bound, bits, threshold: As in `Secure`.
        dropouts: Rows, by position, that stop before a message of `MESSAGE_KINDS`, for tests; the
            mean is over the others.
    """

    def __init__(
        self,
        weight: float,
        *,
        bound: float | Mapping[str, float] = 1024.0,
        bits: int = 64,
        threshold: int | None = None,
        dropouts: Mapping[int, str] | None = None,
    ) -> None:
        self._weight, self._dropouts = weight, dropouts
        self._secure = Secure(bound=bound, bits=bits, threshold=threshold)
        self._p: list[float] = []
        self._rows: list[Channels] = []

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); they are stored until `result`."""
        for j, w in enumerate(p.tolist()):
            self._p.append(w)
            self._rows.append({name: value[j] for name, value in rows.items()})

    def result(self) -> Channels:
        """Return the means over the clients that did not drop out."""
        if not self._rows:
            return {}
        secure, like, top = self._secure, self._rows[0], max(self._p)
        if len(self._rows) < 2:
            raise ArgumentError("Secure sums take at least 2 clients: a sum of one hides nothing.")
        channels = {n: v[None] for n, v in like.items()}
        quantizer = make_quantizer(channels, secure.bound, len(self._rows), secure.bits)
        pairs = enumerate(zip(self._p, self._rows, strict=True))
        values = {i: quantizer.encode(row, p / top) for i, (p, row) in pairs}
        total, left = secure_sum(secure.new_terms(quantizer), values, self._dropouts)
        lost = sum(p for i, p in enumerate(self._p) if i not in left)
        scale, weight = top / (self._weight - lost), sum(self._p[i] for i in left) / top
        means = {n: v * scale for n, v in quantizer.decode(total, weight).items()}
        return {n: v.to(like[n].device, like[n].dtype) for n, v in means.items()}


@dataclass(frozen=True, kw_only=True)
class Secure:
    """Settings of secure aggregation; calling it creates the aggregator of a sum.

    The implementation is experimental and was not audited.

    Args:
        bound: Bound on the entries, of all channels or by name; a larger entry is an error.
        bits: Bits of a masked integer, 32 or 64.
        threshold: Fewest clients in a sum; None is just above two thirds of them.
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

    def for_digits(self) -> "Secure":
        """Return the settings for integers below 2^32, whose sums are exact."""
        return replace(self, bound=2.0**32, bits=64)

    def new_terms(self, quantizer: Quantizer) -> ProtocolTerms:
        """Return the parameters of a new session of as many clients as the quantizer allows."""
        most = quantizer.max_clients
        threshold = default_threshold(most) if self.threshold is None else self.threshold
        return ProtocolTerms(secrets.token_bytes(16), threshold, quantizer.length, self.bits)
