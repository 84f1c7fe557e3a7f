"""Simulated clients that fail.

Clients that answer in time train together, as they would without the others. Lost and late clients
train on their own: their work is counted; their uploads are dropped or queued.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import cannot_use
from ..core.plan import Plan, Round
from ..core.random import key, subset
from ..core.types import Channels, State, Vector, select_prefix
from ..faults import Fate, Faults
from ..methods import Method
from ..robust import Robust
from ..rounds.pool import ClientPool, NoClientsError, QueryRequest, RoundResult
from ..rounds.server import init_server_state, run_round
from ..server.aggregate import Aggregation, Aggregator, weighted_mean
from ..wire import Ledger
from .cohort import MemoryRows
from .context import WORK_COUNTS, work_costs
from .dry_run import DryRun
from .simulation import Simulation

COUNTED = ("gradients", "proxes", "unsolved")  # work that counts whether or not its result arrives


@dataclass(frozen=True)
class LateUpload:
    """One client's late upload."""

    client: int
    due: int  # the round in which it arrives
    rows: Channels  # that arrive (1, ...)
    measured: Channels  # loss and step size (1,)
    own: State  # the client's memory from then on (1, ...)
    ledger: Ledger  # bytes of the upload


class DelayQueue:
    """Uploads on these channels that have not arrived, and clients that are busy until they do."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self._channels = channels
        self._uploads: list[LateUpload] = []
        self._busy: dict[int, tuple[int, int]] = {}  # client: (sampled in, late until)
        self._last = -1  # the last round that was committed

    def busy(self, t: int) -> list[int]:
        """Return the clients that cannot be sampled in round t."""
        return [i for i, (since, until) in self._busy.items() if since < t <= until]

    def mark_busy(self, clients: Tensor, t: int, until: Tensor) -> None:
        """Mark clients that were sampled in round t as busy until the given rounds."""
        self._busy = {i: e for i, e in self._busy.items() if e[1] >= t - 1}
        ends = zip(clients.tolist(), until.tolist(), strict=True)
        self._busy |= {i: (t, end) for i, end in ends}

    def due(self, t: int) -> list[LateUpload]:
        """Return the uploads that arrive in round t, ordered by client."""
        return sorted((a for a in self._uploads if a.due == t), key=lambda a: a.client)

    def commit(self, t: int, sent: list[LateUpload]) -> None:
        """Remove the uploads that arrived in round t, and add those sent in it."""
        self._uploads = [a for a in self._uploads if a.due > t] + sent
        self._last = t

    def state(self) -> dict[str, Tensor]:
        """Return the queue for a checkpoint; a cohort sampled ahead is sampled again on resume."""
        busy = [(i, *e) for i, e in self._busy.items() if e[0] <= self._last < e[1]]
        uploads, out = self._uploads, {}
        if busy:
            out["late.busy"] = torch.tensor(busy)
        if not uploads:
            return out
        out["late.uploads"] = torch.tensor([(a.client, a.due) for a in uploads])
        sizes = [[a.ledger.up[n] for n in self._channels] for a in uploads]
        out["late.sizes"] = torch.tensor(sizes)
        out["late.counted"] = torch.tensor([a.ledger.counted_up for a in uploads]).double()
        for part in ("rows", "measured", "own"):
            for name in getattr(uploads[0], part):
                found = [getattr(a, part)[name] for a in uploads]
                out[f"late.{part}.{name}"] = torch.cat(found)
        return out

    def load_state(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore the queue from a checkpoint."""
        own = select_prefix(tensors, "late")
        self._uploads, self._busy = [], {}
        if "busy" in own:
            self._busy = {i: (since, until) for i, since, until in own["busy"].tolist()}
            self._last = max(since for since, _ in self._busy.values())
        for k, (client, due) in enumerate(own["uploads"].tolist() if "uploads" in own else []):
            ledger = Ledger()
            for name, size in zip(self._channels, own["sizes"][k].tolist(), strict=True):
                ledger.send_up(name, size, 0.0)
            ledger.counted_up = float(own["counted"][k])
            parts: dict[str, Channels] = {}
            for part in ("rows", "measured", "own"):
                stored = select_prefix(own, part)
                parts[part] = {n: v[k : k + 1].to(device) for n, v in stored.items()}
            self._uploads.append(LateUpload(client, due, ledger=ledger, **parts))


