"""One round in two halves: the server's (`run_round`) and a client's (`local_update`).

Order: open, down, (local steps, between) x turns, upload, wire, mean, echo, keep, server step,
absorb, output. Before round 0 comes, where a part prepares, one pass of everybody in which the
server does not step. The simulator calls both halves in one process; a real federation calls each
where it belongs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from .clients import loop
from .clients.rule import ClientPart, LocalResult
from .core.errors import ArgumentError
from .core.layout import Layout
from .core.plan import Plan, Query, Round, What, Who
from .core.random import key, purpose
from .core.types import Channels, Rows, State, Trace, Vector
from .core.vectors import row_sq
from .methods import Method
from .models.losses import Losses
from .wire import Dense, Ledger, Sender, Wire


@dataclass(frozen=True)
class ServerState:
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

    def restored(self, round: int, tensors: dict[str, Tensor]) -> "ServerState":
        """Return a standing of the same form with these numbers."""

        def taken(name: str, like: Tensor) -> Tensor:
            found = tensors[name]
            if found.shape != like.shape or found.dtype != like.dtype:
                raise ValueError(f"{name} is {found.dtype} of shape {tuple(found.shape)}")
            return found.to(self.x.device)

        def part(k: str) -> State:
            return {n: taken(f"{k}.{n}", v) for n, v in getattr(self, k).items()}

        parts = {k: part(k) for k in ("server", "direction", "step", "output")}
        return ServerState(round=round, x=taken("x", self.x), **parts)


@dataclass(frozen=True)
class RoundResult:
    """What came back from a cohort: means, and measurements that are not traffic."""

    mean: Channels
    loss: float
    measured: dict[str, float]
    fraction: float | None = None  # the share of those who answered, where some did not


class NoClientsError(Exception):
    """Nobody of a cohort answered: the round leaves everything as it was."""

    def __init__(self, measured: dict[str, float]) -> None:
        super().__init__("Nobody answered.")
        self.measured = measured


class ClientPool(Protocol):
    """The clients, wherever they are."""

    def fraction(self, ids: Tensor) -> float:
        """Return these clients' share of the population's weight."""
        ...

    def ask(
        self,
        ids: Tensor,
        t: int,
        what: What,
        at: list[Vector],
        who: Who,
        sent: Channels | None,
        ledger: Ledger,
    ) -> list[Tensor]:
        """Return the mean of `what` at each point."""
        ...

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Let the cohort work and return the means of what it sent."""
        ...

    def commit(self) -> None:
        """Keep the cohort's new memory; without it, the round leaves no trace in the clients."""
        ...


def init_client_memory(method: Method, x: Vector, plan: Plan) -> State:
    """Return the memory that a client has before its first round."""
    own = {"direction": method.direction.init(x, plan)[0], "step": method.step.init(x, plan)[0]}
    own |= {f"wire.{name}": method.wire_of(name).init(x) for name in method.vectors}
    return {f"{part}.{name}": v for part, state in own.items() for name, v in state.items()}


def init_server_state(method: Method, x: Vector, plan: Plan) -> ServerState:
    """Return the standing before round 0."""
    server = method.server.init(x, plan)
    return ServerState(
        round=0,
        x=x,
        server=server,
        direction=method.direction.init(x, plan)[1],
        step=method.step.init(x, plan)[1],
        output=method.shipped.init(method.server.output(x, server)),
    )


def output_model(method: Method, now: ServerState) -> Vector:
    """Return the model to evaluate and ship."""
    return method.shipped.value(method.server.output(now.x, now.server), now.output)


