"""The client's half of a round, for a chunk of m clients in a simulation or one real client."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ..clients import loop
from ..clients.rule import ClientPart, LocalResult, Upload
from ..core.errors import ArgumentError, refuse_overflow
from ..core.plan import Plan, Round
from ..core.random import key, purpose
from ..core.types import Channels, Rows, State, Vector, select_prefix
from ..core.vectors import row_sq
from ..methods import Method
from ..models.losses import Losses
from ..wire import Dense, Ledger, Sender, Wire


def init_client_memory(method: Method, x: Vector, plan: Plan) -> State:
    """Return a client's memory before its first round."""
    with refuse_overflow(method.name, x.dtype):
        own = {"direction": method.direction.init(x, plan)[0], "step": method.step.init(x, plan)[0]}
    own |= {f"wire.{name}": method.wire_of(name).init(x) for name in method.vectors}
    return {f"{part}.{name}": v for part, state in own.items() for name, v in state.items()}


@dataclass(frozen=True)
class ClientTask:
    """The losses and data of m clients.

    `local_batches` returns the batches of a local phase, with this number of local steps or the
    plan's; `full_loss` losses (m,) and, on request, gradients (m, d) over all data of a client.
    """

    losses: Losses
    local_batches: Callable[[int, int | None], loop.LocalBatches]
    full_loss: Callable[[Tensor, bool], tuple[Rows, Rows]]


def local_update(
    method: Method, task: ClientTask, down: Channels, own: State, t: Round
) -> tuple[Channels, State, list[LocalResult]]:
    """Train m clients, which received `down` and have the memory `own`, one row each.

    Returns:
        The channels to upload, the clients' memory, and the record of each local phase.
    """
    x, direction = down["x"], method.direction
    step, t = method.step.resolve(down, t)
    mine = {p: select_prefix(own, p) for p in ("direction", "step")}
    records = method.records
    count, steps = direction.local_phases(t)
    phases: list[LocalResult] = []
    if direction.needs_full_grad:
        down = down | {"own_grad": task.full_loss(x, True)[1]}
    for phase in range(count):
        this = replace(t, phase=phase)
        batches = task.local_batches(phase, steps if step.most is None else 1)
        if step.most is not None:
            batches = batches.repeated(step.most)
        work = loop.run_local_steps(
            x,
            direction.local_problem(x, down, mine["direction"], this),
            step,
            down,
            task.losses,
            batches,
            loop.GradientTransform(method.weight_decay, method.clip),
            records,
            this,
            method.descent_lr(t.factor, step),
        )
        phases.append(work)
        if phase < count - 1:
            mine["direction"] = direction.between_phases(work, mine["direction"], this)
    work = _add_full_measures(phases[-1], x, task, records)
    plain = "delta" in method.vectors and not t.preparing
    sent: Channels = {"delta": work.delta} if plain else {}
    kept: State = {}
    for name, part in _parts(method):
        channels, memory = part.upload(work, mine[name], replace(t, phase=count - 1))
        sent |= channels
        kept |= {f"{name}.{key}": value for key, value in memory.items()}
    unknown = set(sent) - set(method.channels(t.preparing))
    if unknown:
        raise ArgumentError(
            f"A part of {method.name} sends the channel {min(unknown)!r}, which neither its "
            "uploads (vectors) nor its reports (scalars) name; add it there."
        )
    return sent, kept, phases


def _parts(method: Method) -> tuple[tuple[str, ClientPart], ...]:
    return ("direction", method.direction), ("step", method.step)


def _add_full_measures(
    result: LocalResult, x: Vector, task: ClientTask, records: frozenset[str]
) -> LocalResult:
    """Fill in the fields that are measured over all of a client's data."""
    if "grad_full" in records:
        result = replace(result, grad_full=task.full_loss(x, True)[1])
    if "grad_end" in records:
        losses, grads = task.full_loss(result.y, True)
        return replace(result, loss_end=losses, grad_end=grads)
    if "loss_end" in records:
        return replace(result, loss_end=task.full_loss(result.y, False)[0])
    return result


def wire_for_round(method: Method, name: str, t: Round) -> Wire:
    """Return the wire of a channel in a round; before round 0 nothing is compressed."""
    return Dense() if t.preparing else method.wire_of(name)


def make_sender(name: str, ids: Tensor, t: Round) -> Sender:
    """Return the senders of a channel in a round, from which both ends derive its random bits."""
    return Sender(ids, t.index, key(t.plan.seed, "wire", t.index, ids, purpose(name)))


def pack_uploads(
    method: Method, sent: Channels, own: State, ids: Tensor, t: Round, ledger: Ledger
) -> tuple[Channels, State]:
    """Compress uploads: vectors through the method's wire, scalars as they are.

    `delta_sq` is the squared length of the delta that arrives.

    Returns:
        What arrives at the server, and the memory of the wires.
    """
    layout = t.plan.layout
    out: Channels = {}
    kept: State = {}
    if "delta_sq" in method.scalars and "delta" in sent:
        sent = sent | {"delta_sq": row_sq(sent["delta"])}
    for name, rows in sent.items():
        if rows.ndim > 1:
            memory = select_prefix(own, f"wire.{name}")
            wire, sender = wire_for_round(method, name, t), make_sender(name, ids, t)
            packed = wire.pack(rows, memory, sender, layout)
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
    """Return the clients' memory after the round, once the means are known."""
    out = {name: v for name, v in own.items() if name.startswith("wire.")}
    for name, part in _parts(method):
        mine = select_prefix(own, name)
        if part.updates_memory:
            up = Upload(sent, arrived, {n: mean[n] for n in part.echo})
            mine = part.update_memory(up, mine, t)
        out |= {f"{name}.{key}": value for key, value in mine.items()}
    return out
