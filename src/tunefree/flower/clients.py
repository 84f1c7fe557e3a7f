"""The pool of clients on Flower's nodes.

It sends requests to the nodes, waits for answers, validates them and returns means, so that
`rounds.run_round` is the same as in a simulation. A vector that a cohort was sent earlier in a
round is sent again, since a node may handle every message in a new process; the ledger counts it
each time.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.plan import Plan, Round
from ..core.random import cohort
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Secure
from ..rounds import QueryRequest, RoundResult, init_client_memory
from ..server.aggregate import Aggregation, client_weights, weighted_mean
from ..simulation.context import WORK_COUNTS, ClientContext, work_costs
from ..simulation.ranks import Ranks
from ..wire import Ledger
from .check import RequestContext, Upload, read_passes, read_probe, read_upload, read_work
from .exchange import Exchange
from .payload import EncodedArray, HeaderValue, PackedChannels, Payload, encode_dense, pack_channels
from .secagg_client import MEASURED, SecAggTerms
from .secagg_server import SecAggSession, check_secure_settings
from .versions import MemoryVersions, new_version


@dataclass(frozen=True)
class _CohortUploads:
    """The means and counts of a cohort's answers."""

    answered: list[int]
    means: Channels
    measured: Channels  # loss and lr
    tally: Tensor
    passes: float


