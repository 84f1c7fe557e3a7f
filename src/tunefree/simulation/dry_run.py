"""Clients that do no work: what a round would cost, before anyone trains."""

from collections.abc import Callable
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


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a method costs: bytes and gradients of the whole cohort, numbers in memory.

    Attributes:
        first: The history's row of round 0, with the bytes sent before it.
        later: The row of a later round.
        first_gradients: Minibatch gradients until round 0 has ended.
        later_gradients: Minibatch gradients of a later round.
        client_numbers: Numbers that a client keeps between rounds.
        server_numbers: Numbers that the server keeps, the model included.
    """

    first: dict[str, Any]
    later: dict[str, Any]
    first_gradients: float
    later_gradients: float
    client_numbers: int
    server_numbers: int


def measure_costs(
    method: Method,
    plan: Plan,
    x: Vector,
    batches: float = 1.0,
    before: Callable[[ClientPool], Ledger] | None = None,
) -> Costs:
    """Return the costs of two rounds that are run without data.

    A pass over a client's data has `batches` batches in the mean. `before` lets the clients send
    something before round 0, and returns its bytes.
    """
    pool, ids = DryRun(method, plan, x, batches), torch.arange(plan.cohort)
    start, ledger = init_server_state(method, x, plan), None if before is None else before(pool)
    state, first = run_round(method, plan, start, pool, ids, ledger)
    first_gradients = pool.gradients
    state, later = run_round(method, plan, state, pool, ids)
    kept = {id(v): v for v in state.tensors().values()}.values()  # one may have several names
    return Costs(
        first=first,
        later=later,
        first_gradients=first_gradients,
        later_gradients=pool.gradients - first_gradients,
        client_numbers=sum(v.numel() for v in pool.own.values()),
        server_numbers=sum(v.numel() for v in kept),
    )


def reads_rounds(method: Method, plan: Plan, x: Vector) -> bool:
    """Return whether the planned number of rounds decides anything in a method's rounds."""
    reads = 0

    class Watched(Plan):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "rounds"
            return super().__getattribute__(name)

    watched = Watched(**{f.name: getattr(plan, f.name) for f in fields(Plan)})
    measure_costs(method, watched, x)
    reads -= 2  # `run_round` reads it for the schedule
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


def count_units(method: Method, clients: int = 8, d: int = 40_000) -> dict[str, Units]:
    """Return the uploads, downloads and memory of a method with full participation, in units of d.

    "up" and "down" are per client and round, "before" is a client's upload before round 0, "client"
    and "server" are the memory between rounds, the server's without x.
    """
    plan = Plan(clients, clients, 100, 10.0, Layout(("w",), ((d // 200, 200),)), held=True)
    costs = measure_costs(method, plan, torch.ones(d))
    first, later, size = costs.first, costs.later, 4 * clients
    numbers = {
        "up": later["bytes_up"] / size,
        "down": later["bytes_down"] / size,
        "before": (first["bytes_up"] - later["bytes_up"]) / size,
        "client": costs.client_numbers,
        "server": costs.server_numbers - d,
    }
    return {name: _as_units(value, d) for name, value in numbers.items()}


def _as_units(numbers: float, d: int) -> Units:
    vectors, scalars = divmod(numbers, d)
    return Units(vectors, int(scalars)) if scalars < 64 else Units(numbers / d)