def run_round(
    method: Method, plan: Plan, now: ServerState, crew: ClientPool, ids: Tensor, everyone: Tensor
) -> tuple[ServerState, dict[str, Any]]:
    """Play one round with the cohort `ids`; return the next standing and the history's row."""
    t, ledger = now.round, Ledger()
    before: dict[str, float] = {}
    if t == 0 and method.prepares:
        now, before = _prepare(method, plan, now, crew, everyone, ledger)
    factor = method.rates.factor(t, plan.rounds)
    this = Round(plan, index=t, fraction=crew.fraction(ids), factor=factor)

    def ask(
        what: What, at: list[Vector], who: Who = "cohort", sent: Channels | None = None
    ) -> list[Tensor]:
        return crew.ask(ids, t, what, at, who, sent, ledger)

    try:
        after, local_update, trace = _talk(method, now, crew, ids, this, ask, ledger)
    except NoClientsError as nobody:
        after, trace = replace(now, round=t + 1), {}
        local_update = RoundResult({}, math.nan, nobody.measured)
    proxes = local_update.measured.get("proxes", 0.0) + float(trace.pop("proxes", 0.0))
    row = {
        "round": t,
        "train_loss": local_update.loss,
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        **{f"bytes_up.{name}": size for name, size in ledger.up.items()},
        **{f"bytes_down.{name}": size for name, size in ledger.down.items()},
        **_added(local_update.measured, before),
        **{name: float(value) for name, value in trace.items()},
    }
    if proxes:
        row["proxes"] = int(proxes)
    if not method.wire.lossless:
        row["counted_up"] = ledger.counted_up  # as papers count: values alone, in bytes
    return after, row


def _talk(
    method: Method,
    now: ServerState,
    crew: ClientPool,
    ids: Tensor,
    t: Round,
    ask: Query,
    ledger: Ledger,
) -> tuple[ServerState, RoundResult, Trace]:
    """Let server and cohort talk; return the next standing, what came back, the rule's numbers."""
    x = now.x
    server = method.server.start_round(x, now.server, t, ask)
    direction = method.direction.start_round(x, now.direction, t, ask)
    step = method.step.start_round(x, now.step, t, ask)
    down = _down(method, x, server, direction, step, t)
    ledger.send_down(down, len(ids))
    local_update = crew.train(ids, {"x": x, **down}, t, ledger)
    if local_update.fraction is not None:
        t = replace(t, fraction=local_update.fraction)
    x, server, trace = method.server.step(x, local_update.mean, server, t, ask)
    after = ServerState(
        round=t.index + 1,
        x=x,
        server=server,
        direction=method.direction.update_shared(local_update.mean, direction, t),
        step=method.step.update_shared(local_update.mean, step, t),
        output=method.shipped.update(method.server.output(x, server), now.output, t),
    )
    return after, local_update, trace


def _down(
    method: Method, x: Vector, server: State, direction: State, step: State, t: Round
) -> Channels:
    return {
        **method.server.down(x, server, t),
        **method.direction.down(direction),
        **method.step.down(step),
    }


def _prepare(
    method: Method, plan: Plan, now: ServerState, crew: ClientPool, everyone: Tensor, ledger: Ledger
) -> tuple[ServerState, dict[str, float]]:
    """Let everyone work once before round 0; what they learn and send is kept."""
    first = Round(plan, index=-1)
    down = _down(method, now.x, now.server, now.direction, now.step, first)
    ledger.send_down(down, len(everyone))
    local_update = crew.train(everyone, {"x": now.x, **down}, first, ledger)
    crew.commit()
    x, server = method.server.prepare(now.x, local_update.mean, now.server, first)
    return replace(now, x=x, server=server), local_update.measured


