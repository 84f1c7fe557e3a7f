"""Clients that do no work: what a round would cost, before anyone trains."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..clients.loop import LocalBatches
from ..core.layout import Layout
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, Vector
from ..methods import Method
from ..models.losses import Batch, DeferredBatch
from ..rounds.client import ClientTask, init_client_memory, local_update, pack_uploads
from ..rounds.pool import ClientPool, QueryRequest, RoundResult
from ..rounds.server import init_server_state, run_round
from ..wire import Ledger


class _ZeroLosses:
    """Losses and gradients that are zero."""

    name, wants_deferred = "none", False

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        return y.new_zeros(y.shape[0])

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        return y.new_zeros(y.shape[0]), torch.zeros_like(y)

    def descent(self, m: int) -> None:
        pass

    def fuse(self, *args: object) -> None:
        """Return None: every step is taken by itself."""

    def release(self) -> None:
        pass


class DryRun(ClientPool):
    """Answers with zeros in the channels of a method, and counts bytes and gradients.

    A pass over a client's data has `batches` batches in the mean.
    """

    def __init__(self, method: Method, plan: Plan, x: Vector, batches: float = 1.0) -> None:
        self._method, self._plan, self._batches = method, plan, batches
        self.gradients = 0.0  # that clients would have computed, in batches
        first = init_client_memory(method, x, plan)
        self.own = {name: v[None] for name, v in first.items()}  # one client's memory

    def sample_cohort(self, t: int) -> Tensor:
        return torch.arange(self._plan.cohort)

    def weight_of(self, ids: Tensor) -> float:
        """Return the cohort's share under uniform weights."""
        return len(ids) / self._plan.clients

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        clients = len(request.ids(self._plan.clients))
        if request.who != "held":
            request.count_down(clients, ledger)
        answers = [request.zero_answer(x) for x in request.at]
        for answer in answers:
            self.gradients += 0 if request.what in ("loss", "moments") else clients * self._batches
            if request.who != "held":
                ledger.send_up(request.what, answer.nbytes * clients)
        return answers

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Compute the upload of one client, and count it for all."""
        x = down["x"]
        empty = Batch(x[:0], x[:0], x[:0], x[:0])

        def full(at: Tensor, grad: bool) -> tuple[Rows, Rows]:
            self.gradients += len(ids) * self._batches if grad else 0
            return x.new_zeros(1), torch.zeros_like(x)[None]

        one_step = torch.ones(1, dtype=torch.int64, device=x.device)
        batches = LocalBatches(lambda k: empty, one_step, x.new_ones((1, 1)), (1, 1))
        task = ClientTask(
            losses=_ZeroLosses(), local_batches=lambda phase, steps: batches, full_loss=full
        )
        refs = 1 + ("ref" in self._method.direction.sets and not t.preparing)
        extra = self._method.step.extra_gradients(self._plan.steps)
        self.gradients += len(ids) * (self._plan.steps * refs + extra)
        sent, _, _ = local_update(self._method, task, down, self.own, t)
        one = Ledger()
        arrived, _ = pack_uploads(self._method, sent, self.own, ids[:1], t, one)
        for name, size in one.up.items():
            ledger.send_up(name, size * len(ids))
        mean = {name: rows[0] for name, rows in arrived.items()}
        if not t.preparing:
            ledger.send_down({f"mean {n}": mean[n] for n in self._method.echo}, len(ids))
        return RoundResult(mean, 0.0, {})


def reads_rounds(method: Method, plan: Plan, x: Vector) -> bool:
    """Return whether the planned number of rounds decides anything in a method's rounds."""
    reads = 0

    class Watched(Plan):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "rounds"
            return super().__getattribute__(name)

    watched = Watched(**{f.name: getattr(plan, f.name) for f in fields(Plan)})
    now, pool = init_server_state(method, x, watched), DryRun(method, watched, x)
    for _ in range(2):
        reads -= 1  # `run_round` reads it for the schedule
        now, _ = run_round(method, watched, now, pool, torch.arange(plan.cohort))
    last = plan.rounds - 1
    factors = [method.rates.factor(last, rounds) for rounds in (plan.rounds, 2 * plan.rounds)]
    return reads > 0 or factors[0] != factors[1]


@dataclass(frozen=True)
class Units:
    """A size in vectors of d numbers and single numbers."""

    vectors: float
    scalars: int = 0

    def __str__(self) -> str:
        if self.vectors != int(self.vectors):
            return f"{self.vectors:.2f}d"
        vectors = {0: "", 1: "d"}.get(int(self.vectors), f"{int(self.vectors)}d")
        scalars = str(self.scalars) if self.scalars else ""
        return "+".join(part for part in (vectors, scalars) if part) or "0"


def units(method: Method, clients: int = 8, d: int = 40_000) -> dict[str, Units]:
    """Return the uploads, downloads and memory of a method with full participation, in units of d.

    "up" and "down" are per client and round, "before" is a client's upload before round 0, "client"
    and "server" are the memory between rounds, the server's without x.
    """
    plan = Plan(clients, clients, 100, 10.0, Layout(("w",), ((d // 200, 200),)), held=True)
    x, ids = torch.ones(d), torch.arange(clients)
    pool = DryRun(method, plan, x)
    now = init_server_state(method, x, plan)
    now, first = run_round(method, plan, now, pool, ids)
    now, row = run_round(method, plan, now, pool, ids)
    sent = {way: row[f"bytes_{way}"] / (4 * clients) for way in ("up", "down")}
    early = (first["bytes_up"] - row["bytes_up"]) / (4 * clients)
    own = sum(v.numel() for v in pool.own.values())
    kept = sum(v.numel() for v in {id(v): v for v in now.tensors().values()}.values()) - d
    numbers = {**sent, "before": early, "client": own, "server": kept}
    return {name: _units(value, d) for name, value in numbers.items()}


def _units(numbers: float, d: int) -> Units:
    vectors, scalars = divmod(numbers, d)
    return Units(vectors, int(scalars)) if scalars < 64 else Units(numbers / d)
