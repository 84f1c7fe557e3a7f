"""The server's part in secure aggregation: the nodes' uploads are summed by `tunefree.privacy`.

Every mean is a session of its own with four exchanges instead of one: keys, shares, the training
(or probe) request itself, and the shares that unmask the sum. Experimental and not audited.

Clients mask a round once. If its sum cannot be unmasked, or the server stopped before it saved the
round, the round is lost: it changes nothing but its number, and the run goes on with the next. What
clients were asked in the lost round is then not asked again, since the model is the same and other
clients may answer: the server has kept the answer.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor

from ..core.device import measure_free_ram
from ..core.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    ResumeError,
    cannot_use,
    convert_errors,
)
from ..core.files import (
    MAX_JSON,
    check_writable,
    pack_tensors,
    read_file,
    unpack_tensors,
    write_atomically,
)
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import DealerError, ProtocolError, ProtocolServer
from ..privacy.protocol_client import COMPARABLE
from ..server.aggregate import weighted_mean
from .check import RefusedError
from .exchange import Exchange, Request
from .payload import HeaderValue, Payload, wrap_bytes
from .secagg_client import SecAggTerms, digest_question
from .settings import Settings

log = logging.getLogger("tunefree")

FILE, ANSWERS = "masked.json", "masked.safetensors"  # in a run's folder
ReceiveMessage = Callable[[int, bytes], None]
T = TypeVar("T")


def check_secure_settings(method: Method, settings: Settings) -> None:
    """Refuse settings that secure aggregation does not support; warn if a wire saves no bytes."""
    if settings.aggregate is not weighted_mean:
        raise ArgumentError("Settings takes aggregate or secure, not both.")
    assert settings.secure is not None
    threshold, cohort = settings.secure.threshold, settings.cohort or settings.clients
    if threshold is not None and not cohort < 2 * threshold <= 2 * cohort:
        rule = f"above half of a round's {cohort} clients, and at most all of them"
        raise ArgumentError(f"Secure(threshold=...) must be {rule}, got {threshold}.")
    if settings.lost == "renew" and method.prepares:
        why = "its renewed clients prepare alone, which masks cannot hide; use lost='refuse'"
        raise cannot_use("Settings(secure=...)", method.name, why)
    lossy = [name for name in method.vectors if not method.wire_of(name).lossless]
    if lossy:
        drops = (
            f"{method.name} loses what its wire drops from {lossy[0]!r}, but sends whole vectors"
        )
        log.warning("The codes of a wire cannot be added under masks: %s.", drops)


def check_weights(weights: Tensor, names: str) -> None:
    """Refuse weights with which large clients would refuse to be summed with the others."""
    largest = float(weights.max())
    near = int((weights >= COMPARABLE * largest).sum())
    if 3 * near <= 2 * len(weights):
        raise cannot_use(
            "Settings(secure=...)",
            f"weights={names!r}",
            f"only {near} of {len(weights)} clients have at least a tenth of the largest weight, "
            "and the others do not hide it in a sum; use weights='uniform'",
        )


class MaskedRounds:
    """The last round in which clients may have sent masked numbers, in a file of the run's folder.

    A round up to that of an earlier server is a replay, which clients refuse: `check` raises
    `LostRoundError` for it. The answers to the queries of a round are kept until the next round
    that has queries, in another file.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._last = -2
        self._answers: dict[str, Tensor] = {}  # by question and name
        self._is_done = False  # whether the round of these answers was committed
        if folder is not None and os.path.lexists(folder / FILE):
            with convert_errors(f"{folder / FILE} is damaged", CheckpointError):
                self._last = int(json.loads(read_file(folder / FILE, MAX_JSON))["round"])
        if folder is not None and os.path.lexists(folder / ANSWERS):
            with convert_errors(f"{folder / ANSWERS} is damaged", CheckpointError):
                self._answers = unpack_tensors(read_file(folder / ANSWERS, measure_free_ram()))
        self._before = self._last

    def check(self, t: int) -> None:
        """Refuse a round that an earlier server began."""
        if t < 0 <= self._before + 1:
            raise ResumeError(
                "The preparation before round 0 was interrupted after clients had sent masked "
                "numbers, which they do not send twice. Start a new run, in another folder and "
                "with another seed."
            )
        if t <= self._before:
            raise LostRoundError("an earlier server began it, and clients mask a round once")

    def begin(self, t: int) -> None:
        """Record a round before clients are asked for masked numbers."""
        if t > self._last:
            self._last = t
            self._write(FILE, lambda: json.dumps({"round": t}).encode())

    def recall(self, question: bytes, like: Vector) -> Channels:
        """Return the answer to a question of this round, or of a lost one before; else nothing."""
        start = f"{question.hex()} "
        found = {n: v for n, v in self._answers.items() if n.startswith(start)}
        return {n.removeprefix(start): v.to(like.device) for n, v in found.items()}

    def keep(self, question: bytes, means: Channels) -> None:
        """Keep the answer to a question; forget those of rounds that were committed."""
        before = {} if self._is_done else self._answers
        self._answers = before | {f"{question.hex()} {n}": v for n, v in means.items()}
        self._is_done = False
        self._write(ANSWERS, lambda: pack_tensors(self._answers))

    def commit(self) -> None:
        """Note that the model has changed, so that the next answers replace those of its round."""
        self._is_done = True

    def _write(self, name: str, make: Callable[[], bytes]) -> None:
        if self._folder is not None:
            path = self._folder / name
            with check_writable("The record of masked rounds must be a file", path):
                write_atomically(path, make())


