"""Rounds under masks: what nodes send is added up by `tunefree.privacy`, and seen by nobody.

Every mean is a session of its own, of four exchanges instead of one: keys, shares, the work (or
what is measured for the server in between), and the shares that unmask its sum.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from ..core.errors import ArgumentError
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Collector, ProtocolError
from ..server.aggregate import Aggregation, weighted_mean
from ..wire import Ledger
from .check import RefusedError, RequestContext
from .exchange import Exchange, TooFewError
from .parcel import Fact, Payload, coded
from .seat import SecAggTerms

log = logging.getLogger("tunefree")

Say = Callable[[int], bytes | None]
Take = Callable[[int, bytes], None]
T = TypeVar("T")


def check_settings(method: Method, aggregate: Aggregation, lost: str) -> None:
    """Refuse what masks cannot hide, and say it if a wire saves nothing."""
    if aggregate is not weighted_mean:
        raise ArgumentError("Settings takes aggregate or secure, not both.")
    if lost == "renew" and method.prepares:
        raise ArgumentError(
            f"{method.name} lets a client that begins anew prepare alone, which no mask can hide; "
            "take lost='refuse' with Settings(secure=...)."
        )
    lossy = [name for name in method.vectors if not method.wire_of(name).lossless]
    if lossy:
        log.warning(
            "The codes of a wire cannot be added under masks: %s loses what its wire drops from "
            "%r, but sends whole vectors.",
            method.name,
            lossy[0],
        )


class Session:
    """The server's side of a round's session.

    Args:
        deal: The session.
        shares: Every client's share of the population's weight (N,).
        people: Those who are asked.
        exchange: How to reach them.
        t: The round.
        version: What it makes of their memory.
        ledger: Where bytes are counted.
    """

    def __init__(
        self,
        deal: SecAggTerms,
        shares: Tensor,
        people: list[int],
        exchange: Exchange,
        t: int,
        version: str,
        ledger: Ledger,
    ) -> None:
        self._deal, self._server = deal, Collector(deal.terms)
        self._shares, self._top, self._people = shares, float(shares[people].max()), people
        self._exchange, self._t, self._version, self._ledger = exchange, t, version, ledger

    def play(
        self,
        facts: Callable[[str, int], dict[str, Fact]],
        order: Callable[[int], Payload],
        counts: Callable[[Payload], T],
        renew: Callable[[int], bool] | None,
        need: int,
    ) -> dict[int, T]:
        """Make all four exchanges; return the counts of those whose numbers are in the sum.

        Args:
            facts: What a message of a kind says to a client.
            order: A client's task.
            counts: Reads what is not under masks.
            renew: Called for a client whose memory is lost; whether to ask it again.
            need: How many must answer.
        """
        server, threshold = self._server, self._deal.terms.threshold
        need = max(need, threshold)

        def ask(kind: str, whom: list[int], say: Say, take: Take, need: int) -> list[int]:
            def write(i: int) -> Payload:
                return self._told(i, Payload(facts(kind, i)), say(i))

            def read(i: int, parcel: Payload) -> None:
                self._taken(i, kind, parcel, take)

            done = self._exchange.run(whom, self._t, write, read, need, self._ledger)
            return [i for i in whom if i in done]

        def read(i: int, parcel: Payload) -> T:
            found = counts(parcel)
            self._taken(i, "masked", parcel, server.masked)
            return found

        def write(i: int) -> Payload:
            return self._told(i, order(i), server.inbox(i))

        there = ask("keys", self._people, lambda i: None, server.advertised, need)
        there = ask("shares", there, lambda i: server.roster(), server.shared, need)
        found = self._exchange.run(there, self._t, write, read, need, self._ledger, renew)
        left = server.survivors()
        ask("opened", list(server.people), lambda i: left, server.opened, threshold)
        return found

    def _told(self, i: int, parcel: Payload, message: bytes | None) -> Payload:
        """Return a message to a client, with the session's own part."""
        known: dict[str, Fact] = {"secure": self._deal.fact()}
        known["weight"] = float(self._shares[i]) / self._top
        said = {} if message is None else {"message": coded(message)}
        self._ledger.down["masks"] += len(message or b"")
        return replace(parcel, facts=parcel.facts | known, arrays=parcel.arrays | said)

    def _taken(self, i: int, kind: str, parcel: Payload, take: Take) -> None:
        """Take a client's part in the session from its answer, or refuse it."""
        RequestContext(i, self._t, self._version).check(parcel)
        grid = self._deal.grid
        data = opened(kind, parcel, 4096 + 256 * len(self._people) + grid.length * grid.bits // 8)
        try:
            take(i, data)
        except ProtocolError as error:
            raise RefusedError(str(error)) from None
        self._ledger.send_up(kind, len(data), len(data) if kind == "masked" else 0.0)

    def means(self, like: Vector) -> Channels:
        """Return the means over those whose numbers arrived."""
        try:
            total = self._deal.grid.decode(self._server.total())
        except ProtocolError as error:
            raise TooFewError(f"Round {self._t} cannot be unmasked: {error}") from None
        scale = self._top / float(self._shares[list(self._server.people)].sum())
        return {n: (v * scale).to(like.device, like.dtype) for n, v in total.items()}


def opened(name: str, parcel: Payload, most: int) -> bytes:
    """Return the message that a client's parcel carries; refuse a long one."""
    raw = parcel.arrays.get(name)
    if raw is None or set(parcel.arrays) != {name} or parcel.scalars or raw.form != "wire":
        raise RefusedError(f"it sends no {name!r}, or more than that")
    if len(raw.data) > most:
        raise RefusedError(f"its {name!r} has {len(raw.data)} bytes, more than {most}")
    return raw.data
