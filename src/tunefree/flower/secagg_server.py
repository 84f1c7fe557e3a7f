"""The server's part in secure aggregation: the nodes' uploads are summed by `tunefree.privacy`.

Every mean is a session of its own with four exchanges instead of one: keys, shares, the training
(or probe) request itself, and the shares that unmask the sum.
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
    """Refuse settings that secure aggregation does not support; warn if a wire saves no bytes."""
    if aggregate is not weighted_mean:
        raise ArgumentError("Settings takes aggregate or secure, not both.")
    if lost == "renew" and method.prepares:
        raise ArgumentError(
            f"{method.name} lets a renewed client prepare alone, which masks cannot hide; use "
            "lost='refuse' with Settings(secure=...)."
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
    """The server's side of a session.

    Args:
        terms: The session.
        weights: Every client's weight p (N,).
        clients: The clients that are asked.
        exchange: Sends requests to them.
        t: The round.
        version: Version of the memory that the request creates.
        ledger: Counts the bytes.
    """

    def __init__(
        self,
        terms: SecAggTerms,
        weights: Tensor,
        clients: list[int],
        exchange: Exchange,
        t: int,
        version: str,
        ledger: Ledger,
    ) -> None:
        self._terms, self._server = terms, ProtocolServer(terms.terms)
        self._weights, self._clients = weights, clients
        self._largest_weight = float(weights[clients].max())
        self._exchange, self._t, self._version, self._ledger = exchange, t, version, ledger

    def run(
        self,
        header: Callable[[str, int], dict[str, HeaderValue]],
        write: Callable[[int], Payload],
        read_metrics: Callable[[Payload], T],
        renew: Callable[[int], bool] | None,
        need: int,
    ) -> dict[int, T]:
        """Make the four exchanges; return the metrics of the clients whose uploads are summed.

        Args:
            header: Returns the header of a message of a kind to a client.
            write: Returns the training or probe request to a client.
            read_metrics: Reads the part of an answer that is not masked.
            renew: Resets a client whose memory is lost; returns whether to ask it again.
            need: How many clients must answer.
        """
        server, threshold = self._server, self._terms.terms.threshold
        need = max(need, threshold)

        def write_masked(i: int) -> Payload:
            return self._add_session(i, write(i), server.inbox(i))

        def read_masked(i: int, payload: Payload) -> T:
            metrics = read_metrics(payload)
            self._receive(i, "masked", payload, server.receive_masked)
            return metrics

        left = self._step("keys", self._clients, header, lambda i: None, server.receive_keys, need)
        left = self._step(
            "shares", left, header, lambda i: server.roster(), server.receive_shares, need
        )
        found = self._exchange.run(
            left, self._t, write_masked, read_masked, need, self._ledger, renew
        )
        survivors = server.survivors()
        self._step(
            "opened",
            list(server.survivor_ids),
            header,
            lambda i: survivors,
            server.receive_opened,
            threshold,
        )
        return found

    def _step(
        self,
        kind: str,
        clients: list[int],
        header: Callable[[str, int], dict[str, HeaderValue]],
        make: MakeMessage,
        take: TakeMessage,
        need: int,
    ) -> list[int]:
        """Make one exchange of the protocol and return the clients that answered."""

        def write(i: int) -> Payload:
            return self._add_session(i, Payload(header(kind, i)), make(i))

        def read(i: int, payload: Payload) -> None:
            self._receive(i, kind, payload, take)

        done = self._exchange.run(clients, self._t, write, read, need, self._ledger)
        return [i for i in clients if i in done]

    def _add_session(self, i: int, payload: Payload, message: bytes | None) -> Payload:
        """Return a payload with the session's terms, the client's weight and a message added."""
        added: dict[str, HeaderValue] = {"secure": self._terms.to_text()}
        added["weight"] = float(self._weights[i]) / self._largest_weight
        arrays = {} if message is None else {"message": wrap_bytes(message)}
        self._ledger.down["masks"] += len(message or b"")
        return replace(payload, header=payload.header | added, arrays=payload.arrays | arrays)

    def _receive(self, i: int, kind: str, payload: Payload, take: TakeMessage) -> None:
        """Give a client's message to the protocol's server, or refuse it."""
        RequestContext(i, self._t, self._version).check(payload)
        quantizer = self._terms.quantizer
        limit = 4096 + 256 * len(self._clients) + quantizer.length * quantizer.bits // 8
        data = _read_message(kind, payload, limit)
        try:
            take(i, data)
        except ProtocolError as error:
            raise RefusedError(str(error)) from None
        self._ledger.send_up(kind, len(data), len(data) if kind == "masked" else 0.0)

    def means(self, like: Vector) -> Channels:
        """Return the weighted means over the clients whose uploads arrived."""
        try:
            total = self._terms.quantizer.decode(self._server.unmask_sum())
        except ProtocolError as error:
            raise TooFewError(f"Round {self._t} cannot be unmasked: {error}") from None
        weight = float(self._weights[list(self._server.survivor_ids)].sum())
        scale = self._largest_weight / weight
        return {n: (v * scale).to(like.device, like.dtype) for n, v in total.items()}


def _read_message(name: str, payload: Payload, limit: int) -> bytes:
    """Return the protocol's message in a payload of at most `limit` bytes and no other content."""
    array = payload.arrays.get(name)
    if array is None or set(payload.arrays) != {name} or payload.scalars or array.form != "wire":
        raise RefusedError(f"it sends no {name!r}, or more than that")
    if len(array.data) > limit:
        raise RefusedError(f"its {name!r} has {len(array.data)} bytes, more than {limit}")
    return array.data
