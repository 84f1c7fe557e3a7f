"""One round, in two halves: what the server does (`play`) and what a client does (`answer`).

Order: open, down, (local steps), upload, wire, mean, server step, absorb, output.
The simulator calls both halves in one process; a real federation calls each where it belongs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from .clients import loop
from .clients.rule import Plan, Round, What, Who, Work, row_sq
from .methods import Method
from .models.losses import Batch, Losses
from .types import Channels, State, Vector
from .wire import Ledger


@dataclass(frozen=True)
class Standing:
    """Everything the server knows between rounds; plain data."""

    round: int  # rounds played so far
    x: Vector
    server: State
    direction: State
    step: State
    output: State

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by dotted name."""
        parts = {k: getattr(self, k) for k in ("server", "direction", "step", "output")}
        flat = {f"{k}.{name}": v for k, part in parts.items() for name, v in part.items()}
        return {"x": self.x, **flat}

    def restored(self, round: int, tensors: dict[str, Tensor]) -> "Standing":
        """Return a standing of the same form with these numbers."""

        def part(k: str) -> State:
            return {n: tensors[f"{k}.{n}"].to(self.x.device) for n in getattr(self, k)}

        parts = {k: part(k) for k in ("server", "direction", "step", "output")}
        return Standing(round=round, x=tensors["x"].to(self.x.device), **parts)


@dataclass(frozen=True)
class Answer:
    """What came back from a cohort: means, and measurements that are not traffic."""

    mean: Channels
    loss: float
    measured: dict[str, float]


class Crew(Protocol):
    """The clients, wherever they are."""

    def fraction(self, ids: Tensor) -> float:
        """Return these clients' share of the population's weight."""
        ...

    def ask(
        self, ids: Tensor, t: int, what: What, at: list[Vector], who: Who, ledger: Ledger
    ) -> list[Tensor]:
        """Return the mean of `what` at each point."""
        ...

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> Answer:
        """Let the cohort work and return the means of what it sent."""
        ...

    def commit(self) -> None:
        """Keep the cohort's new memory; without it, the round leaves no trace in the clients."""
        ...


def first_memory(method: Method, x: Vector, plan: Plan) -> State:
    """Return the memory that a client has before its first round."""
    own = {"direction": method.direction.init(x, plan)[0], "step": method.step.init(x, plan)[0]}
    return {f"{part}.{name}": v for part, state in own.items() for name, v in state.items()}


def begin(method: Method, x: Vector, plan: Plan) -> Standing:
    """Return the standing before round 0."""
    return Standing(
        round=0,
        x=x,
        server=method.server.init(x, plan),
        direction=method.direction.init(x, plan)[1],
        step=method.step.init(x, plan)[1],
        output=method.shipped.init(x),
    )


def play(
    method: Method, plan: Plan, now: Standing, crew: Crew, ids: Tensor
) -> tuple[Standing, dict[str, Any]]:
    """Play one round with the cohort `ids`; return the next standing and the history's row."""
    rates, t = method.rates, now.round
    this = Round(index=t, fraction=crew.fraction(ids), factor=rates.factor(t, plan.rounds))
    ledger = Ledger()

    def ask(what: What, at: list[Vector], who: Who = "cohort") -> list[Tensor]:
        return crew.ask(ids, t, what, at, who, ledger)

    x = now.x
    direction = method.direction.open(x, now.direction, this, ask)
    step = method.step.open(x, now.step, this, ask)
    down = {"x": x, **method.direction.down(direction), **method.step.down(step)}
    ledger.send_down(down, len(ids))
    answer = crew.train(ids, down, this, ledger)
    x, server, trace = method.server.step(x, answer.mean, now.server, this)
    after = Standing(
        round=t + 1,
        x=x,
        server=server,
        direction=method.direction.absorb(answer.mean, direction, this),
        step=method.step.absorb(answer.mean, step, this),
        output=method.shipped.update(x, now.output, this),
    )
    row = {
        "round": t,
        "train_loss": answer.loss,
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        **answer.measured,
        **{name: float(value) for name, value in trace.items()},
    }
    return after, row


@dataclass(frozen=True)
class Task:
    """What a chunk of m clients needs in order to answer; m = 1 is one real client."""

    losses: Losses
    fetch: Callable[[int], Batch]  # the clients' k-th batches
    steps: Tensor  # (m,)
    share: Tensor  # (m, K)
    full_grad: Callable[[Vector], Tensor]  # gradient at a point over all own data (m, d)


def answer(
    method: Method, task: Task, down: Channels, own: State, t: Round
) -> tuple[Channels, State, Work]:
    """Do the clients' half of a round: train, and return what they send and remember."""
    x = down["x"]
    direction, step = method.direction, method.step
    mine = {p: _under(own, p) for p in ("direction", "step")}
    records = frozenset((*direction.records, *step.records))
    work = loop.run(
        x,
        direction.local(x, down, mine["direction"]),
        step,
        down,
        task.losses,
        task.fetch,
        task.steps,
        task.share,
        loop.Schooling(t.factor, method.weight_decay, method.clip),
        records,
    )
    if "grad_full" in records:
        work = replace(work, grad_full=task.full_grad(x))
    sent: Channels = {"delta": work.delta}
    if "delta_sq" in method.server.needs:
        sent["delta_sq"] = row_sq(work.delta)
    kept: State = {}
    for name, part in (("direction", direction), ("step", step)):
        channels, memory = part.upload(work, x, down, mine[name])
        sent |= channels
        kept |= {f"{name}.{key}": value for key, value in memory.items()}
    return sent, kept, work


def _under(state: State, part: str) -> State:
    head = f"{part}."
    return {name[len(head) :]: v for name, v in state.items() if name.startswith(head)}


def pack(method: Method, sent: Channels, ledger: Ledger) -> Channels:
    """Send rows over the wire: vectors through the method's wire, scalars as they are."""
    out: Channels = {}
    for name, rows in sent.items():
        if rows.ndim > 1:
            out[name], size = method.wire.pack(rows)
        else:
            out[name], size = rows, rows.numel() * rows.element_size()
        ledger.send_up(name, size)
    return out
