"""Binding a run: everything is checked and built before round 0.

`bind` turns a configuration, a model and a source of clients into a `BoundRun`, which the trainer
runs. The source is a federation in this process (`client_data.SimulatedClients`) or the nodes of a
real one (`tunefree.flower`).
"""

import hashlib
import platform
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.device import find_device
from ..core.errors import (
    ArgumentError,
    Interrupted,
    cannot_use,
    check_cohort,
    check_numbers,
)
from ..core.plan import Plan
from ..core.ranks import Ranks, init_ranks
from ..core.types import Vector
from ..data.batches import batch_width, mean_steps
from ..faults import Faults, PartialPlan
from ..methods import Method
from ..models.problem import Problem
from ..models.scaling import identity_scaling
from ..privacy import Privacy
from ..robust import Robust
from ..rounds.client import init_client_memory
from ..rounds.pool import ClientPool
from ..rounds.server import exchange_moments
from ..simulation.dry_run import measure_costs
from ..version import __version__
from ..wire import Ledger
from .client_data import ClientData, ClientSource
from .config import RunConfig, get_parsed
from .decide import (
    adapt_to_table,
    count_layers,
    decide_method,
    decide_monitor,
    decide_scaling,
    decide_validation,
)
from .evaluate import measure_regularity
from .run import Run


