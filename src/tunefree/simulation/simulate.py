"""All clients in this process: chunks of rows through the batched loss."""

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.plan import Plan, Round, What, Who
from ..core.random import cohort
from ..core.types import Channels, Rows, State, Vector, map_inputs
from ..core.vectors import row_sq
from ..data.batches import BatchPlan, plan_steps
from ..data.federation import Federation
from ..methods import Method
from ..models.augment import CropFlip
from ..models.engine import EngineName, choose
from ..models.losses import Losses
from ..models.problem import Problem
from ..rounds import RoundResult, init_client_memory, local_update, pack_uploads, update_memory
from ..server.aggregate import Aggregation, Mean, client_weights, weighted_mean
from ..wire import Ledger
from .chunk import FEW, Chunks, fitting, in_cache, in_memory
from .desk import WORK_COUNTS, ClientContext, count_work, work_costs
from .feed import BatchSource
from .finite import MISSING, PendingChecks, odd, others, picked, refused, settled, traces
from .memory import ClientMemory
from .ranks import Ranks

log = logging.getLogger("tunefree")

COMPILE_STEPS, COMPILE_FLOPS = 20_000, 1e13  # above either, compiling on a CPU pays for itself
# Bytes that one client's step keeps for its backward pass: above, clients are faster in turn than
# batched on a CPU, and faster in turn than compiled (both by `python -m benchmarks cpu`).
TURNS, TOO_LARGE = 5 << 18, 8 << 20
GPU_STEPS, GPU_FLOPS = 5_000, 1e14  # the same on a GPU
ROWS = 4096  # samples at once where clients do not matter


@dataclass(frozen=True)
class EngineOptions:
    """How clients work here.

    Args:
        engine: "vmap", "loop" or "auto".
        compile: True, False, or None for a choice by the amount of work (the same every time).
        chunk: Clients trained at once; None takes the whole cohort, fewer where that is faster.
        augment: What is done to a batch of images, or None.
        aggregate: Makes the aggregators of what clients send.
    """

    engine: EngineName = "auto"
    compile: bool | None = None
    chunk: int | None = None
    augment: CropFlip | None = None
    aggregate: Aggregation = weighted_mean


