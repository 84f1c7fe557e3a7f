"""The server's half of a round.

Order: start_round, down, (local steps, between_phases) per phase, upload, wire, mean, echo,
update_memory, server step, update_shared, output. If a part prepares, every client works once
before round 0 and the server does not step. Moments of standardised columns are asked for before
that.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import refuse_overflow
from ..core.plan import Plan, Round, What, Who
from ..core.random import cohort
from ..core.types import Channels, Metrics, State, Vector
from ..methods import Method
from ..wire import Ledger
from .pool import ClientPool, NoClientsError, QueryRequest, RoundResult

UNSAFE = 1e-9  # a variance below this share of mean^2 is lost to rounding: ask again, at the mean


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds, as plain data."""

    round: int  # rounds completed so far
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
        """Return a state of the same form with these tensors.

        Raises:
            ValueError: If a tensor has another dtype or shape than in this state.
        """

        def checked(name: str, like: Tensor) -> Tensor:
            found = tensors[name]
            if found.shape != like.shape or found.dtype != like.dtype:
                raise ValueError(f"{name} is {found.dtype} of shape {tuple(found.shape)}")
            return found.to(self.x.device)

        def part(k: str) -> State:
            return {n: checked(f"{k}.{n}", v) for n, v in getattr(self, k).items()}

        parts = {k: part(k) for k in ("server", "direction", "step", "output")}
        return ServerState(round=round, x=checked("x", self.x), **parts)


def init_server_state(method: Method, x: Vector, plan: Plan) -> ServerState:
    """Return the server's state before round 0.

    Raises:
        ArgumentError: If a number that a part computes from its settings is too large.
    """
    with refuse_overflow(method.name, x.dtype):
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
    """Return the model that is evaluated and shipped."""
    return method.shipped.value(method.server.output(now.x, now.server), now.output)


def run_round(
    method: Method,
    plan: Plan,
    now: ServerState,
    pool: ClientPool,
    ids: Tensor,
    ledger: Ledger | None = None,
) -> tuple[ServerState, dict[str, Any]]:
    """Run one round with the cohort `ids`; return the state after it and its row of the history.

    `ledger` has bytes that the round's row is to include.
    """
    t, ledger = now.round, Ledger() if ledger is None else ledger
    before: dict[str, float] = {}
    if t == 0 and method.prepares:
        now, before = _prepare(method, plan, now, pool, ledger)
    factor = method.rates.factor(t, plan.rounds)
    this = Round(plan, index=t, fraction=pool.weight_of(ids), factor=factor)
    try:
        after, result, trace = _communicate(method, now, pool, ids, this, ledger)
    except NoClientsError as error:
        after, trace = replace(now, round=t + 1), {}
        result = RoundResult({}, math.nan, error.measured)
    proxes = result.measured.get("proxes", 0.0) + float(trace.pop("proxes", 0.0))
    row = {
        "round": t,
        "train_loss": result.loss,
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        **{f"bytes_up.{name}": size for name, size in ledger.up.items()},
        **{f"bytes_down.{name}": size for name, size in ledger.down.items()},
        **result.measured,
        **{n: result.measured[n] + before[n] for n in ("gradients", "proxes") if n in before},
        **{name: float(value) for name, value in trace.items()},
    }
    if proxes:
        row["proxes"] = int(proxes)
    if not method.wire.lossless:
        row["counted_up"] = ledger.counted_up  # as papers count: values without indices, in bytes
    return after, row


def _communicate(
    method: Method, now: ServerState, pool: ClientPool, ids: Tensor, t: Round, ledger: Ledger
) -> tuple[ServerState, RoundResult, Metrics]:
    """Return the next state, the cohort's result and the server rule's trace."""
    clients = t.plan.clients

    def query(
        what: What, at: list[Vector], who: Who = "cohort", sent: Channels | None = None
    ) -> list[Tensor]:
        asked = ids
        if who == "panel":
            asked, who = cohort(t.plan.seed, -2, clients, min(3 * t.plan.cohort, clients)), "cohort"
        return pool.query(QueryRequest(asked, t.index, what, at, who, sent), ledger)

    now = replace(
        now,
        server=method.server.start_round(now.x, now.server, t, query),
        direction=method.direction.start_round(now.x, now.direction, t, query),
        step=method.step.start_round(now.x, now.step, t, query),
    )
    result = _train(method, now, pool, ids, t, ledger)
    if result.fraction is not None:
        t = replace(t, fraction=result.fraction)
    if not math.isfinite(result.loss):
        found = method.server.recover(now.x, now.server, t)
        if found is not None:
            after = replace(now, round=t.index + 1, x=found[0], server=found[1])
            return after, result, {"recovered": now.x.new_ones(())}
    x, server, trace = method.server.step(now.x, result.mean, now.server, t, query)
    after = ServerState(
        round=t.index + 1,
        x=x,
        server=server,
        direction=method.direction.update_shared(result.mean, now.direction, t),
        step=method.step.update_shared(result.mean, now.step, t),
        output=method.shipped.update(method.server.output(x, server), now.output, t),
    )
    return after, result, trace


def _train(
    method: Method, now: ServerState, pool: ClientPool, ids: Tensor, t: Round, ledger: Ledger
) -> RoundResult:
    """Send the state to clients and let them train."""
    down = method.server.down(now.x, now.server, t)
    down = {**down, **method.direction.down(now.direction), **method.step.down(now.step)}
    ledger.send_down(down, len(ids))
    return pool.train(ids, {"x": now.x, **down}, t, ledger)


def _prepare(
    method: Method, plan: Plan, now: ServerState, pool: ClientPool, ledger: Ledger
) -> tuple[ServerState, dict[str, float]]:
    """Let every client work once before round 0; keep their memory and pass on their uploads."""
    first = Round(plan, index=-1)
    result = _train(method, now, pool, torch.arange(plan.clients), first, ledger)
    pool.commit()
    x, server = method.server.prepare(now.x, result.mean, now.server, first)
    return replace(now, x=x, server=server), result.measured


def exchange_moments(
    pool: ClientPool, clients: int, like: Tensor, ledger: Ledger, once: bool = False
) -> Tensor:
    """Return the columns' means and scales (2, columns) over all clients' samples.

    Every client sends its number of samples and, for each column, the sums of x and of x^2, in
    float64. If a column's mean is very large compared with its deviation, they send the sums of
    x - mean and its square as well, unless they may be asked only `once`. A scale is the standard
    deviation; a constant column has 1. The result is as `like`; the ledger counts it, too.
    """
    everyone = torch.arange(clients)

    def query(shift: Tensor, sent: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        request = QueryRequest(everyone, -1, "moments", [shift], "all", sent)
        (found,) = pool.query(request, ledger)
        first, second = (found[1:] / found[0]).chunk(2)
        return shift + first, second - first.square()

    mean, variance = query(torch.zeros_like(like[0], dtype=torch.float64), {})
    if not once and bool((variance <= UNSAFE * mean.square()).any()):
        mean, variance = query(mean)
    deviation = variance.clamp(min=0).sqrt()
    rounding = 8 * torch.finfo(like.dtype).eps * mean.abs()
    varies = (deviation > rounding) & torch.isfinite(deviation)
    mean = torch.where(torch.isfinite(mean), mean, 0.0)
    result = torch.stack([mean, torch.where(varies, deviation, 1.0)]).to(like.dtype)
    ledger.send_down({"scale": result}, clients, all=True)
    return result
