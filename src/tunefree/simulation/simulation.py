"""All clients in this process: they train in chunks, one row per client."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attacks import Adversaries, Behaviour
from ..core.errors import ArgumentError
from ..core.plan import Round
from ..core.random import cohort
from ..core.threads import WAIT_LIMITER, one_thread
from ..core.types import Channels, Rows, State, Vector, take_rows
from ..core.vectors import row_sq
from ..data.moments import column_moments
from ..rounds.client import init_client_memory, local_update, pack_uploads, update_memory
from ..rounds.pool import ClientPool, QueryRequest, RoundResult
from ..server.aggregate import Aggregation, Mean, client_weights, weighted_mean
from ..wire import Ledger
from .batches import BatchSource
from .cohort import (
    MISSING,
    ChunkResult,
    CohortSums,
    MemoryRows,
    PendingChecks,
    RefusedClients,
    find_nonfinite,
    mask_nonfinite,
    positions_without,
    select_clients,
)
from .context import WORK_COUNTS, ClientContext, work_costs
from .engine import SimulationConfig, choose_engine, is_small
from .memory import ClientMemory
from .moments import MomentSums

MOMENT_CLIENTS = 1024  # whose moments are computed at once
ROWS_AT_ONCE = 4096  # samples per call in `gradient`, where clients do not matter


class Simulation(ClientPool):
    """Simulated clients: their data, batched losses and persistent memory, in this process.

    Faults shorten the local work of slow clients here; the rest of them is in `FaultyClients`.
    """

    def __init__(self, config: SimulationConfig) -> None:
        method, plan, federation = config.method, config.plan, config.federation
        self.ranks, self.aggregate, self.behaviour = config.ranks, config.aggregate, Behaviour()
        if self.ranks.size > 1 and (config.faults is not None or config.attack is not None):
            raise ArgumentError("fit(scenario=...) takes one process; start without torchrun.")
        if self.ranks.size > 1 and self.aggregate is not weighted_mean:
            raise ArgumentError("fit(aggregate=...) takes one process; start without torchrun.")
        if config.attack is not None:
            config.attack.check(method, federation)
            self.behaviour = adversaries = Adversaries(config.attack, plan.clients, plan.seed)
            federation = adversaries.poison(federation)
        self.method, self.plan = method, plan
        self.problem, self.federation = config.problem, federation
        self.batches = BatchSource(
            config.problem, federation, config.batch_plan, plan.seed, config.augment
        )
        self.weights = client_weights(method.resolved_weights, federation.sizes)  # (N,), sum 1
        self._is_small = is_small(config, self.batches)
        with one_thread(self._is_small):  # compiled code has a fixed number of threads
            self.losses, self.chunks = choose_engine(config, self.batches)
        faults = config.faults
        limit_steps = None if faults is None else partial(faults.limit_steps, plan.seed)
        self.context = ClientContext(method, self.batches, self.losses, limit_steps)
        first = init_client_memory(method, config.start, plan)
        most = plan.clients if method.prepares else min(plan.clients, plan.rounds * plan.cohort)
        most = min(most, -(-plan.clients // self.ranks.size))  # rank i mod size has client i
        self.memory = ClientMemory(first, plan.clients, most=most)
        self._next: Tensor | None = None  # first chunk of the next round
        self._pending: MemoryRows = []  # memory after a round that is not committed
        self._log = RefusedClients(federation.names)
        self._checks = PendingChecks(self._log)
        self._refused: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))

    def sample_cohort(self, t: int) -> Tensor:
        return cohort(self.plan.seed, t, self.plan.clients, self.plan.cohort)

    def announce(self, ids: Tensor | None) -> None:
        mine = None if ids is None else self.ranks.mine(self.behaviour.order(ids))
        self._next = None if mine is None or not len(mine) else mine[: self.chunks.size]

    def weight_of(self, ids: Tensor) -> float:
        return float(self.weights[ids].sum())

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        WAIT_LIMITER.update()
        with one_thread(self._is_small):
            result, self._pending = self.train_clients(ids, down, t, ledger)
        return replace(result, measured=result.measured | self.behaviour.measure(ids))

    def train_clients(
        self,
        ids: Tensor,
        down: Channels,
        t: Round,
        ledger: Ledger,
        aggregate: Aggregation | None = None,
    ) -> tuple[RoundResult, MemoryRows]:
        """Train clients and return the means of their uploads and their new memory.

        Clients with non-finite numbers are left out. If they are at least half of the clients, the
        loss is NaN and the run is reported as diverged. `aggregate` replaces the run's.
        """
        aggregate = self.aggregate if aggregate is None else aggregate
        ids, passes, sent = self.behaviour.order(ids), self.context.passes, Ledger()
        result, memory, bad = self._train_once(ids, down, t, sent, aggregate)
        if len(bad):
            names = [self.federation.names[i] for i in bad.tolist()]
            if self.ranks.leads:
                why = "the loss, or what is sent or remembered, is NaN or Inf"
                self._log.log(t.index, bad, why)
            if 2 * len(bad) >= len(ids) or self.method.full or t.preparing:
                result = replace(result, loss=math.nan)  # the method diverged, not some clients
            else:
                self.context.passes, again, self._refused = passes, Ledger(), (t.index, bad)
                result, memory, _ = self._train_once(ids, down, t, again, aggregate, bad)
                again.send_up("refused", sent.bytes_up - again.bytes_up, 0.0)
                ids, sent = ids[positions_without(ids, bad)], again
                who: dict[str, Any] = {
                    "refused": len(bad),
                    "refused_clients": ", ".join(map(str, names)),
                }
                result = replace(result, measured=result.measured | who)
        ledger.add(sent)
        if self.method.echo and not t.preparing:
            ledger.send_down({f"mean {n}": result.mean[n] for n in self.method.echo}, len(ids))
        return replace(result, fraction=self.weight_of(ids)), memory

    def _train_once(
        self,
        ids: Tensor,
        down: Channels,
        t: Round,
        ledger: Ledger,
        aggregate: Aggregation,
        without: Tensor | None = None,
    ) -> tuple[RoundResult, MemoryRows, Tensor]:
        """Train clients; return the result, their new memory, and those with non-finite numbers.

        The clients in `without` train, too, so that shapes do not change, but do not count.
        """
        mine = self.ranks.mine(ids)
        self.behaviour.start(ids)
        weight = self.weight_of(ids if without is None else ids[positions_without(ids, without)])
        sums = CohortSums(aggregate, weight, t.index, self.problem.device)
        kept: list[tuple[Tensor, Channels, Channels, State]] = []
        here = Ledger()  # uploads of this process's clients
        echo = self.method.echo

        def work(part: Tensor, following: Tensor | None) -> ChunkResult | None:
            return self._train_chunk(part, following, down, t, without)

        for _, chunk in self.chunks.each(mine, work):
            if chunk is not None:
                here.add(chunk.ledger)
                sums.add(self.weights[chunk.ids], chunk)
                kept.append((chunk.ids, chunk.sent, chunk.arrived if echo else {}, chunk.own))
        self._count_uploads(here, ledger, t)
        if aggregate is not weighted_mean and len(bad := sums.find_nonfinite(mine)):
            nothing = RoundResult(self._empty_means(down["x"], math.nan), math.nan, {})
            return nothing, [], bad  # before the aggregation sees it
        means = sums.means()
        if self.ranks.size > 1:  # so far over this process's clients
            names = self.method.channels(t.preparing)
            means = self.ranks.totals(names, means, self._empty_means(down["x"]))
        memory = [
            (part, update_memory(self.method, sent, arrived, means, own, t) if echo else own)
            for part, sent, arrived, own in kept
        ]
        asked = self._checks.checksums()
        numbers = sums.numbers(asked)
        if self._next is not None and self.losses.wants_deferred and not t.preparing:
            self.context.prefetcher.prefetch(self._next, t.index + 1)
        said, size = numbers.tolist(), len(WORK_COUNTS) + 2  # the round's only wait for the device
        bad = find_nonfinite(mine, said[size : size + len(mine)]) if without is None else mine[:0]
        self._checks.report(said[len(said) - sum(map(len, asked)) :])
        *counts, loss, lr = self.ranks.counts(said[:size])
        counted = dict(zip(WORK_COUNTS, counts, strict=True))
        passes, some = self.ranks.counts([self.context.passes, len(bad)])
        self.context.passes = 0
        row = {"lr": lr, **work_costs(self.method, counted, passes, t)}
        bad = self.ranks.gather_rows(bad, {})[0] if some else bad
        return RoundResult(means, loss, row), memory, bad

    def _train_chunk(
        self,
        ids: Tensor,
        following: Tensor | None,
        down: Channels,
        t: Round,
        without: Tensor | None,
    ) -> ChunkResult | None:
        """Train the clients of a chunk; None if all of them are in `without`."""
        context, ledger = self.context, Ledger()
        before = self.memory.gather(ids)
        if following is not None:
            self.memory.prefetch(following)
        passes = context.passes
        try:
            sent, own, works = local_update(self.method, context.task(ids, t), down, before, t)
            if without is not None and len(at := positions_without(ids, without)) < len(ids):
                if not len(at):
                    context.passes = passes
                    return None
                took = self.batches.passes(ids)
                more = (context.passes - passes) * int(took[at].sum()) // int(took.sum())
                ids, context.passes = ids[at], passes + more
                sent, own, before, works = select_clients(at, sent, own, before, works)
            sent = self.behaviour.change_vectors(ids, sent, t.index, "train")
            arrived, wired = pack_uploads(self.method, sent, before, ids, t, ledger)
            arrived = self.behaviour.change_numbers(ids, arrived)
            own = own | wired
            if not self.method.echo:  # no mean to wait for: do not hold the rows
                own, sent = update_memory(self.method, sent, arrived, {}, own, t), {}
        except torch.OutOfMemoryError:  # the chunk will be repeated in smaller ones
            context.passes = passes
            raise
        return ChunkResult(ids, sent, arrived, own, works, ledger)

    def _empty_means(self, x: Vector, value: float = 0.0) -> Channels:
        empty = {n: torch.full_like(x, value) for n in self.method.vectors}
        return empty | {n: x.new_full((), value) for n in self.method.scalars}

    def _count_uploads(self, here: Ledger, ledger: Ledger, t: Round) -> None:
        """Add the uploads of all processes' clients to the round's ledger."""
        names = self.method.channels(t.preparing)
        *sizes, counted = self.ranks.counts([*(here.up[n] for n in names), here.counted_up])
        for name, size in zip(names, sizes, strict=True):
            ledger.send_up(name, int(size), 0.0)
        ledger.counted_up += counted

    def commit(self) -> None:
        self.store_memory(self._pending)
        self._pending = []
        if self._next is not None:
            self.memory.prefetch(self._next)

    def store_memory(self, rows: MemoryRows) -> None:
        """Store the new memory of clients, as `train_clients` returned it."""
        for part, own in rows:
            self.memory.scatter(part, own)

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        """Return the mean of `request.what` at each point, and count the bytes.

        "held" is the server's own sample, for which nothing is sent.
        """
        if request.who == "held":
            if self.federation.held is None:
                why = "evaluates on the server's own sample; give Federation(held=...)"
                raise ArgumentError(f"This method {why}.")
            return [self.context.probe(x, request.t, None, request.what)[0] for x in request.at]
        ids = self.without_refused(request.ids(self.plan.clients), request.t)
        ids = self.behaviour.order(ids)
        request.count_down(len(ids), ledger)
        if request.what == "moments":
            return [self._query_moments(shift, ids, ledger) for shift in request.at]
        answers = []
        for j, x in enumerate(request.at):
            answer = self._query_point(request, ids, x, f"probe {j}")
            ledger.send_up(request.what, len(ids) * answer.nbytes)
            answers.append(answer)
        return answers

    def _query_point(self, request: QueryRequest, ids: Tensor, x: Vector, name: str) -> Tensor:
        t, what = request.t, request.what
        mean = self.aggregate(self.weight_of(ids), t, name)
        self.behaviour.start(ids)

        def work(part: Tensor, following: Tensor | None) -> Rows:
            with one_thread(self._is_small):
                rows: Channels = {what: self.context.probe(x, t, part, what)}
            rows = self.behaviour.change_vectors(part, rows, t, "probe")
            return self.behaviour.change_numbers(part, rows)[what]

        for part, rows in self.chunks.each(self.ranks.mine(ids), work):
            masked, sums = mask_nonfinite(what, rows)
            self._checks.add(t, part, sums)
            mean.add(
                self.weights[part], masked if self.aggregate is weighted_mean else {what: rows}
            )
        nothing = {what: request.zero_answer(x), MISSING: x.new_zeros(())}
        found = self.ranks.totals((what, MISSING), mean.result(), nothing)
        return found[what] / (1 - found[MISSING]) if MISSING in found else found[what]

    def _query_moments(self, shift: Tensor, ids: Tensor, ledger: Ledger) -> Tensor:
        sums = MomentSums(self.aggregate, self.plan.clients, len(shift))
        self.behaviour.start(ids)
        for part in torch.split(self.ranks.mine(ids), MOMENT_CLIENTS):
            rows = {"moments": column_moments(self.federation, part, shift)}
            sums.add(self.behaviour.change_vectors(part, rows, -1, "probe")["moments"])
        found = self.ranks.totals(("moments",), sums.result(), sums.zeros(shift))["moments"]
        ledger.send_up("moments", len(ids) * found.nbytes)
        return sums.decode(found)

    def without_refused(self, ids: Tensor, t: int) -> Tensor:
        """Return these clients without those that were refused in round t."""
        return ids[positions_without(ids, self._refused[1])] if self._refused[0] == t else ids

    def gradient(self, x: Vector) -> Vector:
        """Return grad f at x over all clients' data, without dropout.

        This is a measurement: it counts neither as work nor as traffic.
        """
        each = (self.weights / self.federation.sizes).repeat_interleave(self.federation.sizes)
        weight = each.to(x.device, x.dtype)
        total = self.method.weight_decay * x
        for low in range(0, len(weight), ROWS_AT_ONCE):
            rows = slice(low, low + ROWS_AT_ONCE)
            inputs = take_rows(self.federation.x, rows)
            total = total + self.problem.gradient(x, inputs, self.federation.y[rows], weight[rows])
        return total

    def measure(self, x: Vector) -> dict[str, float]:
        """Return how much the clients' gradients differ at x; a measurement, as `gradient` is."""
        mean, passes = Mean(1.0), self.context.passes

        def work(part: Tensor, following: Tensor | None) -> Rows:
            return self.context.full(x, 0, part, True)[1]

        everyone = self.ranks.mine(torch.arange(self.federation.clients))
        for part, grads in self.chunks.each(everyone, work):
            mean.add(self.weights[part], {"grad": grads, "sq": row_sq(grads)})
        self.context.passes = passes
        none = {"grad": torch.zeros_like(x), "sq": x.new_zeros(())}
        found = self.ranks.totals(("grad", "sq"), mean.result(), none)
        whole, each = float(row_sq(found["grad"])), float(found["sq"])
        ratio = each / whole if whole > 0 else math.inf
        return {"zeta": math.sqrt(max(each - whole, 0.0)), "dissimilarity": ratio}

    def summarize_refused(self) -> str | None:
        return self._log.summary()

    def describe(self) -> dict[str, Any]:
        processes = {} if self.ranks.size == 1 else {"processes": self.ranks.size}
        memory = {"memory": self.memory.place} if self.memory.bytes else {}
        return {"engine": self.losses.name, "chunk": self.chunks.size, **processes, **memory}

    def state(self) -> dict[str, Tensor]:
        found = self.memory.tensors()
        if not found:
            return found
        ids, rows = self.ranks.gather_rows(found.pop("memory_ids"), found)
        return {"memory_ids": ids, **rows}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        if "memory_ids" in tensors and self.ranks.size > 1:
            ids = tensors["memory_ids"]
            mine = (ids % self.ranks.size == self.ranks.rank).nonzero().flatten()
            names = [n for n in tensors if n == "memory_ids" or n.startswith("memory.")]
            tensors = {n: tensors[n][mine] for n in names}
        self.memory.restore(tensors)
