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
from ..privacy import ProtocolError, ProtocolServer
from ..server.aggregate import Aggregation, weighted_mean
from ..wire import Ledger
from .check import RefusedError, RequestContext
from .exchange import Exchange, TooFewError
from .payload import HeaderValue, Payload, wrap_bytes
from .secagg_client import SecAggTerms

log = logging.getLogger("tunefree")

MakeMessage = Callable[[int], bytes | None]
TakeMessage = Callable[[int, bytes], None]
T = TypeVar("T")


def check_secure_settings(method: Method, aggregate: Aggregation, lost: str) -> None:
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


class SecAggSession:
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
        self._deal, self._server = deal, ProtocolServer(deal.terms)
        self._shares, self._top, self._people = shares, float(shares[people].max()), people
        self._exchange, self._t, self._version, self._ledger = exchange, t, version, ledger

    def play(
        self,
        header: Callable[[str, int], dict[str, HeaderValue]],
        order: Callable[[int], Payload],
        counts: Callable[[Payload], T],
        renew: Callable[[int], bool] | None,
        need: int,
    ) -> dict[int, T]:
        """Make all four exchanges; return the counts of those whose numbers are in the sum.

        Args:
            header: What a message of a kind says to a client.
            order: A client's task.
            counts: Reads what is not under masks.
            renew: Called for a client whose memory is lost; whether to ask it again.
            need: How many must answer.
        """
        server, threshold = self._server, self._deal.terms.threshold
        need = max(need, threshold)

        def ask(
            kind: str, whom: list[int], say: MakeMessage, take: TakeMessage, need: int
        ) -> list[int]:
            def write(i: int) -> Payload:
                return self._with_session(i, Payload(header(kind, i)), say(i))

            def read(i: int, payload: Payload) -> None:
                self._accept(i, kind, payload, take)

            done = self._exchange.run(whom, self._t, write, read, need, self._ledger)
            return [i for i in whom if i in done]

        def read(i: int, payload: Payload) -> T:
            found = counts(payload)
            self._accept(i, "masked", payload, server.receive_masked)
            return found

        def write(i: int) -> Payload:
            return self._with_session(i, order(i), server.inbox(i))

        there = ask("keys", self._people, lambda i: None, server.receive_keys, need)
        there = ask("shares", there, lambda i: server.roster(), server.receive_shares, need)
        found = self._exchange.run(there, self._t, write, read, need, self._ledger, renew)
        left = server.survivors()
        ask("opened", list(server.survivor_ids), lambda i: left, server.receive_opened, threshold)
        return found

    def _with_session(self, i: int, payload: Payload, message: bytes | None) -> Payload:
        """Return a message to a client, with the session's own part."""
        known: dict[str, HeaderValue] = {"secure": self._deal.to_text()}
        known["weight"] = float(self._shares[i]) / self._top
        said = {} if message is None else {"message": wrap_bytes(message)}
        self._ledger.down["masks"] += len(message or b"")
        return replace(payload, header=payload.header | known, arrays=payload.arrays | said)

    def _accept(self, i: int, kind: str, payload: Payload, take: TakeMessage) -> None:
        """Take a client's part in the session from its answer, or refuse it."""
        RequestContext(i, self._t, self._version).check(payload)
        quantizer = self._deal.quantizer
        data = message_bytes(
            kind, payload, 4096 + 256 * len(self._people) + quantizer.length * quantizer.bits // 8
        )
        try:
            take(i, data)
        except ProtocolError as error:
            raise RefusedError(str(error)) from None
        self._ledger.send_up(kind, len(data), len(data) if kind == "masked" else 0.0)

    def means(self, like: Vector) -> Channels:
        """Return the means over those whose numbers arrived."""
        try:
            total = self._deal.quantizer.decode(self._server.unmask_sum())
        except ProtocolError as error:
            raise TooFewError(f"Round {self._t} cannot be unmasked: {error}") from None
        scale = self._top / float(self._shares[list(self._server.survivor_ids)].sum())
        return {n: (v * scale).to(like.device, like.dtype) for n, v in total.items()}


def message_bytes(name: str, payload: Payload, most: int) -> bytes:
    """Return the message that a client's parcel carries; refuse a long one."""
    raw = payload.arrays.get(name)
    if raw is None or set(payload.arrays) != {name} or payload.scalars or raw.form != "wire":
        raise RefusedError(f"it sends no {name!r}, or more than that")
    if len(raw.data) > most:
        raise RefusedError(f"its {name!r} has {len(raw.data)} bytes, more than {most}")
    return raw.data