@dataclass(frozen=True)
class BoundRun:
    """A run that is checked and ready to train.

    `start` are the first parameters; `settings` is what decides the run, as in `settings.json`.
    """

    config: RunConfig
    method: Method
    problem: Problem
    plan: Plan
    data: ClientData
    pool: ClientPool
    start: Vector
    settings: dict[str, Any]
    ranks: Ranks
    asks_moments: bool = False  # whether clients send moments of their columns before round 0

    def standardise(self, pool: ClientPool) -> Ledger:
        """Let clients send the moments of their columns, if asked for; return the bytes."""
        ledger, scaling, targets = Ledger(), self.problem.scaling, self.problem.target_scaling
        if self.asks_moments:
            assert scaling is not None
            once = isinstance(self.config.aggregate, Privacy)
            like = scaling if targets is None else torch.cat([scaling, targets], 1)
            found = exchange_moments(pool, self.plan.clients, like, ledger, once)
            scaling.copy_(found[:, : scaling.shape[1]])
            if targets is not None:
                mean, deviation = found[:, scaling.shape[1] :]
                targets[0] = mean
                targets[1] = deviation.square().mean().sqrt()  # one for all, so that f is the same
        return ledger

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return all measurements of a model that were asked for, by name."""
        test, validation = self.data.test, self.data.validation
        row = {} if test is None else test.measure(x)
        if (penalty := self.method.penalty) is not None:
            alpha, gradient = self.method.prox_step(self.plan), self.pool.gradient(x)
            row |= measure_regularity(penalty, alpha, self.plan.layout, gradient, x)
        if self.config.evaluate.heterogeneity:
            row |= self.pool.measure(x)
        if validation is not None:
            row |= validation.measure(x, "validation")
        return row

    @property
    def has_fresh_noise(self) -> bool:
        """Whether a round that is run again releases other numbers than the first time."""
        return isinstance(self.config.aggregate, Privacy) and self.config.aggregate.seed is None

    @property
    def first_releases(self) -> int:
        """How often all clients send before round 0."""
        return int(self.method.prepares) + int(self.asks_moments)

    def privacy_cost(self, rounds: int, replays: int = 0) -> dict[str, float]:
        """Return the privacy cost of `rounds` rounds and `replays` releases that were made again.

        It is empty without an accountant.
        """
        aggregate = self.config.aggregate
        if not isinstance(aggregate, Privacy):
            return {}
        memory = bool(init_client_memory(self.method, self.start, self.plan))
        before = self.first_releases
        return aggregate.cost(rounds, prepares=before, replays=replays, memory=memory)


def bind(config: RunConfig, model: nn.Module | Run, source: ClientSource) -> BoundRun:
    """Check every option and build what depends on it; nothing is trained yet.

    A `Run` as the model starts from the parameters that it ships, with its scales.

    Raises:
        ArgumentError: If an option is out of range or does not fit the others.
        DataError: If the data cannot be used.
        Interrupted: After Ctrl-C while compiling; its run has no round yet.
    """
    earlier = model if isinstance(model, Run) else None
    if isinstance(model, Run):
        model = model.known_problem("start another run").original
    method, ranks = decide_method(config, count_layers(model)), init_ranks()
    is_decided, config = config.evaluate.validation is None, decide_validation(config, source.sizes)
    if config.cohort is not None:
        check_cohort("fit", config.cohort, source.clients)
    device, precision = find_device(config.device), get_parsed(config.engine).precision
    problem = Problem(model, config.loss, config.dtype, device, precision)
    limits = torch.finfo(problem.dtype)
    check_numbers(method.name, method.describe(), (limits.tiny, limits.max))
    data = source.load(config, problem)
    plan = _make_plan(config, problem, data)
    if (faults := get_parsed(config.scenario.faults)) is not None:
        faults.check(method, plan)
        _check_sampling(config.aggregate, faults)
    method.check(plan)
    if isinstance(config.aggregate, Robust):
        config.aggregate.check(plan.cohort)
    start = problem.start
    if earlier is not None:
        start = earlier.output.to(problem.device, problem.dtype)
    is_scaled = decide_scaling(config, data, earlier)
    if is_scaled:
        _standardise(earlier, problem, data)
        if config.sets_itself:
            samples = data.effective_samples or int(data.sizes.sum())
            method = adapt_to_table(method, samples)
    config = decide_monitor(config, is_decided, problem.has_logits, is_scaled)
    validation = data.validation
    if validation is not None:
        validation = replace(
            validation,
            is_calibrated=problem.has_logits and config.evaluate.monitor == "calibrated_loss",
            has_error=config.evaluate.tolerance is not None,
        )
        data = replace(data, validation=validation)
    if config.evaluate.metrics and data.test is None and validation is None:
        use = "give Federation(test=...), or Evaluate(validation=0.1)"
        raise ArgumentError(f"Evaluate(metrics=...) needs a test or a validation set; {use}.")
    has_accuracy = validation is not None and validation.has_accuracy(start)
    settings = {
        "tunefree": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "data": data.description,
        "model": {"name": type(model).__name__, "parameters": plan.layout.size},
        "frozen": problem.frozen_digest(),
        "start": hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest()[:16],
        **config.record(),
        "device": str(problem.device),
        "method": method.describe(),
        "scale": "standard" if is_scaled else None,
        "cohort": plan.cohort,
        "steps": config.batch_plan.steps,
        "loss": problem.loss_name,
        "precision": problem.precision,
        **config.evaluate.resolve_monitor(has_accuracy, problem.has_logits),
    }
    try:
        pool = source.create_pool(config, method, problem, plan, start)
    except KeyboardInterrupt:  # while compiling
        empty = Run(start, start, [], settings, "interrupted", None, problem)
        raise Interrupted("Stopped by Ctrl-C before round 0.", empty) from None
    run = BoundRun(
        config=config,
        method=method,
        problem=problem,
        plan=plan,
        data=data,
        pool=pool,
        start=start,
        settings=settings | pool.describe(),
        ranks=ranks,
        asks_moments=is_scaled and earlier is None,
    )
    run.privacy_cost(1)  # refuses assumptions of the accountant that this run does not meet
    return run


def _check_sampling(aggregate: object, faults: Faults) -> None:
    """Refuse an accountant that needs uniform cohorts if not every client can be drawn."""
    if not isinstance(aggregate, Privacy) or aggregate.cohorts == "known":
        return
    if faults.available is not None or faults.stale:
        why = "cohorts are then drawn from some of the clients only; use cohorts='known'"
        raise cannot_use("Privacy(cohorts='secret')", "Faults(available, stale)", why)


def _make_plan(config: RunConfig, problem: Problem, data: ClientData) -> Plan:
    faults, clients = get_parsed(config.scenario.faults), len(data.sizes)
    kind = PartialPlan if faults is not None and faults.loses else Plan
    return kind(
        clients=clients,
        cohort=clients if config.cohort is None else config.cohort,
        rounds=config.rounds,
        steps=mean_steps(data.sizes, config.batch_plan),
        layout=problem.layout,
        seed=config.seed,
        batch=config.batch,
        held=data.has_held,
    )


def _standardise(earlier: Run | None, problem: Problem, data: ClientData) -> None:
    """Standardise inputs and numeric targets, by the scales of an earlier run if there is one."""
    x = problem.start
    if earlier is not None:
        assert earlier.scaling is not None
        problem.scaling = earlier.scaling.to(x, copy=True)  # resuming a run writes into it
        if (found := earlier.target_scaling) is not None:
            problem.target_scaling = found.to(x, copy=True)
        return
    problem.scaling = identity_scaling(data.columns, x)
    if data.targets and problem.takes_target_scaling(data.columns, data.targets):
        problem.target_scaling = identity_scaling(data.targets, x)


def estimate_cost(run: BoundRun) -> dict[str, Any]:
    """Return what a bound run would cost without training it: parameters, bytes, memory."""
    plan, sizes = run.plan, run.data.sizes
    passes = -(-sizes // batch_width(sizes, run.config.batch_plan))  # batches in a pass over n_i
    batches = float(passes.double().mean())
    costs = measure_costs(run.method, plan, run.start, batches, run.standardise)
    first, later, more = costs.first, costs.later, plan.rounds - 1
    total = {way: first[way] + more * later[way] for way in ("bytes_up", "bytes_down")}
    size = run.start.element_size()
    client, server = costs.client_numbers * size, costs.server_numbers * size
    chunk = int(run.settings.get("chunk", plan.cohort))
    working = chunk * plan.layout.size * size * 6  # y, gradient, direction and temporaries
    return {
        "parameters": plan.layout.size,
        "clients": plan.clients,
        "cohort": plan.cohort,
        "rounds": plan.rounds,
        "steps": plan.steps,
        "gradients": round(costs.first_gradients + more * costs.later_gradients),
        "bytes_up": later["bytes_up"],
        "bytes_down": later["bytes_down"],
        "total_bytes_up": total["bytes_up"],
        "total_bytes_down": total["bytes_down"],
        "server_memory": server,
        "client_memory": client,
        "simulation_memory": server + working + run.data.nbytes + client * plan.clients,
    }