class FlowerClients:
    """The clients of a federation, one per node, as a `ClientPool`.

    Args:
        method: The method.
        plan: The numbers of clients, rounds and steps.
        sizes: Samples of each client (N,).
        start: The first model, from which clients' first memories are made.
        run: The run's id, under which nodes store their memory.
        terms: The `RunTerms` as text.
        exchange: Sends requests to the nodes.
        held: Evaluates on the server's own sample, if it has one.
        aggregate: Creates the aggregators of what clients send.
        secure: Settings of secure aggregation, which replaces `aggregate`.
    """

    def __init__(
        self,
        method: Method,
        plan: Plan,
        sizes: Tensor,
        start: Vector,
        run: str,
        terms: str,
        exchange: Exchange,
        held: ClientContext | None = None,
        aggregate: Aggregation = weighted_mean,
        secure: Secure | None = None,
    ) -> None:
        self.method, self.plan, self.ranks = method, plan, Ranks()
        self._shares = client_weights(method.weights, sizes)
        self._start, self._run, self._terms = start, run, terms
        self._exchange, self._held, self._aggregate = exchange, held, aggregate
        self._secure = secure
        if secure is not None:
            check_secure_settings(method, aggregate, exchange.policy.lost)
        self._versions = MemoryVersions(bool(init_client_memory(method, start, plan)))
        self._passes = 0.0
        self._sent: tuple[Ledger | None, Counter[str]] = (None, Counter())

    def sample_cohort(self, t: int) -> Tensor:
        """Return the cohort of round t, the same as in a simulation."""
        return cohort(self.plan.seed, t, self.plan.clients, self.plan.cohort)

    def weight_of(self, ids: Tensor) -> float:
        """Return the clients' share of the population's weight."""
        return float(self._shares[ids].sum())

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        """Return the mean of `request.what` at each point over the clients that answer."""
        t, what, at = request.t, request.what, request.at
        if request.who == "held":
            if self._held is None:
                raise ArgumentError(
                    "This method evaluates on the server's own sample; give Settings(held=...)."
                )
            return [self._held.probe(x, t, None, what)[0] for x in at]
        clients = request.ids(self.plan.clients).tolist()
        version = new_version(t)
        points = {f"point {j}": x for j, x in enumerate(at)}
        arrays = {name: encode_dense(x) for name, x in points.items()}

        def write(i: int) -> Payload:
            self._count_down(ledger, points)
            return Payload(self._header("probe", i, t, version) | {"what": what}, arrays)

        def read(i: int, payload: Payload) -> tuple[list[Tensor], float]:
            largest = self._exchange.policy.largest
            return read_probe(payload, RequestContext(i, t, version), what, at, largest)

        need = self._min_answers(len(clients), t)
        if self._secure is not None:
            secagg_terms = SecAggTerms.for_probe(self._secure, len(clients), what, at)
            session = SecAggSession(
                secagg_terms, self._shares, clients, self._exchange, t, version, ledger
            )
            header = partial(self._header, t=t, version=version)
            replies = session.run(header, write, read_passes, None, need)
            self._passes += sum(replies.values())
            hidden = session.means(at[0])
            return [hidden[name] for name in points]
        found = self._exchange.run(clients, t, write, read, need, ledger)
        answered = [i for i in clients if i in found]
        weight = float(self._shares[answered].sum())
        means = [self._aggregate(weight, t, f"probe {j}") for j in range(len(at))]
        for i in answered:
            rows, more = found[i]
            self._passes += more
            for mean, row in zip(means, rows, strict=True):
                mean.add(self._shares[[i]], {what: row})
                ledger.send_up(what, row.numel() * row.element_size())
        return [mean.result()[what] for mean in means]

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Let the cohort do its local work and return the means of the uploads."""
        clients, version = ids.tolist(), new_version(t.index)
        train = self._train_plain if self._secure is None else self._train_masked
        uploads = train(clients, down, t, version, ledger)
        weight = float(self._shares[uploads.answered].sum())
        self._versions.record_answers(uploads.answered, version)
        if self.method.echo:
            self._send_means(uploads.answered, uploads.means, t, version, ledger)
        counted = dict(zip(WORK_COUNTS, uploads.tally.tolist(), strict=True))
        average = {n: float(v.double()) for n, v in uploads.measured.items()}
        row = {"lr": average["lr"], **work_costs(self.method, counted, uploads.passes, t)}
        row |= {"answered": len(uploads.answered), **self._exchange.events()}
        missing = len(uploads.answered) < len(clients)
        return RoundResult(uploads.means, average["loss"], row, weight if missing else None)

    def _train_plain(
        self, clients: list[int], down: Channels, t: Round, version: str, ledger: Ledger
    ) -> _CohortUploads:
        """Let the cohort work, validate each upload and return the means."""
        ready, x = pack_channels(down), down["x"]

        def write(i: int) -> Payload:
            return self._request(i, down, ready, t, version, ledger)

        def read(i: int, payload: Payload) -> Upload:
            asked = RequestContext(i, t.index, version)
            return read_upload(payload, asked, self.method, x, t, self._exchange.policy.largest)

        need, renew = self._min_answers(len(clients), t.index), partial(self._renew, down, ledger)
        found = self._exchange.run(clients, t.index, write, read, need, ledger, renew)
        answered = [i for i in clients if i in found]
        weight = float(self._shares[answered].sum())
        mean, measured = (self._aggregate(weight, t.index, w) for w in ("train", "measured"))
        total, passes = torch.zeros(len(WORK_COUNTS), dtype=torch.float64), self._passes
        self._passes = 0.0
        for i in answered:
            one, p = found[i], self._shares[[i]]
            mean.add(p, one.rows)
            turns = {"loss": list(one.loss), "lr": list(one.lr)}
            measured.add(p, {n: (reduce(torch.add, v) / len(v))[None] for n, v in turns.items()})
            total += torch.tensor(one.work, dtype=torch.float64)
            passes += one.passes
            for name, size in one.sizes.items():
                ledger.send_up(name, size, 0.0)
            ledger.counted_up += one.counted
        return _CohortUploads(answered, mean.result(), measured.result(), total, passes)

    def _train_masked(
        self, clients: list[int], down: Channels, t: Round, version: str, ledger: Ledger
    ) -> _CohortUploads:
        """Let the cohort work and return the means by secure aggregation."""
        assert self._secure is not None
        ready, x = pack_channels(down), down["x"]
        secagg_terms = SecAggTerms.for_training(
            self._secure, len(clients), self.method, x, t.preparing
        )
        session = SecAggSession(
            secagg_terms, self._shares, clients, self._exchange, t.index, version, ledger
        )
        found = session.run(
            partial(self._header, t=t.index, version=version),
            lambda i: self._request(i, down, ready, t, version, ledger),
            read_work,
            partial(self._renew, down, ledger),
            self._min_answers(len(clients), t.index),
        )
        means = session.means(x)
        total, passes = torch.zeros(len(WORK_COUNTS), dtype=torch.float64), self._passes
        self._passes = 0.0
        for tally, more in found.values():
            total += torch.tensor(tally, dtype=torch.float64)
            passes += more
        measured = {n: means.pop(k) for k, n in MEASURED.items()}
        return _CohortUploads([i for i in clients if i in found], means, measured, total, passes)

    def _request(
        self, i: int, down: Channels, ready: PackedChannels, t: Round, version: str, ledger: Ledger
    ) -> Payload:
        """Return the training request to a client."""
        arrays, scalars = ready
        parts = {f"down.{name}": raw for name, raw in arrays.items()}
        self._count_down(ledger, down)
        if self._versions.needs_start(i, t.index):
            parts["start.x"] = encode_dense(self._start)
            self._count_down(ledger, {"start": self._start})
        header = self._header("train", i, t.index, version) | {"base": self._versions.base_of(i)}
        header |= {"fraction": t.fraction, "factor": t.factor}
        unconfirmed = self._versions.unconfirmed(i)
        if unconfirmed is not None:
            header["echo"] = unconfirmed
            parts |= self._encode_means(unconfirmed, ledger)
        return Payload(header, parts, scalars)

    def _encode_means(self, version: str, ledger: Ledger) -> dict[str, EncodedArray]:
        means = self._versions.means_of(version)
        self._count_down(ledger, {f"mean {name}": v for name, v in means.items()})
        return {f"echo.{name}": encode_dense(v) for name, v in means.items()}

    def _send_means(
        self, answered: list[int], means: Channels, t: Round, version: str, ledger: Ledger
    ) -> None:
        """Send the means back; clients that do not confirm get them with their next request."""
        self._versions.store_means(version, {name: means[name] for name in self.method.echo})

        def write(i: int) -> Payload:
            header = self._header("keep", i, t.index, version) | {"echo": version}
            return Payload(header, self._encode_means(version, ledger))

        def read(i: int, payload: Payload) -> bool:
            RequestContext(i, t.index, version).check(payload)
            return True

        confirmed = self._exchange.run(answered, t.index, write, read, 0, ledger, label="behind")
        self._versions.record_confirmations(answered, confirmed, version)

    def _header(self, kind: str, client: int, t: int, version: str) -> dict[str, HeaderValue]:
        same = {"run": self._run, "terms": self._terms}
        return {"kind": kind, "client": client, "round": t, "version": version, **same}

    def _min_answers(self, cohort: int, t: int) -> int:
        return self._exchange.policy.min_answers(cohort, self.method.full or t < 0)

    def _count_down(self, ledger: Ledger, channels: Channels) -> None:
        """Count the bytes sent to one client, in place of the count that the round planned."""
        if self._sent[0] is not ledger:
            self._sent = ledger, Counter()
        for name, value in channels.items():
            self._sent[1][name] += value.numel() * value.element_size()
            ledger.down[name] = self._sent[1][name]

    def _renew(self, down: Channels, ledger: Ledger, i: int) -> bool:
        """Reset a client's memory to the current model; return whether it can be asked again."""
        if not self._versions.reset(i):
            return False
        if self.method.prepares:
            first, version = Round(self.plan, index=-1), new_version(-1)
            request = self._request(i, down, pack_channels(down), first, version, ledger)
            reply = self._exchange.registry.send({i: request}).get(i)
            if not isinstance(reply, Payload) or reply.header.get("lost"):
                return False
            self._versions.record_preparation(i, version)
        return True

    def commit(self) -> None:
        """Make the round's versions current; nodes learn of it with their next request."""
        self._versions.commit()

    def announce(self, ids: Tensor | None) -> None:
        """Do nothing: nodes do not prefetch batches."""

    def describe(self) -> dict[str, Any]:
        """Return the engine, for the run's record."""
        return {"engine": "flower", "chunk": 1}

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return self._versions.tensors()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        self._versions.restore(tensors, self._start.device)

    def measure(self, x: Vector) -> dict[str, float]:
        """Return an empty dict: the server does not have the clients' gradients."""
        return {}

    def gradient(self, x: Vector) -> Vector | None:
        """Return None: the server does not have the clients' gradients."""
        return None
