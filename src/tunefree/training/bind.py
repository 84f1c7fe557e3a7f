"""Before round 0: check every argument of a run, and bind what depends on it."""

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import methods
from ..attacks import Attack
from ..core.errors import ArgumentError, DataError, check_between, check_int
from ..core.plan import Plan
from ..core.types import Pair, Vector, map_inputs, tensor_list
from ..data._arrays import all_finite
from ..data.batches import BatchPlan
from ..data.federation import Federation
from ..faults import Faults, PartialPlan
from ..methods import Method
from ..models import augment as augmentations
from ..models.engine import Engine
from ..models.problem import Loss, Precision, Problem, are_labels
from ..robust import Robust
from ..rounds import init_client_memory, init_server_state, run_round
from ..server.aggregate import Accounted, Aggregation, weighted_mean
from ..simulation.ranks import init_ranks
from ..simulation.rehearse import DryRun
from ..simulation.rough import FaultyClients
from ..simulation.simulate import EngineOptions, Simulation, mean_steps
from ..version import __version__
from . import evaluate
from .evaluate import Evaluation, Metric, Regularity
from .run import Run, check_frozen

COUNTS = ("rounds", "cohort", "steps", "epochs", "batch", "seed", "eval_every", "patience", "chunk")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `fit` that decide the result; `fit` documents them and has the defaults."""

    model: nn.Module
    federation: Federation
    method: str | Method
    rounds: int
    cohort: int | None
    steps: int | None
    epochs: int | None
    batch: int | None
    loss: str | Loss
    seed: int
    device: str | torch.device
    dtype: torch.dtype
    precision: Precision
    eval_every: int
    start: nn.Module | Run | None
    validation: float | None
    patience: int | None
    keep_best: bool
    metrics: Mapping[str, Metric] | None
    per_client: bool
    heterogeneity: bool
    augment: str | augmentations.CropFlip | None
    engine: Engine
    compile: bool | None
    chunk: int | None
    aggregate: Aggregation
    faults: Faults | None
    attack: Attack | None
    command: Mapping[str, Any] | None


@dataclass(frozen=True)
class Job:
    """A run that is bound and checked, and has not begun."""

    options: Options
    method: Method
    problem: Problem
    federation: Federation
    plan: Plan
    crew: Simulation
    test: Evaluation | None
    validation: Evaluation | None
    regularity: Regularity | None
    start: Vector
    settings: dict[str, Any]

    def measured(self, x: Vector) -> dict[str, float]:
        """Return all measurements of a model that were asked for, by name."""
        row: dict[str, float] = {}
        if self.test is not None:
            row |= self.test.measure(x)
        if self.regularity is not None:
            row |= self.regularity.measure(x)
        if self.options.heterogeneity:
            row |= self.crew.measure(x)
        if self.validation is not None:
            row |= self.validation.measure(x, "validation")
        return row

    def cost(self, rounds: int) -> dict[str, float]:
        """Return what so many rounds have cost, where their means are accounted for."""
        if not isinstance(self.options.aggregate, Accounted):
            return {}
        memory = bool(init_client_memory(self.method, self.start, self.plan))
        prepares = self.method.prepares
        return self.options.aggregate.cost(rounds, prepares=prepares, memory=memory)


def bind(options: Options) -> Job:
    """Check every argument and bind what depends on it; nothing is trained yet."""
    o = options
    method = methods.get(o.method) if isinstance(o.method, str) else o.method
    if not isinstance(method, Method):
        raise ArgumentError(f"fit(method=...) must be a name or a Method, got {o.method!r}.")
    _check(o)
    counts: Any = {n: int(v) for n in COUNTS if (v := getattr(o, n)) is not None}
    o = replace(o, **counts)  # NumPy's numbers become plain ones
    steps = 20 if o.steps is None and o.epochs is None else o.steps
    cut = BatchPlan(batch=o.batch, steps=steps, epochs=o.epochs)
    device, labelled = find_device(o.device), are_labels(o.federation.y)
    problem = Problem(o.model, _loss(o.loss, labelled), o.dtype, device, o.precision)
    fed, held_back = o.federation, None
    if o.validation is not None:
        fed, held_back = fed.hold_out(o.validation, o.seed)
    fed = _moved(fed, device, o.dtype)
    few = map_inputs(lambda t: t[:2], fed.x)
    problem.check(few, fed.y[:2], _highest(o.federation) if labelled else None)
    size = fed.clients if o.cohort is None else o.cohort
    K = mean_steps(fed, cut)
    plan = (PartialPlan if o.faults is not None and o.faults.loses else Plan)(
        fed.clients, size, o.rounds, K, problem.layout, o.seed, o.batch, fed.held is not None
    )
    if o.faults is not None:
        o.faults.check(method, plan)
    method.check(plan)
    if isinstance(o.aggregate, Robust):
        o.aggregate.check(plan.cohort)
    augment = augmentations.parse(o.augment) if isinstance(o.augment, str) else o.augment
    if not isinstance(augment, augmentations.CropFlip | None):
        raise ArgumentError(f"fit(augment=...) must be a name or a CropFlip, got {o.augment!r}.")
    local = EngineOptions(o.engine, o.compile, o.chunk, augment, o.aggregate)
    start = problem.start if o.start is None else _start(problem, o.start)
    given = (method, problem, fed, cut, plan, o.seed, local, start, init_ranks())
    rough = o.faults is not None or o.attack is not None
    crew = FaultyClients(*given, faults=o.faults, attack=o.attack) if rough else Simulation(*given)
    groups = evaluate.per_client(fed) if o.per_client else None
    test = validation = None
    if fed.test is not None:
        test = Evaluation(problem, fed.test, dict(o.metrics or {}), groups)
    if held_back is not None:
        validation = Evaluation(problem, _prepared(problem, held_back))
    regularity = None
    if method.penalty is not None:
        step = method.prox_step(plan)
        regularity = Regularity(method.penalty, step, plan.layout, crew.gradient)
    settings = _settings(o, method, fed, plan, cut, problem, start, crew)
    return Job(o, method, problem, fed, plan, crew, test, validation, regularity, start, settings)


def _settings(
    o: Options,
    method: Method,
    fed: Federation,
    plan: Plan,
    cut: BatchPlan,
    problem: Problem,
    start: Vector,
    crew: Simulation,
) -> dict[str, Any]:
    """Return what decides the run as plain data: kept beside the result, compared on resume."""
    same = ("rounds", "batch", "seed", "eval_every", "validation", "patience", "keep_best")
    augment = crew.feed.augment
    return {
        "tunefree": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": str(problem.device),
        "data": {
            "name": fed.name,
            "clients": fed.clients,
            "samples": fed.samples,
            "digest": o.federation.digest(),
            "picture": fed.picture(),
        },
        "model": {"name": type(o.model).__name__, "parameters": plan.layout.size},
        "frozen": problem.frozen(),
        "start": hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest()[:16],
        "method": method.describe(),
        **{name: getattr(o, name) for name in same},
        "cohort": plan.cohort,
        "steps": cut.steps,
        "epochs": cut.epochs,
        "loss": problem.loss_name,
        "dtype": str(o.dtype).removeprefix("torch."),
        "precision": problem.precision,
        "metrics": sorted(o.metrics or {}),
        "per_client": o.per_client,
        "heterogeneity": o.heterogeneity,
        "augment": None if augment is None else repr(augment),
        **crew.describe(),
        **({} if o.aggregate is weighted_mean else {"aggregate": repr(o.aggregate)}),
        **{n: repr(v) for n in ("faults", "attack") if (v := getattr(o, n)) is not None},
        "command": dict(o.command or {}),
    }


def _check(o: Options) -> None:
    if not isinstance(o.federation, Federation):
        raise ArgumentError(f"fit(federation=...) must be a tf.Federation, got {o.federation!r}.")
    for name in COUNTS:
        if getattr(o, name) is not None or name in ("rounds", "eval_every", "seed"):
            check_int("fit", name, getattr(o, name), 0 if name == "seed" else 1)
    if o.cohort is not None and o.cohort > o.federation.clients:
        raise ArgumentError(
            f"fit(cohort=...) must be at most the number of clients, {o.federation.clients}, "
            f"got {o.cohort}."
        )
    if o.seed >= 1 << 63:
        raise ArgumentError(f"fit(seed=...) must be below 2**63, got {o.seed!r}.")
    if o.steps is not None and o.epochs is not None:
        raise ArgumentError(
            f"fit takes steps or epochs, got steps={o.steps} and epochs={o.epochs}."
        )
    if o.validation is not None:
        check_between("fit", "validation", o.validation, 0, 1)
    elif o.patience is not None or o.keep_best:
        raise ArgumentError(
            "fit(patience=..., keep_best=...) choose by validation data; give validation=0.1 or so."
        )
    for name, kind in (("faults", Faults), ("attack", Attack)):
        if not isinstance(getattr(o, name), kind | None):
            given = f"a tf.faults.{kind.__name__}" if kind is Faults else "one of tf.attacks"
            raise ArgumentError(f"fit({name}=...) must be {given}, got {getattr(o, name)!r}.")
    metrics = o.metrics or {}
    if not isinstance(metrics, Mapping) or not all(callable(m) for m in metrics.values()):
        raise ArgumentError(f"fit(metrics=...) must map names to functions, got {metrics!r}.")
    if metrics and o.federation.test is None:
        raise ArgumentError("fit(metrics=...) needs a test set; give Federation(test=...).")
    taken = {"loss", "accuracy"} & set(metrics)
    if taken:
        raise ArgumentError(f"fit(metrics=...) cannot be called {taken.pop()!r}, which is ours.")
    if o.engine == "loop" and o.compile:
        raise ArgumentError(
            "fit(engine='loop', compile=True) cannot be: only the batched engine is compiled; "
            "leave one of them out."
        )


def find_device(device: str | torch.device) -> torch.device:
    """Return the device that a name stands for; "auto" takes a GPU if there is one.

    For a GPU, $CUBLAS_WORKSPACE_CONFIG is set unless it is: products then have the same bits again.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise ArgumentError(
            f"fit(device=...) must be 'auto' or a device of this machine, got {device!r}: {first}"
        ) from None
    if place.type == "cuda":  # read when products are first asked for
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return place