class LostRoundError(Exception):
    """The masked numbers of a round cannot be used; `member` is the client that caused it."""

    def __init__(self, reason: str, member: int | None = None) -> None:
        super().__init__(reason)
        self.member = member


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
        terms = terms.bind(exchange.header("keys", 0, request.t, request.version))
        self._largest_weight = float(weights[clients].max())
        relative = {i: float(weights[i]) / self._largest_weight for i in clients}
        self._terms, self._server = terms, ProtocolServer(terms.terms, relative)
        self._weights, self._clients, self._question = weights, clients, b""
        self._exchange, self._request = exchange, request

    def run(self, begin: Callable[[int], None]) -> dict[int, T]:
        """Make the four exchanges; return the answers of the clients whose uploads are summed.

        `begin` is called with the round before clients are asked for masked numbers.
        """
        server, request, threshold = self._server, self._request, self._terms.terms.threshold
        need = max(request.need, threshold)

        def write(i: int) -> Payload:
            payload = request.write(i)
            self._question = digest_question(payload)
            return self._add_session(i, payload, server.inbox(i))

        def read(payload: Payload) -> T:
            metrics = request.read(payload)
            self._receive("masked", payload, server.receive_masked)
            return metrics

        left = self._step("keys", self._clients, b"", server.receive_keys, need)
        left = self._step("shares", left, server.roster(), server.receive_shares, need)
        begin(request.t)
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
        """Return a payload with the session's terms and a message added."""
        added: dict[str, HeaderValue] = {"secure": self._terms.to_text()}
        arrays = {"message": wrap_bytes(message)} if message else {}
        self._request.ledger.down["masks"] += len(message)
        return replace(payload, header=payload.header | added, arrays=payload.arrays | arrays)

    def _receive(self, kind: str, payload: Payload, receive: ReceiveMessage) -> None:
        """Give a client's message to the protocol's server, or refuse it."""
        quantizer, array = self._terms.quantizer, payload.arrays.get(kind)
        limit = 4096 + 256 * len(self._clients) + quantizer.length * quantizer.bits // 8
        if array is None or len(payload.arrays) > 1 or payload.scalars or array.form != "wire":
            raise RefusedError(f"it sends no {kind!r}, or more than that")
        data = array.data
        if len(data) > limit:
            raise RefusedError(f"its {kind!r} has {len(data)} bytes, more than {limit}")
        try:
            receive(int(payload.header["client"]), data)
        except ProtocolError as error:
            raise RefusedError(str(error)) from None
        self._request.ledger.send_up(kind, len(data), len(data) if kind == "masked" else 0.0)

    def means(self, like: Vector) -> Channels:
        """Return the weighted means over the clients whose uploads arrived."""
        weight = float(self._weights[list(self._server.survivor_ids)].sum())
        scale = self._largest_weight / weight
        try:
            found = self._server.unmask_sum(self._question)
            total = self._terms.quantizer.decode(found, 1 / scale)
        except DealerError as error:
            raise LostRoundError(str(error), error.member) from None
        except (ProtocolError, DataError) as error:
            raise LostRoundError(str(error)) from None
        return {n: (v * scale).to(like.device, like.dtype) for n, v in total.items()}
