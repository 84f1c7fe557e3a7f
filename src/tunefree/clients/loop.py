"""The local loop: K steps of every client of a chunk, for every method.

    for k = 0 .. K_i - 1:
        g = clip(grad F(z; batch k)) + weight_decay z       z = y, or grad_at(y, k)
        d = correct(g, z)              the direction's local problem
        y = step(y, d, phi)            phi = F + (weight_decay / 2) |y|^2, as the direction has it
        y = project(y, k)              if the direction has such a map

The minibatch gradient alone is clipped; the code of FedExP clips it after a proximal pull or a
control variate was added. A client with fewer steps than others, or whose step says that it is
done, stops earlier; its row no longer changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector, select_prefix
from ..core.vectors import row_sq
from ..models.losses import (
    Batch,
    DeferredBatch,
    Evaluate,
    FusedDescent,
    LocalUpdate,
    Losses,
)
from .rule import (
    LineSearch,
    LocalObjective,
    LocalProblem,
    LocalResult,
    Step,
    StepContext,
    StepMap,
    descend,
)

Named: TypeAlias = Mapping[str, Tensor]
PhaseEnd: TypeAlias = tuple[Rows, Rows, Named, State]
"""Last iterates, steps taken, sums over the steps, and the step's scratch memory."""


@dataclass(frozen=True)
class GradientTransform:
    """What every local step does to its minibatch gradient, for any method.

    Args:
        weight_decay: Strength of (weight_decay / 2) |y|^2 in the client's loss, >= 0.
        clip: Longest minibatch gradient that is let through, or None.
    """

    weight_decay: float = 0.0
    clip: float | None = None

    def gradient(
        self, losses: Losses, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the batch losses (m,) and the transformed gradients (m, d).

        With `reuse_buffer`, the gradients may be overwritten by the next call.
        """
        loss, g = losses.value_and_grad(y, batch, reuse_buffer)
        return loss, self.transform(g, y)

    def transform(self, g: Rows, y: Rows) -> Rows:
        """Return the transformed gradients (m, d) at y."""
        if self.clip is not None:
            g = g * (self.clip / row_sq(g).sqrt().clamp(min=self.clip))[:, None]
        return g + self.weight_decay * y if self.weight_decay else g


@dataclass(frozen=True)
class LocalBatches:
    """The batches of one local phase.

    Args:
        fetch: Returns the clients' k-th batches.
        steps: Local steps of each client (m,).
        share: Batch size over client samples (m, K).
        span: Fewest and most steps of any client, known without a device synchronisation.
    """

    fetch: Callable[[int], Batch | DeferredBatch]
    steps: Tensor
    share: Tensor
    span: tuple[int, int]

    def repeated(self, times: int) -> "LocalBatches":
        """Return the first batch `times` times, for solvers on the whole local batch."""
        steps, share = torch.full_like(self.steps, times), self.share[:, :1].expand(-1, times)
        return LocalBatches(lambda k: self.fetch(0), steps, share, (times, times))


def run_local_steps(
    x: Vector,
    problem: LocalProblem,
    step: Step,
    down: Channels,
    losses: Losses,
    batches: LocalBatches,
    transform: GradientTransform,
    records: frozenset[str],
    t: Round,
    descent_lr: float | None = None,
) -> LocalResult:
    """Train m clients and return the record of their work.

    Args:
        x: First iterate of every client (d,), unless the local problem has its own.
        problem: The direction's local problem.
        step: How a step is taken.
        down: What the server sent.
        losses: Values and gradients of m rows.
        batches: The clients' batches.
        transform: Weight decay and clipping.
        records: Optional fields of `LocalResult` to fill.
        t: The round.
        descent_lr: lr, if every step is y - lr grad F(y) and nothing else; the engine may then take
            whole steps itself.
    """
    start = x if problem.start is None else problem.start
    start = start.expand(batches.steps.shape[0], -1)
    scratch = step.begin(start, down)
    if descent_lr is not None:
        descent = losses.descent(len(batches.steps))
        if descent is not None:
            ended = _run_descent(start, descent, batches, descent_lr, scratch)
            return _result(x, down, start, *ended)
    maps = {name: f for name, f in problem.maps.items() if isinstance(f, StepMap)}
    is_whole = len(maps) == len(problem.maps) and not t.preparing
    if isinstance(step, LineSearch):
        is_whole = is_whole and problem.ref is None and not maps
    if step.is_fusible and is_whole:
        functions = tuple((name, f.function) for name, f in maps.items())
        scales = problem.scale, problem.ref_scale
        update = FusedStep(step, transform, records, *scales, functions, t.plan)
        fused = _run_fused(start, update, problem, scratch, down, losses, batches, t.factor)
        if fused is not None:
            return _result(x, down, start, *fused)
    steps, counts = batches.steps, batches.steps.to(x.dtype)
    ref = None if problem.ref is None else problem.ref.expand_as(start)
    y = start
    sums: dict[str, Rows] = {}  # of vectors
    each: dict[str, list[Rows]] = {}  # of numbers, added up at the end
    shortest, longest = batches.span
    reuse_buffer = step.consumes_grad and ref is None and "grad_mean" not in records
    for k in range(longest):
        batch = batches.fetch(k)
        point = y if problem.grad_at is None else problem.grad_at(y, k)
        loss, g = transform.gradient(losses, point, batch, reuse_buffer)
        at_ref = None if ref is None else transform.gradient(losses, ref, batch)[1]
        objective = _evaluated_objective(y, loss, batch, losses, problem, transform, at_ref)
        context = StepContext(k, t, t.factor, batches.share[:, k], counts, objective, down)
        new, lr, after = step.take(y, problem.correct(g, point, at_ref), context, scratch)
        if problem.project is not None:
            new = problem.project(new, k)
        parts = {"loss": loss, "lr": lr, **_recorded(records, g, point)}
        del g, objective, context  # so that their memory serves the next step
        if k < shortest and "done" not in scratch:
            y, scratch = new, after
        else:
            active = k < steps  # (m,)
            if "done" in scratch:
                active = active & ~scratch["done"]
                if not bool(active.any()):
                    break
            parts["taken"] = active.to(x.dtype)
            y = y if new is y else _pick(active, new, y)
            scratch = {name: _pick(active, v, scratch[name]) for name, v in after.items()}
            parts = {name: _pick(active, v, torch.zeros_like(v)) for name, v in parts.items()}
        for name, v in parts.items():
            if v.ndim > 1:
                sums[name] = sums[name] + v if name in sums else v
            else:
                each.setdefault(name, []).append(v)
        del new, parts
    numbers = {name: torch.stack(found).sum(0) for name, found in each.items()}
    taken = _taken(numbers, len(each["lr"]), len(each.get("taken", [])))
    return _result(x, down, start, y, taken, numbers | sums, scratch)


def _result(
    x: Vector,
    down: Channels,
    start: Rows,
    y: Rows,
    taken: Rows,
    sums: Mapping[str, Rows],
    scratch: State,
) -> LocalResult:
    """Return the record of a local phase from the sums over its steps."""
    means = {n: sums[n] / taken[:, None] for n in ("grad_mean", "point_mean") if n in sums}
    return LocalResult(
        x=x,
        down=down,
        y=y,
        delta=y - start,
        steps=taken,
        loss=sums["loss"] / taken,
        lr=sums["lr"] / taken,
        trials=scratch.get("trials", torch.zeros_like(taken)),
        scratch=scratch,
        grad_sq=sums.get("grad_sq"),
        **means,
    )


@dataclass(frozen=True)
class FusedStep:
    """A local step as a pure function of tensors, for engines that compile it as a whole.

    Its state is y, the index of the step, each client's number of steps and share of its samples,
    the step's scratch memory ("scratch.NAME") and the sums of what is recorded ("sum.NAME"). Its
    constants are the tensors of the local problem ("problem.NAME"), the numbers of its maps
    ("NAME.INDEX"), what the server sent ("down.NAME") and the schedule's factor. Everything else is
    equal in all rounds of a run.
    """

    step: Step
    transform: GradientTransform
    records: frozenset[str]
    scale: float
    ref_scale: float
    maps: tuple[tuple[str, Callable[..., Rows]], ...]  # names and functions
    plan: Plan

    def __call__(self, evaluate: Evaluate, state: Named, constants: Named) -> dict[str, Tensor]:
        """Return the state after one step."""
        problem, y = self.problem(constants), state["y"]
        point = self.map("grad_at", y, state, constants)
        loss, g = self.gradient(evaluate, point)
        at_ref = None if problem.ref is None else self.gradient(evaluate, problem.ref)[1]

        def slope(z: Rows) -> Rows:
            return problem.correct(self.gradient(evaluate, z)[1], z, at_ref)

        d, scratch = problem.correct(g, point, at_ref), select_prefix(state, "scratch")
        objective = self.objective(loss, y, problem, at_ref, slope=slope)
        context = self.context(state, constants, objective)
        new, lr, after = self.step.take(y, d, context, scratch)
        new = self.map("project", new, state, constants)
        parts = {"loss": loss, "lr": lr, "taken": torch.ones_like(lr)}
        parts |= _recorded(self.records, g, point)
        changed = {"y": new} | {f"scratch.{n}": v for n, v in after.items()}
        return _next(state, changed, parts) | {"index": state["index"] + 1}

    def problem(self, constants: Named) -> LocalProblem:
        """Return the local problem."""
        fields: dict[str, Any] = select_prefix(constants, "problem")
        return LocalProblem(scale=self.scale, ref_scale=self.ref_scale, **fields)

    def map(self, name: str, y: Rows, state: Named, constants: Named) -> Rows:
        """Return rows after a map of the local problem, if it has that one."""
        function, numbers = dict(self.maps).get(name), select_prefix(constants, name)
        return function(y, state["index"], self.plan, *numbers.values()) if function else y

    def gradient(self, evaluate: Evaluate, point: Rows) -> tuple[Rows, Rows]:
        """Return the batch losses and the transformed gradients."""
        loss, g = evaluate(point)
        return loss, self.transform.transform(g, point)

    def context(self, state: Named, constants: Named, objective: LocalObjective) -> StepContext:
        """Return the context of the step."""
        now, down = (state["index"], Round(self.plan, 0)), select_prefix(constants, "down")
        numbers = constants["factor"], state["share"], state["steps"]
        return StepContext(*now, *numbers, objective, down)

    def objective(
        self,
        loss: Rows,
        y: Rows,
        problem: LocalProblem,
        at_ref: Rows | None,
        evaluate: Evaluate | None = None,
        slope: Callable[[Rows], Rows] | None = None,
    ) -> LocalObjective:
        """Return the objective; without `evaluate` its value is known at y only."""

        def value(z: Rows) -> Rows:
            if evaluate is None:
                raise NotImplementedError("A fused step has the loss at its own iterate only.")
            return evaluate(z)[0]

        return _objective(y, loss, value, problem, self.transform, at_ref, slope)


@dataclass(frozen=True)
class SearchPart(FusedStep):
    """A part of a step with a line search: the gradient and the first trial, a trial, or the move.

    The state has the direction "d" and the search ("search.NAME") too.
    """

    part: Literal["gradient", "trial", "move"]

    def __call__(self, evaluate: Evaluate, state: Named, constants: Named) -> dict[str, Tensor]:
        """Return what the part changes."""
        step, problem, y = self.step, self.problem(constants), state["y"]
        assert isinstance(step, LineSearch)
        search, d, parts = select_prefix(state, "search"), state["d"], {}
        changed: dict[str, Tensor] = {}
        if self.part == "gradient":
            loss, g = self.gradient(evaluate, y)
            changed["d"] = d = problem.correct(g, y)
            objective = self.objective(loss, y, problem, None)
            context = self.context(state, constants, objective)
            scratch = select_prefix(state, "scratch")
            search = step.start_search(row_sq(d), objective.here(), context, scratch)
            search["open"] = search["open"] & (state["index"] < state["steps"])
            parts = {"loss": loss} | _recorded(self.records, g, y)
        if self.part == "move":
            lr, moving = search["lr"], search["moving"]
            changed = {f"scratch.{n}": v for n, v in step.finish(search).items()}
            changed["y"] = torch.where(moving[:, None], descend(y, d, lr), y)
            parts = {"lr": lr * moving, "taken": torch.ones_like(lr)}
            return _next(state, changed, parts) | {"index": state["index"] + 1}
        if step.most_trials:
            objective = self.objective(search["here"], y, problem, None, evaluate)
            search = step.judge(objective.at(descend(y, d, search["lr"])), search)
        changed |= {f"search.{n}": v for n, v in search.items()}
        return changed | _next(state, {}, parts)


def _next(state: Named, changed: Named, parts: Named) -> dict[str, Tensor]:
    """Return the changed entries and the sums, for the clients that have a step left."""
    active = state["index"] < state["steps"]  # (m,)
    changed = {**changed} | {f"sum.{n}": state[f"sum.{n}"] + v for n, v in parts.items()}
    return {n: _pick(active, v, state[n]) for n, v in changed.items() if v is not state[n]}


def _run_fused(
    start: Rows,
    update: FusedStep,
    problem: LocalProblem,
    scratch: State,
    down: Channels,
    losses: Losses,
    batches: LocalBatches,
    factor: float,
) -> PhaseEnd | None:
    """Run steps that the engine has compiled as a whole; None if it has not."""
    if any(v.ndim == 0 for v in scratch.values()):
        return None
    steps = batches.steps.to(start.dtype)

    def scalar(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=start.device)

    share = batches.share[:, 0].to(start.dtype)
    state = {"y": start, "index": scalar(0), "steps": steps, "share": share}
    state |= {f"scratch.{name}": v for name, v in scratch.items()}
    rows = {"grad_mean", "point_mean"} & update.records
    names = ("loss", "lr", "taken", *({"grad_sq"} & update.records), *sorted(rows))
    nothing = torch.zeros_like(steps)
    sums = {n: nothing[:, None].expand_as(start) if n in rows else nothing for n in names}
    state |= {f"sum.{name}": v for name, v in sums.items()}
    fields = {n: getattr(problem, n) for n in ("shift", "anchor", "mu")}
    if problem.ref is not None:
        fields["ref"] = problem.ref.expand_as(start)
    constants = {f"problem.{n}": v for n, v in fields.items() if isinstance(v, Tensor)}
    if problem.anchor is not None and not isinstance(problem.mu, Tensor):
        constants["problem.mu"] = scalar(problem.mu)
    constants |= {f"down.{n}": v for n, v in down.items() if n != "x" and v.ndim < 2}
    constants["factor"] = scalar(factor)
    for name, f in problem.maps.items():
        assert isinstance(f, StepMap)
        constants |= {f"{name}.{j}": scalar(v) for j, v in enumerate(f.numbers)}
    updates: tuple[LocalUpdate, ...] = (update,)
    step = update.step
    if isinstance(step, LineSearch):
        shared = {f.name: getattr(update, f.name) for f in fields_of(update)}
        updates = tuple(SearchPart(**shared, part=p) for p in ("gradient", "trial", "move"))
        objective = update.objective(nothing, start, problem, None)
        context = update.context(state, constants, objective)
        search = step.start_search(nothing, nothing, context, scratch)
        state |= {"d": nothing[:, None].expand_as(start)}
        state |= {f"search.{name}": v for name, v in search.items()}
    fused = losses.fuse(updates, state, constants, batches.fetch(0))
    if fused is None:
        return None
    fused.begin(state, constants)
    for k in range(batches.span[1]):
        batch = batches.fetch(k)
        if isinstance(step, LineSearch):
            fused.numbers("share").copy_(batches.share[:, k])
        fused.step(batch)
        if isinstance(step, LineSearch):
            for _ in range(step.most_trials - 1):
                if not bool(fused.numbers("search.open").any()):
                    break
                fused.step(batch, 1)
            fused.step(batch, 2)
    end = fused.end()
    sums = select_prefix(end, "sum")
    return end["y"], sums["taken"], sums, select_prefix(end, "scratch")


def _run_descent(
    start: Rows, descent: FusedDescent, batches: LocalBatches, lr: float, scratch: State
) -> PhaseEnd:
    """Run steps of plain gradient descent, each of them whole inside the engine."""
    steps = batches.steps
    rates = start.new_full(steps.shape, lr)
    shortest, longest = batches.span
    each: dict[str, list[Rows]] = {"lr": [], "taken": []}
    descent.begin(start)
    for k in range(longest):
        used = rates
        if k >= shortest:
            active = k < steps  # (m,)
            used = torch.where(active, rates, 0.0)
            each["taken"].append(active.to(start.dtype))
        descent.step(batches.fetch(k), used)
        each["lr"].append(used)
    y, loss = descent.end()
    numbers = {name: torch.stack(found).sum(0) for name, found in each.items() if found}
    numbers["loss"] = loss
    return y, _taken(numbers, longest, len(each["taken"])), numbers, scratch


def _recorded(records: frozenset[str], g: Rows, point: Rows) -> dict[str, Rows]:
    """Return what a step adds to the record besides its loss and step size."""
    found = {"grad_mean": g, "point_mean": point} if records else {}
    found = {name: v for name, v in found.items() if name in records}
    return found | ({"grad_sq": row_sq(g)} if "grad_sq" in records else {})


def _taken(numbers: dict[str, Rows], all: int, masked: int) -> Rows:
    """Return the steps of each client: those that everyone took, and its share of the others."""
    full = torch.full_like(numbers["loss"], all - masked)
    return full + numbers["taken"] if masked else full


def _pick(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _evaluated_objective(
    y: Rows,
    loss: Rows,
    batch: Batch | DeferredBatch,
    losses: Losses,
    problem: LocalProblem,
    transform: GradientTransform,
    at_ref: Rows | None,
) -> LocalObjective:
    """Return the objective of a step; losses and gradients elsewhere are computed on request."""

    def value(z: Rows) -> Rows:
        return losses.value(z, batch)

    def slope(z: Rows) -> Rows:
        return problem.correct(transform.gradient(losses, z, batch)[1], z, at_ref)

    return _objective(y, loss, value, problem, transform, at_ref, slope)


def _objective(
    y: Rows,
    loss: Rows,
    batch_loss: Callable[[Rows], Rows],
    problem: LocalProblem,
    transform: GradientTransform,
    at_ref: Rows | None,
    slope: Callable[[Rows], Rows] | None = None,
) -> LocalObjective:
    scale, weight_decay = problem.scale, transform.weight_decay

    def extra(z: Rows) -> Rows | float:
        out = problem.value(z)
        if weight_decay:
            out = out + (scale * weight_decay / 2) * row_sq(z)
        if at_ref is not None:
            out = out - problem.ref_scale * (at_ref * z).sum(-1)
        return out

    def value(z: Rows) -> Rows:
        return _times(scale, batch_loss(z))

    return LocalObjective(_times(scale, loss), extra, value, y, slope)


def _times(scale: float, value: Rows) -> Rows:
    return value if scale == 1 else scale * value