def _highest(fed: Federation) -> int:
    """Return the largest label in the training and test data."""
    return max(int(y.max()) for y in (fed.y, *([fed.test[1]] if fed.test is not None else [])))


def _loss(loss: str | Loss, labelled: bool) -> str | Loss:
    return ("cross_entropy" if labelled else "mse") if loss == "auto" else loss


def _moved(federation: Federation, device: torch.device, dtype: torch.dtype) -> Federation:
    fed = federation.to(device, dtype)
    for pair in ((fed.x, fed.y), fed.test, fed.held):
        if pair is not None:
            _check_finite(pair, dtype)
    return fed


def _check_finite(pair: Pair, dtype: torch.dtype) -> None:
    for part in (*tensor_list(pair[0]), pair[1]):
        if not all_finite(part):
            raise DataError(
                f"The data has numbers too large for {dtype}; scale it, or use "
                "fit(dtype=torch.float64)."
            )


def _prepared(problem: Problem, pair: Pair) -> Pair:
    inputs, target = problem.prepare(pair[0]), problem.prepare(pair[1])
    assert isinstance(target, torch.Tensor)
    _check_finite((inputs, target), problem.dtype)
    return inputs, target


def _start(problem: Problem, start: nn.Module | Run) -> Vector:
    if isinstance(start, Run):
        if start.output.numel() != problem.layout.size:
            raise ArgumentError(
                f"fit(start=...) must be a run of the same model, with {problem.layout.size} "
                f"trainable numbers, got {start.output.numel()}."
            )
        check_frozen("fit(model=..., start=...)", start.settings, problem)
        return start.output.to(problem.device, problem.dtype)
    if not isinstance(start, nn.Module):
        raise ArgumentError(f"fit(start=...) must be a module or a Run, got {start!r}.")
    return problem.vector_of(start)


