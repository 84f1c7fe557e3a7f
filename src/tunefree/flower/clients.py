"""The pool of clients on Flower's nodes.

It sends requests to the nodes, waits for answers, validates them and returns means, so that
`rounds.run_round` is the same as in a simulation. A vector that a cohort was sent earlier in a
round is sent again, since a node may handle every message in a new process; the ledger counts it
each time.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.plan import Plan, Round
from ..core.random import cohort
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy.digits import from_digits
from ..rounds.client import init_client_memory
from ..rounds.pool import ClientPool, NoClientsError, QueryRequest, RoundResult
from ..server.aggregate import client_weights
from ..simulation.context import WORK_COUNTS, ClientContext, work_costs
from ..simulation.moments import MomentSums
from ..training.config import get_parsed
from ..wire import Ledger
from .check import WorkCost, read_passes, read_probe, read_upload, read_work
from .exchange import Exchange, Request, TooFewError
from .memory import FIRST, MemoryVersions, new_version
from .payload import EncodedArray, PackedChannels, Payload, encode_dense, pack_channels
from .secagg_client import MEASURED, SecAggTerms, digest_question, probe_shapes, training_shapes
from .secagg_server import (
    LostRoundError,
    MaskedRounds,
    SecAggSession,
    check_secure_settings,
    check_weights,
)

log = logging.getLogger("tunefree")
T = TypeVar("T")
MAX_LOST = 3  # masked rounds that may be lost one after the other


@dataclass(frozen=True)
class _Training:
    """What the training requests of a round have in common."""

    down: Channels
    packed: PackedChannels
    t: Round
    version: str
    ledger: Ledger


class FlowerClients(ClientPool):
    """The clients of a federation, one per node; the server does not have their gradients.

    `start` is the first model, from which clients' first memories are made; `held` evaluates on the
    server's own sample, if it has one; `scaling` is how inputs are standardised, if they are;
    `masked` records in which rounds clients sent masked numbers.
    """

    def __init__(
        self,
        method: Method,
        plan: Plan,
        sizes: Tensor,
        start: Vector,
        exchange: Exchange,
        held: ClientContext | None = None,
        scaling: Tensor | None = None,
        masked: MaskedRounds | None = None,
    ) -> None:
        self.method, self.plan = method, plan
        self._masked, self._lost = MaskedRounds(None) if masked is None else masked, 0
        self._is_lost = False  # whether the current round is
        self._shares = client_weights(method.resolved_weights, sizes)
        self._start, self._exchange, self._held = start, exchange, held
        self._scaling = scaling
        self._settings, self._secure = exchange.settings, exchange.settings.secure
        self._aggregate = get_parsed(self._settings.aggregate)
        if self._secure is not None:
            check_secure_settings(method, self._settings)
            check_weights(self._shares, method.resolved_weights)
        self._versions = MemoryVersions(bool(init_client_memory(method, start, plan)))
        self._passes = 0.0
        self._sent: tuple[Ledger | None, Counter[str]] = (None, Counter())

    def sample_cohort(self, t: int) -> Tensor:
        return cohort(self.plan.seed, t, self.plan.clients, self.plan.cohort)

    def weight_of(self, ids: Tensor) -> float:
        return float(self._shares[ids].sum())

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        t, what, at = request.t, request.what, request.at
        if request.who == "held":
            if self._held is None:
                raise ArgumentError(
                    "This method evaluates on the server's own sample; give Settings(held=...)."
                )
            return [self._held.probe(x, t, None, what)[0] for x in at]
        clients, version = request.ids(self.plan.clients).tolist(), new_version(t)
        is_moments = what == "moments"
        shares = client_weights("uniform", self._shares) if is_moments else self._shares
        need = self._min_answers(len(clients), t)
        points = {f"point {j}": x for j, x in enumerate(at)}
        sent = points if is_moments else points | self._scale
        arrays = {name: encode_dense(v) for name, v in sent.items()}

        def write(i: int) -> Payload:
            self._count_down(ledger, sent)
            return Payload(self._exchange.header("probe", i, t, version) | {"what": what}, arrays)

        if self._secure is not None:
            asked = self._exchange.header("probe", 0, t, version) | {"what": what}
            question = digest_question(Payload(asked, arrays), lasting=True)
            hidden = self._masked.recall(question, at[0])
            if not hidden:
                shapes = probe_shapes(len(at[0]), what, len(at))
                secure = self._secure.for_digits() if is_moments else self._secure
                terms = SecAggTerms.create(secure, len(clients), shapes, what)
                masked = Request(t, version, ledger, need, write, read_passes)
                done, hidden = self._sum_masked(terms, clients, masked, at[0], shares)
                self._passes += sum(done.values())
                self._masked.keep(question, hidden)
            return [from_digits(hidden[n]) if is_moments else hidden[n] for n in points]
        read = partial(read_probe, what=what, points=at, largest=self._settings.largest)
        found = self._exchange.run(clients, Request(t, version, ledger, need, write, read))
        answered = [i for i in clients if i in found]
        if is_moments:
            sums = MomentSums(self._aggregate, len(clients), len(at[0]))
            for i in answered:
                sums.add(found[i][0][0])
                ledger.send_up(what, found[i][0][0].nbytes)
            return [sums.decode(sums.result()[what])]
        weight = float(self._shares[answered].sum())
        means = [self._aggregate(weight, t, f"probe {j}") for j in range(len(at))]
        for i in answered:
            rows, passes = found[i]
            self._passes += passes
            for mean, row in zip(means, rows, strict=True):
                mean.add(self._shares[[i]], {what: row})
                ledger.send_up(what, row.nbytes)
        return [mean.result()[what] for mean in means]

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        clients, version = ids.tolist(), new_version(t.index)
        training = _Training(down, pack_channels(down), t, version, ledger)
        train = self._train_plain if self._secure is None else self._train_masked
        work, means, measured = train(clients, training)
        answered = [i for i in clients if i in work]
        self._versions.record_answers(answered, version)
        if self.method.echo:
            self._send_means(answered, means, training)
        counts = torch.tensor([work[i].counts for i in answered], dtype=torch.float64).sum(0)
        passes = self._passes + sum(work[i].passes for i in answered)
        self._passes = 0.0
        counted = dict(zip(WORK_COUNTS, counts.tolist(), strict=True))
        average = {n: float(v.double()) for n, v in measured.items()}
        row = {"lr": average["lr"], **work_costs(self.method, counted, passes, t)}
        row |= {"answered": len(answered), **self._exchange.events()}
        is_missing = len(answered) < len(clients)
        fraction = float(self._shares[answered].sum()) if is_missing else None
        return RoundResult(means, average["loss"], row, fraction)

    def _train_plain(
        self, clients: list[int], training: _Training
    ) -> tuple[dict[int, WorkCost], Channels, Channels]:
        """Return the clients' work, and the means of their validated uploads and of loss and lr."""
        t, x, ledger = training.t, training.down["x"], training.ledger
        largest = self._settings.largest
        read = partial(read_upload, method=self.method, x=x, t=t, largest=largest)
        found = self._exchange.run(clients, self._request(clients, training, read))
        answered = [i for i in clients if i in found]
        weight = float(self._shares[answered].sum())
        mean, measured = (self._aggregate(weight, t.index, w) for w in ("train", "measured"))
        for i in answered:
            upload, p = found[i], self._shares[[i]]
            mean.add(p, upload.rows)
            measured.add(p, upload.measured)
            for name, size in upload.sizes.items():
                ledger.send_up(name, size, 0.0)
            ledger.counted_up += upload.counted
        return {i: found[i].work for i in answered}, mean.result(), measured.result()

    def _train_masked(
        self, clients: list[int], training: _Training
    ) -> tuple[dict[int, WorkCost], Channels, Channels]:
        """Return the same as `_train_plain`, with means by secure aggregation."""
        assert self._secure is not None
        x = training.down["x"]
        shapes = training_shapes(self.method, x, training.t.preparing)
        terms = SecAggTerms.create(self._secure, len(clients), shapes)
        request = self._request(clients, training, read_work)
        work, means = self._sum_masked(terms, clients, request, x, self._shares)
        self._lost = 0
        return work, means, {n: means.pop(k) for k, n in MEASURED.items()}

    def _sum_masked(
        self,
        terms: SecAggTerms,
        clients: list[int],
        request: Request[T],
        like: Vector,
        shares: Tensor,
    ) -> tuple[dict[int, T], Channels]:
        """Return the answers of a session with some clients, and the means under masks.

        Clients whose shares spoiled an earlier round are not asked.

        Raises:
            NoClientsError: The round is lost.
        """
        t, excluded = request.t, self._versions.excluded
        try:
            self._masked.check(t)
            members = [i for i in clients if i not in excluded]
            session = SecAggSession(terms, shares, members, self._exchange, request)
            return session.run(self._masked.begin), session.means(like)
        except LostRoundError as error:
            self._versions.record_answers([], request.version)  # nothing of it is committed
            self._is_lost = True
            log.warning("Round %d is lost: %s.", t, str(error).rstrip("."))
            if error.member is not None:
                log.warning("Client %d is not asked for masked numbers any more.", error.member)
                excluded.add(error.member)
            self._lost += error.member is None
            if t < 0 or self._lost >= MAX_LOST:
                many = f"; the last {self._lost} rounds were lost" if self._lost > 1 else ""
                raise TooFewError(f"Round {t} cannot be unmasked: {error}{many}") from None
            row: dict[str, float] = {"gradients": 0, "answered": 0, "round_lost": 1}
            raise NoClientsError(row | self._exchange.events()) from None

    def _request(
        self, clients: list[int], training: _Training, read: Callable[[Payload], T]
    ) -> Request[T]:
        t = training.t.index
        need, renew = self._min_answers(len(clients), t), partial(self._renew, training)
        write = partial(self._write, training)
        return Request(t, training.version, training.ledger, need, write, read, renew)

    def _write(self, training: _Training, i: int) -> Payload:
        """Return the training request to a client."""
        t, ledger = training.t, training.ledger
        arrays, scalars = training.packed
        parts = {f"down.{name}": raw for name, raw in arrays.items()}
        self._count_down(ledger, training.down)
        if self._versions.needs_start(i, t.index):
            parts["start.x"] = encode_dense(self._start)
            self._count_down(ledger, {"start": self._start})
        self._count_down(ledger, self._scale)
        parts |= {n: encode_dense(v) for n, v in self._scale.items()}
        header = self._exchange.header("train", i, t.index, training.version)
        header |= {"base": self._versions.current.get(i, FIRST)}
        header |= {"fraction": t.fraction, "factor": t.factor}
        if i in self._versions.unconfirmed:
            header["echo"] = self._versions.unconfirmed[i]
            parts |= self._encode_means(self._versions.unconfirmed[i], ledger)
        return Payload(header, parts, scalars)

    @property
    def _scale(self) -> Channels:
        """How inputs are standardised, if they are."""
        return {} if self._scaling is None else {"scale": self._scaling}

    def _encode_means(self, version: str, ledger: Ledger) -> dict[str, EncodedArray]:
        means = self._versions.means[version]
        self._count_down(ledger, {f"mean {name}": v for name, v in means.items()})
        return {f"echo.{name}": encode_dense(v) for name, v in means.items()}

    def _send_means(self, answered: list[int], means: Channels, training: _Training) -> None:
        """Send the means back; clients that do not confirm get them with their next request."""
        t, version, ledger = training.t.index, training.version, training.ledger
        self._versions.means[version] = {name: means[name] for name in self.method.echo}

        def write(i: int) -> Payload:
            header = self._exchange.header("keep", i, t, version) | {"echo": version}
            return Payload(header, self._encode_means(version, ledger))

        request = Request(t, version, ledger, 0, write, lambda answer: None, label="behind")
        confirmed = self._exchange.run(answered, request).keys()
        self._versions.record_confirmations(answered, confirmed, version)

    def _min_answers(self, cohort: int, t: int) -> int:
        """Return how many clients of a cohort must answer."""
        if self.method.full or t < 0:
            return cohort
        minimum = self._settings.minimum
        return min(cohort, -(-cohort // 2) if minimum is None else minimum)

    def _count_down(self, ledger: Ledger, channels: Channels) -> None:
        """Count the bytes sent to one client, in place of the count that the round planned."""
        if self._sent[0] is not ledger:
            self._sent = ledger, Counter()
        for name, value in channels.items():
            self._sent[1][name] += value.nbytes
            ledger.down[name] = self._sent[1][name]

    def _renew(self, training: _Training, i: int) -> bool:
        """Reset a client's memory to the current model; return whether it can be asked again."""
        if not self._versions.reset(i):
            return False
        if self.method.prepares:
            first = replace(training, t=Round(self.plan, index=-1), version=new_version(-1))
            reply = self._exchange.registry.send({i: self._write(first, i)}).get(i)
            if not isinstance(reply, Payload) or reply.header.get("lost"):
                return False
            self._versions.current[i] = first.version
        return True

    def commit(self) -> None:
        """Make the round's versions current; nodes learn of it with their next request."""
        self._versions.commit()
        if not self._is_lost:
            self._masked.commit()
        self._is_lost = False

    def describe(self) -> dict[str, Any]:
        return {"engine": "flower", "chunk": 1}

    def state(self) -> dict[str, Tensor]:
        return self._versions.tensors()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self._versions.restore(tensors, self._start.device)