class Simulation:
    """A crew that lives here: data, batched losses and the clients' memory."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        federation: Federation,
        cut: BatchPlan,
        plan: Plan,
        seed: int,
        local: EngineOptions,
        start: Vector | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.method, self.problem, self.fed, self._plan = method, problem, federation, plan
        self.feed = BatchSource(problem, federation, cut, seed, local.augment)
        self.ranks = Ranks() if ranks is None else ranks
        self._shares, self._aggregate = (
            client_weights(method.weights, federation.sizes),
            local.aggregate,
        )
        if self.ranks.size > 1 and self._aggregate is not weighted_mean:
            raise ArgumentError("fit(aggregate=...) takes one process; start without torchrun.")
        self.losses, self.chunks = self._engine(plan, local)
        self._next: Tensor | None = None  # who begins the next round
        self._pending: list[tuple[Tensor, State]] = []  # memory of a round that may not count
        self._heard = PendingChecks()
        self._refused: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))
        self.desk = ClientContext(method, self.feed, self.losses)
        first = init_client_memory(method, problem.start if start is None else start, plan)
        most = plan.clients if method.prepares else min(plan.clients, plan.rounds * plan.cohort)
        most = min(most, -(-plan.clients // self.ranks.size))  # client i lives on rank i mod size
        self.memory = ClientMemory(first, plan.clients, most=most)

    def _worth_compiling(self, plan: Plan) -> bool:
        steps = plan.rounds * plan.steps
        flops = 6.0 * plan.layout.size * self.feed.width * plan.cohort * steps
        if self.problem.device.type == "cuda":
            return steps >= GPU_STEPS or flops >= GPU_FLOPS
        return steps >= COMPILE_STEPS or flops >= COMPILE_FLOPS

    def _engine(self, plan: Plan, local: EngineOptions) -> tuple[Losses, Chunks]:
        """Return how losses are computed, and for how many clients at once."""
        problem, chunk = self.problem, plan.cohort
        bytes = problem.kept(*self.feed.probe(torch.arange(1)).row(0))
        on_cpu = problem.device.type == "cpu"
        turns, compile = on_cpu and bytes > TURNS, local.compile
        if compile is None:
            compile = self._worth_compiling(plan) and local.engine != "loop"
            compile = compile and not (on_cpu and bytes > TOO_LARGE)
        if local.chunk is not None:
            chunk = min(local.chunk, plan.cohort)
        elif problem.device.type == "cuda":
            chunk = in_memory(problem, self.feed, plan.cohort, local.engine != "loop")
        elif compile:
            chunk = in_cache(plan.cohort, problem.start.nbytes)
            if turns:
                chunk = fitting(plan.cohort, FEW) if bytes <= TOO_LARGE else 1
        everyone = torch.arange(chunk)
        probe = self.feed.probe(everyone) if on_cpu else self.feed.order(everyone)
        descends = self.method.descent_lr(1.0) is not None
        losses = choose(problem, probe, local.engine, compile, turns, descends)
        if compile and on_cpu and losses.name == "vmap":  # it could not be compiled
            return self._engine(plan, replace(local, compile=False))
        return losses, Chunks(chunk, losses.release)

    def sample_cohort(self, t: int) -> Tensor:
        """Return who takes part in round t."""
        return cohort(self._plan.seed, t, self._plan.clients, self._plan.cohort)

    def weight_of(self, ids: Tensor) -> float:
        """Return these clients' share of the population's weight."""
        return float(self._shares[ids].sum())

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Train the cohort and return the means; whose numbers are not finite is left out.

        With half of a cohort or more of them, the round's loss is no number: a run that diverged.
        """
        passes, sent = self.desk.passes, Ledger()
        found, bad = self._trained(ids, down, t, sent)
        if len(bad):
            if self.ranks.leads:
                refused(t.index, bad, "the loss, or what is sent or remembered, is NaN or Inf")
            if 2 * len(bad) >= len(ids) or self.method.full or t.preparing:
                found = replace(found, loss=math.nan)  # it is the method that blew up
            else:
                self.desk.passes, again, self._refused = passes, Ledger(), (t.index, bad)
                found, _ = self._trained(ids, down, t, again, bad)
                again.send_up("refused", sent.bytes_up - again.bytes_up, 0.0)
                ids, sent = ids[others(ids, bad)], again
                row = found.measured | {"refused": len(bad)}
                found = replace(found, measured=row, fraction=self.weight_of(ids))
        ledger.add(sent)
        if self.method.echo and not t.preparing:
            ledger.send_down({f"mean {n}": found.mean[n] for n in self.method.echo}, len(ids))
        return found

    def _trained(
        self, ids: Tensor, down: Channels, t: Round, ledger: Ledger, without: Tensor | None = None
    ) -> tuple[RoundResult, Tensor]:
        """Train the cohort, chunk by chunk; return what came of it, and whose part is not finite.

        With `without`, these clients' part is left out; the shapes of the work stay as they are.
        """
        mine = self.ranks.mine(ids)
        weight = self.weight_of(ids if without is None else ids[others(ids, without)])
        mean, measured = (self._aggregate(weight, t.index, w) for w in ("train", "measured"))
        total = torch.zeros(len(WORK_COUNTS), dtype=torch.float64, device=self.problem.device)
        kept: list[tuple[Tensor, Channels, Channels, State]] = []
        here = Ledger()  # what this process's clients send
        sound: list[Tensor] = []  # a number for each client, finite if all of its numbers are

        def work(part: Tensor, following: Tensor | None) -> Any:
            before, bill = self.memory.gather(part), Ledger()
            if following is not None:
                self.memory.prefetch(following)
            passes = self.desk.passes
            try:
                sent, own, works = local_update(
                    self.method, self.desk.task(part, t), down, before, t
                )
                if without is not None and len(at := others(part, without)) < len(part):
                    if not len(at):
                        self.desk.passes = passes
                        return None
                    took = self.feed.passes(part)
                    more = (self.desk.passes - passes) * int(took[at].sum()) // int(took.sum())
                    part, self.desk.passes = part[at], passes + more
                    sent, own, before, works = picked(at, sent, own, before, works)
                sent, arrived, wired = self._pack(sent, before, part, t, bill)
                own = own | wired
                if not self.method.echo:  # nothing to wait for: hold no rows
                    own, sent = update_memory(self.method, sent, arrived, {}, own, t), {}
            except torch.OutOfMemoryError:  # these clients will be asked again
                self.desk.passes = passes
                raise
            return part, sent, arrived, own, works, bill

        for _, done in self.chunks.each(mine, work):
            if done is None:
                continue
            part, sent, arrived, own, works, bill = done
            here.add(bill)
            sound.append(traces(works, arrived, own))
            mean.add(self._shares[part], arrived)
            loss, lr = (sum(getattr(w, n) for w in works) / len(works) for n in ("loss", "lr"))
            measured.add(self._shares[part], {"loss": loss, "lr": lr})
            for one in works:
                total += count_work(one)
            kept.append((part, sent, arrived if self.method.echo else {}, own))
        self._count(here, ledger, t)
        if self._aggregate is not weighted_mean and len(
            bad := odd(mine, torch.cat(sound).tolist())
        ):
            return RoundResult(
                self._none(down["x"], math.nan), math.nan, {}
            ), bad  # before it is shown
        means = self._summed(mean.result(), down["x"], t)
        self._pending = [
            (
                part,
                update_memory(self.method, sent, arrived, means, own, t)
                if self.method.echo
                else own,
            )
            for part, sent, arrived, own in kept
        ]
        found = measured.result()
        own_means = [found[n].double() for n in ("loss", "lr") if n in found]
        asked = self._heard.traces()
        numbers = torch.cat([total, torch.stack(own_means or [total[0] * 0] * 2), *sound, *asked])
        if self._next is not None and self.losses.gathers and not t.preparing:
            self.desk.lessons.draw(self._next, t.index + 1)
        said, size = numbers.tolist(), len(WORK_COUNTS) + 2  # the round's one wait
        bad = odd(mine, said[size : size + len(mine)]) if without is None else mine[:0]
        self._heard.read(said[len(said) - sum(map(len, asked)) :])
        *counts, loss, lr = self.ranks.counts(said[:size])
        counted = dict(zip(WORK_COUNTS, counts, strict=True))
        passes, some = self.ranks.counts([self.desk.passes, len(bad)])
        self.desk.passes = 0
        row = {"lr": lr, **work_costs(self.method, counted, passes, t)}
        return RoundResult(means, loss, row), self.ranks.collected(bad, {})[0] if some else bad

    def _pack(
        self, sent: Channels, own: State, ids: Tensor, t: Round, ledger: Ledger
    ) -> tuple[Channels, Channels, State]:
        """Send rows over the wire; return what was meant, what arrives, and the wire's memory."""
        return sent, *pack_uploads(self.method, sent, own, ids, t, ledger)

    def _none(self, x: Vector, value: float = 0.0) -> Channels:
        """Return the channels' means of nobody."""
        empty = {n: torch.full_like(x, value) for n in self.method.vectors}
        return empty | {n: x.new_full((), value) for n in self.method.scalars}

    def _summed(self, parts: Channels, x: Vector, t: Round) -> Channels:
        """Return the means over the whole cohort, from those over this process's share of it."""
        if self.ranks.size == 1:
            return parts
        return self.ranks.totals(self.method.channels(t.preparing), parts, self._none(x))

    def _count(self, here: Ledger, ledger: Ledger, t: Round) -> None:
        """Add what all processes' clients sent to the round's ledger."""
        names = self.method.channels(t.preparing)
        *sizes, counted = self.ranks.counts([*(here.up[n] for n in names), here.counted_up])
        for name, size in zip(names, sizes, strict=True):
            ledger.send_up(name, int(size), 0.0)
        ledger.counted_up += counted

    def announce(self, ids: Tensor | None) -> None:
        """Be told before a round who takes part in the next one; None where there is none."""
        mine = None if ids is None else self.ranks.mine(ids)[: self.chunks.size]
        self._next = None if mine is None or not len(mine) else mine

    def commit(self) -> None:
        """Keep what the clients learned in the last round, now that the round counts."""
        for part, own in self._pending:
            self.memory.scatter(part, own)
        self._pending = []
        if self._next is not None:
            self.memory.prefetch(self._next)

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
        """Return the mean of `what` at each point over those asked, and count the bytes.

        "held" is the server's own sample: nothing is sent.
        """
        if who == "held" and self.fed.held is None:
            raise ArgumentError(
                "This method evaluates on the server's own sample; give Federation(held=...)."
            )
        whom = ids if who == "cohort" else torch.arange(self.fed.clients)
        if self._refused[0] == t:  # whoever was refused in this round is not asked again
            whom = whom[others(whom, self._refused[1])]
        if who != "held":
            points = {f"point {j}": x for j, x in enumerate(at)} if sent is None else sent
            ledger.send_down(points, len(whom), all=who == "all")
        out = []
        for j, x in enumerate(at):
            if who == "held":
                out.append(self.desk.probe(x, t, None, what)[0])
                continue
            mean = self._aggregate(float(self._shares[whom].sum()), t, f"probe {j}")

            def work(part: Tensor, following: Tensor | None, x: Tensor = x) -> Rows:
                return self.desk.probe(x, t, part, what)

            for part, rows in self.chunks.each(self.ranks.mine(whom), work):
                heard, trace = settled(what, rows)
                self._heard.note(t, part, trace)
                mean.add(
                    self._shares[part], heard if self._aggregate is weighted_mean else {what: rows}
                )
            none = torch.zeros_like(x) if what == "grad" else x.new_zeros(())
            empty = {what: none, MISSING: x.new_zeros(())}
            found = self.ranks.totals((what, MISSING), mean.result(), empty)
            mean_value = found[what] / (1 - found[MISSING]) if MISSING in found else found[what]
            ledger.send_up(what, len(whom) * mean_value.numel() * mean_value.element_size())
            out.append(mean_value)
        return out

    def gradient(self, x: Vector) -> Vector:
        """Return grad f at x over everyone's data, without dropout.

        A measurement: neither work nor traffic.
        """
        each = (self._shares / self.fed.sizes).repeat_interleave(self.fed.sizes)
        weight = each.to(x.device, x.dtype)
        total = self.method.weight_decay * x
        for low in range(0, len(weight), ROWS):
            rows = slice(low, low + ROWS)
            inputs = map_inputs(lambda t, rows=rows: t[rows], self.fed.x)  # type: ignore[misc]
            total = total + self.problem.gradient(x, inputs, self.fed.y[rows], weight[rows])
        return total

    def measure(self, x: Vector) -> dict[str, float]:
        """Return how much clients' gradients differ at x; as `gradient`, a measurement."""
        mean, passes = Mean(1.0), self.desk.passes

        def work(part: Tensor, following: Tensor | None) -> Rows:
            return self.desk.full(x, 0, part, True)[1]

        everyone = self.ranks.mine(torch.arange(self.fed.clients))
        for part, grads in self.chunks.each(everyone, work):
            mean.add(self._shares[part], {"grad": grads, "sq": row_sq(grads)})
        self.desk.passes = passes
        none = {"grad": torch.zeros_like(x), "sq": x.new_zeros(())}
        found = self.ranks.totals(("grad", "sq"), mean.result(), none)
        whole, each = float(row_sq(found["grad"])), float(found["sq"])
        ratio = each / whole if whole > 0 else math.inf
        return {"zeta": math.sqrt(max(each - whole, 0.0)), "dissimilarity": ratio}

    def describe(self) -> dict[str, Any]:
        """Return what was chosen, for the record."""
        processes = {} if self.ranks.size == 1 else {"processes": self.ranks.size}
        memory = {"memory": self.memory.place} if self.memory.bytes else {}
        return {"engine": self.losses.name, "chunk": self.chunks.size, **processes, **memory}

    def state(self) -> dict[str, Tensor]:
        """Return the clients' memory for a checkpoint."""
        found = self.memory.tensors()
        if not found:
            return found
        ids, rows = self.ranks.collected(found.pop("memory_ids"), found)
        return {"memory_ids": ids, **rows}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take the clients' memory from a checkpoint."""
        if "memory_ids" in tensors and self.ranks.size > 1:
            ids = tensors["memory_ids"]
            mine = (ids % self.ranks.size == self.ranks.rank).nonzero().flatten()
            names = [n for n in tensors if n == "memory_ids" or n.startswith("memory.")]
            tensors = {n: tensors[n][mine] for n in names}
        self.memory.restore(tensors)


def mean_steps(federation: Federation, cut: BatchPlan) -> float:
    """Return the mean number of local steps over all clients, the papers' K."""
    return float(plan_steps(federation.sizes, cut).to(torch.float64).mean())