def cost(job: Job) -> dict[str, Any]:
    """Return what a bound run would cost, without training: numbers, bytes, memory."""
    plan, fed = job.plan, job.federation
    crew = DryRun(job.method, plan, job.start, float(job.crew.feed.passes().double().mean()))
    ids, everyone = torch.arange(plan.cohort), torch.arange(plan.clients)
    now = init_server_state(job.method, job.start, plan)
    now, first = run_round(job.method, plan, now, crew, ids, everyone)
    begun = crew.gradients
    _, later = run_round(job.method, plan, now, crew, ids, everyone)
    gradients = begun + (plan.rounds - 1) * (crew.gradients - begun)
    total = {way: first[way] + (plan.rounds - 1) * later[way] for way in ("bytes_up", "bytes_down")}
    size = job.start.element_size()
    own = sum(v.numel() for v in crew.own.values())
    server = sum(v.numel() for v in now.tensors().values()) * size
    working = (
        job.crew.chunks.size * plan.layout.size * size * 6
    )  # y, gradient, bend and temporaries
    samples = sum(t.numel() * t.element_size() for t in (*tensor_list(fed.x), fed.y))
    return {
        "parameters": plan.layout.size,
        "clients": plan.clients,
        "cohort": plan.cohort,
        "rounds": plan.rounds,
        "steps": plan.steps,
        "gradients": round(gradients),
        "bytes_up": later["bytes_up"],
        "bytes_down": later["bytes_down"],
        "total_bytes_up": total["bytes_up"],
        "total_bytes_down": total["bytes_down"],
        "server_memory": server,
        "client_memory": own * size,
        "simulation_memory": server + working + samples + own * size * plan.clients,
    }
