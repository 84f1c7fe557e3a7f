"""The server's part in secure aggregation: the nodes' uploads are summed by `tunefree.privacy`.

Every mean is a session of its own with four exchanges instead of one: keys, shares, the training
(or probe) request itself, and the shares that unmask the sum.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from torch import Tensor

from ..core.errors import ArgumentError, cannot_use
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import ProtocolError, ProtocolServer
from ..server.aggregate import weighted_mean
from .check import RefusedError
from .exchange import Exchange, Request, TooFewError
from .payload import HeaderValue, Payload, wrap_bytes
from .secagg_client import SecAggTerms
from .settings import Settings

log = logging.getLogger("tunefree")

ReceiveMessage = Callable[[int, bytes], None]
T = TypeVar("T")


def check_secure_settings(method: Method, settings: Settings) -> None:
    """Refuse settings that secure aggregation does not support; warn if a wire saves no bytes."""
    if settings.aggregation is not weighted_mean:
        raise ArgumentError("Settings takes aggregate or secure, not both.")
    if settings.lost == "renew" and method.prepares:
        why = "its renewed clients prepare alone, which masks cannot hide; use lost='refuse'"
        raise cannot_use("Settings(secure=...)", method.name, why)
    lossy = [name for name in method.vectors if not method.wire_of(name).lossless]
    if lossy:
        drops = (
            f"{method.name} loses what its wire drops from {lossy[0]!r}, but sends whole vectors"
        )
        log.warning("The codes of a wire cannot be added under masks: %s.", drops)


class SecAggSession(Generic[T]):
    """The server's side of a session with some clients, of all clients' weights p (N,).

    The training or probe request reads the part of an answer that is not masked.
    """

    def __init__(
        self,
        terms: SecAggTerms,
        weights: Tensor,
        clients: list[int],
        exchange: Exchange,
        request: Request[T],
    ) -> None:
        self._terms, self._server = terms, ProtocolServer(terms.terms)
        self._weights, self._clients = weights, clients
        self._largest_weight = float(weights[clients].max())
        self._exchange, self._request = exchange, request

    def run(self) -> dict[int, T]:
        """Make the four exchanges; return the answers of the clients whose uploads are summed."""
        server, request, threshold = self._server, self._request, self._terms.terms.threshold
        need = max(request.need, threshold)

        def write(i: int) -> Payload:
            return self._add_session(i, request.write(i), server.inbox(i))

        def read(payload: Payload) -> T:
            metrics = request.read(payload)
            self._receive("masked", payload, server.receive_masked)
            return metrics

        left = self._step("keys", self._clients, b"", server.receive_keys, need)
        left = self._step("shares", left, server.roster(), server.receive_shares, need)
        found = self._exchange.run(left, replace(request, need=need, write=write, read=read))
        survivors, ids = server.survivors(), list(server.survivor_ids)
        self._step("opened", ids, survivors, server.receive_opened, threshold)
        return found

    def _step(
        self, kind: str, clients: list[int], message: bytes, receive: ReceiveMessage, need: int
    ) -> list[int]:
        """Make one exchange of the protocol and return the clients that answered."""
        request = self._request

        def write(i: int) -> Payload:
            header = self._exchange.header(kind, i, request.t, request.version)
            return self._add_session(i, Payload(header), message)

        def read(payload: Payload) -> None:
            self._receive(kind, payload, receive)

        step = Request(request.t, request.version, request.ledger, need, write, read)
        done = self._exchange.run(clients, step)
        return [i for i in clients if i in done]

    def _add_session(self, i: int, payload: Payload, message: bytes) -> Payload:
        """Return a payload with the session's terms, the client's weight and a message added."""
        added: dict[str, HeaderValue] = {"secure": self._terms.to_text()}
        added["weight"] = float(self._weights[i]) / self._largest_weight
        arrays = {"message": wrap_bytes(message)} if message else {}
        self._request.ledger.down["masks"] += len(message)
        return replace(payload, header=payload.header | added, arrays=payload.arrays | arrays)

    def _receive(self, kind: str, payload: Payload, receive: ReceiveMessage) -> None:
        """Give a client's message to the protocol's server, or refuse it."""
        quantizer = self._terms.quantizer
        limit = 4096 + 256 * len(self._clients) + quantizer.length * quantizer.bits // 8
        data = _read_message(kind, payload, limit)
        try:
            receive(int(payload.header["client"]), data)
        except ProtocolError as error:
            raise RefusedError(str(error)) from None
        self._request.ledger.send_up(kind, len(data), len(data) if kind == "masked" else 0.0)

    def means(self, like: Vector) -> Channels:
        """Return the weighted means over the clients whose uploads arrived."""
        try:
            total = self._terms.quantizer.decode(self._server.unmask_sum())
        except ProtocolError as error:
            raise TooFewError(f"Round {self._request.t} cannot be unmasked: {error}") from None
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