class FaultyClients(ClientPool):
    """A simulation of which some clients fail."""

    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        self.simulation, self._faults = simulation, faults
        self._plan, self._method = simulation.plan, simulation.method
        if faults.stale:
            _check_stale(self._method, self._plan, simulation.problem.start, simulation.aggregate)
        self._queue = DelayQueue(self._method.channels())
        self._sent_late: list[LateUpload] = []  # in a round that is not committed
        self._pending: MemoryRows = []  # memory after a round that is not committed
        self._trained = -1  # the last round in which clients have trained

    def sample_cohort(self, t: int) -> Tensor:
        """Return the cohort of round t: drawn from the clients that are available and not busy."""
        n, size, seed = self._plan.clients, self._plan.cohort, self._plan.seed
        available = self._faults.available_in(t, n, seed).clone()
        available[self._queue.busy(t)] = False
        free = available.nonzero().flatten()
        if len(free) == n:
            ids = self.simulation.sample_cohort(t)
        else:
            ids = free[subset(key(seed, "cohort", t), len(free), min(size, len(free)))]
        late = ids[self._fates(t, ids) == Fate.STALE]
        self._queue.mark_busy(late, t, t + self._faults.delays(seed, t, late))
        return ids

    def _fates(self, t: int, ids: Tensor) -> Tensor:
        return self._faults.fates(self._plan.seed, t, ids)

    def announce(self, ids: Tensor | None) -> None:
        """Do nothing: the clients that train are not the cohort."""

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        if t.preparing:
            result, self._pending = self.simulation.train_clients(ids, down, t, ledger)
            return result
        self._trained, self._pending, self._sent_late = t.index, [], []
        fates, arriving = self._fates(t.index, ids), self._queue.due(t.index)
        late, prompt = ids[fates == Fate.STALE], ids[fates >= Fate.SLOW]
        spent = [self._train_uncounted(ids[fates == Fate.AFTER], down, t)]
        until = t.index + self._faults.delays(self._plan.seed, t.index, late)
        for k, due in enumerate(until.tolist()):
            spent.append(self._train_uncounted(late[k : k + 1], down, t, due))
        counts = {
            "lost": int((fates == Fate.BEFORE).sum() + (fates == Fate.AFTER).sum()),
            "slow": int((fates == Fate.SLOW).sum()),
            "late": len(late),
            "stale": len(arriving),
        }
        extra = {n: sum(row.get(n, 0) for row in spent) for n in COUNTED}
        if not len(prompt) and not arriving:
            row = {n: v for n, v in (self._zero_costs(t) | extra).items() if v or n == "gradients"}
            raise NoClientsError(row | {"answered": 0, **counts})
        result = self._train_prompt(prompt, arriving, down, t, ledger)
        row = dict(result.measured)
        for name, more in extra.items():
            if more:
                row[name] = row.get(name, 0) + more
        answered = len(prompt) + len(arriving) - int(row.get("refused", 0))
        row |= {"answered": answered, **counts, **self.simulation.behaviour.measure(prompt)}
        return replace(result, measured=row)

    def _train_prompt(
        self, ids: Tensor, late: list[LateUpload], down: Channels, t: Round, ledger: Ledger
    ) -> RoundResult:
        """Train the clients that answer in time; return the means over them and late uploads."""
        late_weight = self.weight_of(torch.tensor([u.client for u in late], dtype=torch.int64))
        aggregate: Aggregation = partial(self._start_with_late, late, late_weight)
        if len(ids):
            result, self._pending = self.simulation.train_clients(
                ids, down, t, ledger, aggregate if late else None
            )
        else:
            means, found = (aggregate(0.0, t.index, w).result() for w in ("train", "measured"))
            row = {"lr": float(found["lr"])} | self._zero_costs(t)
            result = RoundResult(means, float(found["loss"]), row, fraction=0.0)
        for upload in late:
            ledger.add(upload.ledger)
            self._pending.append((torch.tensor([upload.client]), upload.own))
        assert result.fraction is not None
        return replace(result, fraction=result.fraction + late_weight)

    def _start_with_late(
        self, late: list[LateUpload], late_weight: float, weight: float, round: int, what: str
    ) -> Aggregator:
        """Create an aggregator that contains the late uploads."""
        aggregator = self.simulation.aggregate(weight + late_weight, round, what)
        for upload in late:
            p = self.simulation.weights[[upload.client]]
            aggregator.add(p, upload.rows if what == "train" else upload.measured)
        return aggregator

    def _zero_costs(self, t: Round) -> dict[str, float]:
        return work_costs(self._method, dict.fromkeys(WORK_COUNTS, 0.0), 0, t)

    def _train_uncounted(
        self, ids: Tensor, down: Channels, t: Round, due: int | None = None
    ) -> dict[str, float]:
        """Train clients whose uploads are lost, or one whose upload is late; return its cost."""
        if not len(ids):
            return {}
        ledger = Ledger()
        result, memory = self.simulation.train_clients(ids, down, t, ledger, weighted_mean)
        is_finite = "refused" not in result.measured and result.loss == result.loss
        if due is not None and is_finite:
            ((_, own),) = memory
            rows = {name: v[None] for name, v in result.mean.items()}
            numbers = {"loss": result.loss, "lr": result.measured["lr"]}
            measured = {name: down["x"].new_tensor([v]) for name, v in numbers.items()}
            self._sent_late.append(LateUpload(int(ids[0]), due, rows, measured, own, ledger))
        return result.measured

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        """Return the means over the clients that answer; the points are sent to all."""
        if request.who == "held" or request.t < 0:  # before round 0 nobody fails
            return self.simulation.query(request, ledger)
        ids = self.simulation.without_refused(request.ids(self._plan.clients), request.t)
        request.count_down(len(ids), ledger)
        fates = self._fates(request.t, ids)
        answers = fates >= Fate.SLOW if self._trained == request.t else fates != Fate.BEFORE
        if not bool(answers.any()):
            lost = {"lost": len(ids), "slow": 0, "late": 0, "stale": 0}
            raise NoClientsError({"gradients": 0, "answered": 0, **lost})
        uploads = Ledger()
        answering = replace(request, cohort=ids[answers], who="cohort")
        means = self.simulation.query(answering, uploads)
        ledger.add(uploads)
        return means

    def commit(self) -> None:
        """Store the memory of the clients whose uploads arrived, and queue the late uploads."""
        self.simulation.store_memory(self._pending)
        self._queue.commit(self._trained, self._sent_late)
        self._pending, self._sent_late = [], []

    def state(self) -> dict[str, Tensor]:
        return self.simulation.state() | self._queue.state()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self.simulation.load_state(tensors)
        self._queue.load_state(tensors, self.simulation.problem.device)

    def weight_of(self, ids: Tensor) -> float:
        return self.simulation.weight_of(ids)

    def describe(self) -> dict[str, Any]:
        return self.simulation.describe()

    def summarize_refused(self) -> str | None:
        return self.simulation.summarize_refused()

    def measure(self, x: Vector) -> dict[str, float]:
        return self.simulation.measure(x)

    def gradient(self, x: Vector) -> Vector:
        return self.simulation.gradient(x)


class _NoQueries(DryRun):
    """A dry run of rounds in which a query is an error."""

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        why = "it queries its cohort within a round and compares the answers with the uploads"
        raise cannot_use("Faults(stale=...)", self._method.name, why)


def _check_stale(method: Method, plan: Plan, x: Vector, aggregate: Aggregation) -> None:
    """Refuse late uploads if means of a round are compared, or the number of clients is fixed."""
    ids, pool = torch.arange(plan.cohort), _NoQueries(method, plan, x)
    run_round(method, plan, init_server_state(method, x, plan), pool, ids)
    if aggregate is not weighted_mean and not isinstance(aggregate, Robust):
        why = "it knows how many clients a round has; use before or after"
        raise cannot_use("Faults(stale=...)", f"aggregate={aggregate!r}", why)
