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
from ..core.plan import Plan, Round, What, Who
from ..core.random import cohort
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Secure
from ..rounds import RoundResult, init_client_memory
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
    """A crew of nodes.

    Args:
        method: What they train by.
        plan: How many, how often.
        sizes: Samples of each client (N,).
        start: The first model, from which first memories are made.
        run: The run's name, under which nodes keep their memory.
        terms: What nodes must know of the run, as text.
        exchange: How to reach them, and how to treat those that fail.
        held: Evaluates on the server's own sample, where it has one.
        aggregate: Makes the aggregators of what clients send.
        secure: Adds up what clients send under masks, instead.
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
        """Return who takes part in round t: those who would in a simulation."""
        return cohort(self.plan.seed, t, self.plan.clients, self.plan.cohort)

    def weight_of(self, ids: Tensor) -> float:
        """Return these clients' share of the population's weight."""
        return float(self._shares[ids].sum())

    def query(
        self,
        ids: Tensor,
        t: int,
        what: What,
        at: list[Vector],
        who: Who,
        sent: Channels | None,
        ledger: Ledger,
    ) -> list[Tensor]:
        """Return the mean of `what` at each point over those who answer."""
        if who == "held":
            if self._held is None:
                raise ArgumentError(
                    "This method evaluates on the server's own sample; give Settings(held=...)."
                )
            return [self._held.probe(x, t, None, what)[0] for x in at]
        people = ids.tolist() if who == "cohort" else list(range(self.plan.clients))
        version = new_version(t)
        points = {f"point {j}": x for j, x in enumerate(at)}
        arrays = {name: encode_dense(x) for name, x in points.items()}

        def write(i: int) -> Payload:
            self._count(ledger, points)
            return Payload(self._header("probe", i, t, version) | {"what": what}, arrays)

        def read(i: int, payload: Payload) -> tuple[list[Tensor], float]:
            largest = self._exchange.policy.largest
            return read_probe(payload, RequestContext(i, t, version), what, at, largest)

        need = self._need(len(people), t)
        if self._secure is not None:
            secagg_terms = SecAggTerms.for_probe(self._secure, len(people), what, at)
            session = SecAggSession(
                secagg_terms, self._shares, people, self._exchange, t, version, ledger
            )
            header = partial(self._header, t=t, version=version)
            said = session.run(header, write, read_passes, None, need)
            self._passes += sum(said.values())
            hidden = session.means(at[0])
            return [hidden[name] for name in points]
        found = self._exchange.run(people, t, write, read, need, ledger)
        answered = [i for i in people if i in found]
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
        """Let the cohort work and return the means of what arrived."""
        people, version = ids.tolist(), new_version(t.index)
        gather = self._plainly if self._secure is None else self._masked
        got = gather(people, down, t, version, ledger)
        weight = float(self._shares[got.answered].sum())
        self._versions.record_answers(got.answered, version)
        if self.method.echo:
            self._echo(got.answered, got.means, t, version, ledger)
        counted = dict(zip(WORK_COUNTS, got.tally.tolist(), strict=True))
        average = {n: float(v.double()) for n, v in got.measured.items()}
        row = {"lr": average["lr"], **work_costs(self.method, counted, got.passes, t)}
        row |= {"answered": len(got.answered), **self._exchange.events()}
        missing = len(got.answered) < len(people)
        return RoundResult(got.means, average["loss"], row, weight if missing else None)

    def _plainly(
        self, people: list[int], down: Channels, t: Round, version: str, ledger: Ledger
    ) -> _CohortUploads:
        """Let the cohort work, look at what each sends, and make the means of it."""
        ready, x = pack_channels(down), down["x"]

        def write(i: int) -> Payload:
            return self._order(i, down, ready, t, version, ledger)

        def read(i: int, payload: Payload) -> Upload:
            asked = RequestContext(i, t.index, version)
            return read_upload(payload, asked, self.method, x, t, self._exchange.policy.largest)

        need, renew = self._need(len(people), t.index), partial(self._renew, down, ledger)
        found = self._exchange.run(people, t.index, write, read, need, ledger, renew)
        answered = [i for i in people if i in found]
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

    def _masked(
        self, people: list[int], down: Channels, t: Round, version: str, ledger: Ledger
    ) -> _CohortUploads:
        """Let the cohort work, and see the sum of what it sends alone."""
        assert self._secure is not None
        ready, x = pack_channels(down), down["x"]
        secagg_terms = SecAggTerms.for_training(
            self._secure, len(people), self.method, x, t.preparing
        )
        session = SecAggSession(
            secagg_terms, self._shares, people, self._exchange, t.index, version, ledger
        )
        found = session.run(
            partial(self._header, t=t.index, version=version),
            lambda i: self._order(i, down, ready, t, version, ledger),
            read_work,
            partial(self._renew, down, ledger),
            self._need(len(people), t.index),
        )
        means = session.means(x)
        total, passes = torch.zeros(len(WORK_COUNTS), dtype=torch.float64), self._passes
        self._passes = 0.0
        for tally, more in found.values():
            total += torch.tensor(tally, dtype=torch.float64)
            passes += more
        measured = {n: means.pop(k) for k, n in MEASURED.items()}
        return _CohortUploads([i for i in people if i in found], means, measured, total, passes)

    def _order(
        self, i: int, down: Channels, ready: PackedChannels, t: Round, version: str, ledger: Ledger
    ) -> Payload:
        """Return a client's task of a round."""
        arrays, scalars = ready
        parts = {f"down.{name}": raw for name, raw in arrays.items()}
        self._count(ledger, down)
        if self._versions.needs_start(i, t.index):
            parts["start.x"] = encode_dense(self._start)
            self._count(ledger, {"start": self._start})
        header = self._header("train", i, t.index, version) | {"base": self._versions.base_of(i)}
        header |= {"fraction": t.fraction, "factor": t.factor}
        owed = self._versions.unconfirmed(i)
        if owed is not None:
            header["echo"] = owed
            parts |= self._echoed(owed, ledger)
        return Payload(header, parts, scalars)

    def _echoed(self, version: str, ledger: Ledger) -> dict[str, EncodedArray]:
        means = self._versions.means_of(version)
        self._count(ledger, {f"mean {name}": v for name, v in means.items()})
        return {f"echo.{name}": encode_dense(v) for name, v in means.items()}

    def _echo(
        self, answered: list[int], means: Channels, t: Round, version: str, ledger: Ledger
    ) -> None:
        """Send the means back; whoever does not confirm them gets them with its next task."""
        self._versions.store_means(version, {name: means[name] for name in self.method.echo})

        def write(i: int) -> Payload:
            header = self._header("keep", i, t.index, version) | {"echo": version}
            return Payload(header, self._echoed(version, ledger))

        def read(i: int, payload: Payload) -> bool:
            RequestContext(i, t.index, version).check(payload)
            return True

        kept = self._exchange.run(answered, t.index, write, read, 0, ledger, label="behind")
        self._versions.record_confirmations(answered, kept, version)

    def _header(self, kind: str, client: int, t: int, version: str) -> dict[str, HeaderValue]:
        same = {"run": self._run, "terms": self._terms}
        return {"kind": kind, "client": client, "round": t, "version": version, **same}

    def _need(self, cohort: int, t: int) -> int:
        return self._exchange.policy.min_answers(cohort, self.method.full or t < 0)

    def _count(self, ledger: Ledger, channels: Channels) -> None:
        """Count what one client is sent, instead of what was counted for the round as planned."""
        if self._sent[0] is not ledger:
            self._sent = ledger, Counter()
        for name, value in channels.items():
            self._sent[1][name] += value.numel() * value.element_size()
            ledger.down[name] = self._sent[1][name]

    def _renew(self, down: Channels, ledger: Ledger, i: int) -> bool:
        """Let a client begin anew at the present model; whether it can be asked again."""
        if not self._versions.reset(i):
            return False
        if self.method.prepares:
            first, version = Round(self.plan, index=-1), new_version(-1)
            order = self._order(i, down, pack_channels(down), first, version, ledger)
            said = self._exchange.registry.send({i: order}).get(i)
            if not isinstance(said, Payload) or said.header.get("lost"):
                return False
            self._versions.record_preparation(i, version)
        return True

    def commit(self) -> None:
        """Name the versions that count from now on; nodes learn of it with their next task."""
        self._versions.commit()

    def announce(self, ids: Tensor | None) -> None:
        """Nothing is read ahead."""

    def describe(self) -> dict[str, Any]:
        """Return what was chosen, for the record."""
        return {"engine": "flower", "chunk": 1}

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs."""
        return self._versions.tensors()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take it from a checkpoint."""
        self._versions.restore(tensors, self._start.device)

    def measure(self, x: Vector) -> dict[str, float]:
        """Return nothing: the clients' gradients stay with them."""
        return {}

    def gradient(self, x: Vector) -> Vector | None:
        """Return None: the clients' gradients stay with them."""
        return None