def _added(measured: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Count what preparing cost towards the first round."""
    counts = ("gradients", "proxes")
    return measured | {n: measured[n] + before[n] for n in counts if n in before}


@dataclass(frozen=True)
class ClientTask:
    """What a chunk of m clients needs in order to answer; m = 1 is one real client."""

    losses: Losses
    lesson: Callable[
        [int, int | None], loop.LocalBatches
    ]  # of a turn, with so many steps (None: K)
    full: Callable[[Tensor, bool], tuple[Rows, Rows]]  # losses (m,) and gradients over all data


def local_update(
    method: Method, task: ClientTask, down: Channels, own: State, t: Round
) -> tuple[Channels, State, list[LocalResult]]:
    """Do the clients' half of a round: train, and return what they send and remember."""
    x, direction, step = down["x"], method.direction, method.step
    mine = {p: select_prefix(own, p) for p in ("direction", "step")}
    records = method.records
    count, steps = direction.local_phases(t)
    works = []
    if direction.needs_full_grad:
        down = down | {"own_grad": task.full(x, True)[1]}
    for turn in range(count):
        this = replace(t, turn=turn)
        work = loop.run(
            x,
            direction.local_problem(x, down, mine["direction"], this),
            step,
            down,
            task.losses,
            _lesson(task, step.most, turn, steps),
            loop.GradientTransform(method.weight_decay, method.clip),
            records,
            this,
            method.descent_lr(t.factor),
        )
        works.append(work)
        if turn < count - 1:
            mine["direction"] = direction.between_phases(work, x, down, mine["direction"], this)
    work = _examined(works[-1], x, task, records)
    plain = "delta" in method.vectors and not t.preparing
    sent: Channels = {"delta": work.delta} if plain else {}
    kept: State = {}
    for name, part in _parts(method):
        channels, memory = part.upload(work, x, down, mine[name], replace(t, turn=count - 1))
        sent |= channels
        kept |= {f"{name}.{key}": value for key, value in memory.items()}
    unknown = set(sent) - set(method.channels(t.preparing))
    if unknown:
        raise ArgumentError(
            f"A part of {method.name} sends the channel {min(unknown)!r}, which neither its "
            "uploads (vectors) nor its reports (scalars) name; add it there."
        )
    return sent, kept, works


def _lesson(task: ClientTask, most: int | None, turn: int, steps: int | None) -> loop.LocalBatches:
    return task.lesson(turn, steps) if most is None else task.lesson(turn, 1).repeated(most)


def _parts(method: Method) -> tuple[tuple[str, ClientPart], ...]:
    return ("direction", method.direction), ("step", method.step)


def _examined(
    work: LocalResult, x: Vector, task: ClientTask, records: frozenset[str]
) -> LocalResult:
    """Fill in what is measured over all of a client's data."""
    if "grad_full" in records:
        work = replace(work, grad_full=task.full(x, True)[1])
    if "grad_end" in records:
        losses, grads = task.full(work.y, True)
        return replace(work, loss_end=losses, grad_end=grads)
    if "loss_end" in records:
        return replace(work, loss_end=task.full(work.y, False)[0])
    return work


def select_prefix(state: State, part: str) -> State:
    """Return the entries below a dotted name."""
    head = f"{part}."
    return {name[len(head) :]: v for name, v in state.items() if name.startswith(head)}


def wire_for_round(method: Method, name: str, t: Round) -> Wire:
    """Return the wire of a channel in a round; before round 0 nothing is compressed."""
    return Dense() if t.preparing else method.wire_of(name)


def make_sender(name: str, ids: Tensor, t: Round) -> Sender:
    """Return who sends a channel, and when, as both ends know it."""
    return Sender(ids, t.index, key(t.plan.seed, "wire", t.index, ids, purpose(name)))


def pack_uploads(
    method: Method, sent: Channels, own: State, ids: Tensor, t: Round, ledger: Ledger
) -> tuple[Channels, State]:
    """Send rows over the wire: vectors through the method's wire, scalars as they are.

    The squared length of a move is that of what arrives.
    """
    layout: Layout = t.plan.layout
    out: Channels = {}
    kept: State = {}
    if "delta_sq" in method.scalars and "delta" in sent:
        sent = sent | {"delta_sq": row_sq(sent["delta"])}
    for name, rows in sent.items():
        if rows.ndim > 1:
            memory = select_prefix(own, f"wire.{name}")
            packed = wire_for_round(method, name, t).pack(
                rows, memory, make_sender(name, ids, t), layout
            )
            out[name] = packed.rows
            kept |= {f"wire.{name}.{k}": v for k, v in (packed.own or memory).items()}
            ledger.send_up(name, packed.bytes, packed.counted / 8)
        else:
            out[name] = row_sq(out["delta"]) if name == "delta_sq" else rows
            ledger.send_up(name, rows.numel() * rows.element_size())
    return out, kept


def update_memory(
    method: Method, sent: Channels, arrived: Channels, mean: Channels, own: State, t: Round
) -> State:
    """Return the clients' memory after the round: what they keep once the means are known."""
    out = {name: v for name, v in own.items() if name.startswith("wire.")}
    for name, part in _parts(method):
        mine = select_prefix(own, name)
        if part.updates_memory:
            mine = part.update_memory(sent, arrived, {n: mean[n] for n in part.echo}, mine, t)
        out |= {f"{name}.{key}": value for key, value in mine.items()}
    return out
