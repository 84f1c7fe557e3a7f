"""Binding a run: everything is checked and built before round 0.

`bind` turns a configuration, a model and a source of clients into a `BoundRun`, which the trainer
runs. The source is a federation in this process (`SimulatedClients`) or the nodes of a real one
(`tunefree.flower`).
"""

import hashlib
import platform
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.device import find_device
from ..core.errors import ArgumentError, DataError, cannot_use, check_argument, check_numbers
from ..core.plan import Plan
from ..core.types import Pair, Vector, list_tensors, map_inputs
from ..data._arrays import all_finite
from ..data.batches import batch_width, plan_steps
from ..data.federation import Federation
from ..faults import Faults, PartialPlan
from ..methods import Method
from ..models.problem import Problem, are_labels
from ..privacy import Privacy
from ..robust import Robust
from ..rounds import ClientPool, init_client_memory, init_server_state, run_round
from ..simulation import DryRun, FaultyClients, Simulation, SimulationConfig
from ..simulation.ranks import Ranks, init_ranks
from ..version import __version__
from .config import RunConfig
from .evaluate import Evaluation, measure_regularity, per_client
from .run import Run, check_frozen


@dataclass(frozen=True)
class ClientData:
    """What a run knows of its clients' data before round 0; test and validation sets on the device.

    `client_weights` are the weights of each test row for each client, as `per_client` returns them.
    """

    sizes: Tensor  # samples of each client (N,)
    description: dict[str, Any]  # for `settings.json`: name, clients, samples, ...
    nbytes: int = 0  # memory of the training data in this process
    has_held: bool = False  # whether the server holds a sample of its own
    test: Pair | None = None
    validation: Pair | None = None
    client_weights: Tensor | None = None


class ClientSource(Protocol):
    """Where the clients of a run come from."""

    @property
    def clients(self) -> int:
        """Number of clients N."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether the targets are class labels."""
        ...

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Check the data against the model and move it to the device."""
        ...

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        """Return the clients; called after `load`."""
        ...


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
    test: Evaluation | None
    validation: Evaluation | None
    settings: dict[str, Any]
    ranks: Ranks

    def evaluate(self, x: Vector) -> dict[str, float]:
        """Return all measurements of a model that were asked for, by name."""
        row = {} if self.test is None else self.test.measure(x)
        if (penalty := self.method.penalty) is not None:
            alpha, gradient = self.method.prox_step(self.plan), self.pool.gradient(x)
            row |= measure_regularity(penalty, alpha, self.plan.layout, gradient, x)
        if self.config.evaluate.heterogeneity:
            row |= self.pool.measure(x)
        if self.validation is not None:
            row |= self.validation.measure(x, "validation")
        return row

    @property
    def has_fresh_noise(self) -> bool:
        """Whether a round that is run again releases other numbers than the first time."""
        return isinstance(self.config.aggregate, Privacy) and self.config.aggregate.seed is None

    def privacy_cost(self, rounds: int) -> dict[str, float]:
        """Return the privacy cost of `rounds` releases; empty without an accountant."""
        aggregate = self.config.aggregate
        if not isinstance(aggregate, Privacy):
            return {}
        memory = bool(init_client_memory(self.method, self.start, self.plan))
        return aggregate.cost(rounds, prepares=self.method.prepares, memory=memory)


def bind(config: RunConfig, model: nn.Module, source: ClientSource) -> BoundRun:
    """Check every option and build what depends on it; nothing is trained yet.

    Raises:
        ArgumentError: If an option is out of range or does not fit the others.
        DataError: If the data cannot be used.
    """
    method, ranks = config.resolve_method(), init_ranks()
    if config.cohort is not None:
        most = f"at most the number of clients, {source.clients}"
        check_argument("fit", "cohort", config.cohort, most, config.cohort <= source.clients)
    loss = config.loss
    if loss == "auto":
        loss = "cross_entropy" if source.has_labels else "mse"
    device, precision = find_device(config.device), config.engine_options.precision
    problem = Problem(model, loss, config.dtype, device, precision)
    limits = torch.finfo(problem.dtype)
    check_numbers(method.name, method.describe(), (limits.tiny, limits.max))
    data = source.load(config, problem)
    plan = _make_plan(config, problem, data)
    if (faults := config.scenario.parsed_faults) is not None:
        faults.check(method, plan)
        _check_sampling(config.aggregate, faults)
    method.check(plan)
    if isinstance(config.aggregate, Robust):
        config.aggregate.check(plan.cohort)
    start = problem.start if config.start is None else _read_start(problem, config.start)
    pool = source.create_pool(config, method, problem, plan, start)
    test, metrics = None, dict(config.evaluate.metrics or {})
    if data.test is not None:
        test = Evaluation(problem, data.test, metrics, data.client_weights)
    elif metrics:
        raise ArgumentError("Evaluate(metrics=...) needs a test set; give Federation(test=...).")
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
        "cohort": plan.cohort,
        "steps": config.batch_plan.steps,
        "loss": problem.loss_name,
        "precision": problem.precision,
        **pool.describe(),
    }
    run = BoundRun(
        config=config,
        method=method,
        problem=problem,
        plan=plan,
        data=data,
        pool=pool,
        start=start,
        test=test,
        validation=None if data.validation is None else Evaluation(problem, data.validation),
        settings=settings,
        ranks=ranks,
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
    faults, clients = config.scenario.parsed_faults, len(data.sizes)
    kind = PartialPlan if faults is not None and faults.loses else Plan
    return kind(
        clients=clients,
        cohort=clients if config.cohort is None else config.cohort,
        rounds=config.rounds,
        steps=float(plan_steps(data.sizes, config.batch_plan).to(torch.float64).mean()),
        layout=problem.layout,
        seed=config.seed,
        batch=config.batch,
        held=data.has_held,
    )


def _read_start(problem: Problem, start: nn.Module | Run) -> Vector:
    if isinstance(start, Run):
        found, size = start.output.numel(), problem.layout.size
        rule = f"a run of the same model, with {size} trainable parameters"
        check_argument("fit", "start", found, rule, found == size)
        check_frozen("fit(model=..., start=...)", start.settings, problem)
        return start.output.to(problem.device, problem.dtype)
    check_argument("fit", "start", start, "a module or a Run", isinstance(start, nn.Module))
    return problem.vector_of(start)


class SimulatedClients:
    """The clients of a federation whose data is in this process."""

    def __init__(self, federation: Federation) -> None:
        is_valid = isinstance(federation, Federation)
        check_argument("fit", "federation", federation, "a tf.Federation", is_valid)
        self._original = self._federation = federation

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self._original.clients

    @property
    def has_labels(self) -> bool:
        """Whether the targets are class labels."""
        return are_labels(self._original.y)

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Hold out the validation set, move the data to the device and check it."""
        fed, held_out = self._original, None
        if config.evaluate.validation is not None:
            fed, held_out = fed.hold_out(config.evaluate.validation, config.seed)
        fed = fed.to(problem.device, problem.dtype)
        for pair in ((fed.x, fed.y), fed.test, fed.held):
            if pair is not None:
                _check_finite(pair, problem.dtype)
        labels = [fed.y] if fed.test is None else [fed.y, fed.test[1]]
        highest = max(int(y.max()) for y in labels) if self.has_labels else None
        problem.check(map_inputs(lambda t: t[:2], fed.x), fed.y[:2], highest)
        self._federation = fed
        return ClientData(
            sizes=fed.sizes,
            description={
                "name": fed.name,
                "clients": fed.clients,
                "samples": fed.samples,
                "digest": self._original.digest(),
                "picture": fed.picture(),
            },
            nbytes=sum(t.numel() * t.element_size() for t in (*list_tensors(fed.x), fed.y)),
            has_held=fed.held is not None,
            test=fed.test,
            validation=None if held_out is None else prepare_pair(problem, held_out),
            client_weights=per_client(fed) if config.evaluate.per_client else None,
        )

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        """Return the simulation, with faults and attacks if the scenario has some."""
        engine, faults = config.engine_options, config.scenario.parsed_faults
        setup = SimulationConfig(
            method=method,
            problem=problem,
            federation=self._federation,
            batch_plan=config.batch_plan,
            plan=plan,
            start=start,
            ranks=init_ranks(),
            engine=engine.backend,
            compile=config.compile,
            chunk=engine.chunk,
            augment=config.augmentation,
            aggregate=config.aggregation,
            faults=faults,
            attack=config.scenario.parsed_attack,
        )
        simulation = Simulation(setup)
        return simulation if faults is None else FaultyClients(simulation, faults)


def prepare_pair(problem: Problem, pair: Pair) -> Pair:
    """Return inputs and targets on the problem's device and in its dtype."""
    inputs, target = problem.prepare(pair[0]), problem.prepare(pair[1])
    assert isinstance(target, Tensor)
    _check_finite((inputs, target), problem.dtype)
    return inputs, target


def _check_finite(pair: Pair, dtype: torch.dtype) -> None:
    for part in (*list_tensors(pair[0]), pair[1]):
        if not all_finite(part):
            use = "scale it, or use fit(dtype=torch.float64)"
            raise DataError(f"The data has numbers too large for {dtype}; {use}.")


def estimate_cost(run: BoundRun) -> dict[str, Any]:
    """Return what a bound run would cost without training it: parameters, bytes, memory."""
    plan, sizes = run.plan, run.data.sizes
    passes = -(-sizes // batch_width(sizes, run.config.batch_plan))  # batches in a pass over n_i
    pool = DryRun(run.method, plan, run.start, float(passes.double().mean()))
    ids, state = torch.arange(plan.cohort), init_server_state(run.method, run.start, plan)
    state, first = run_round(run.method, plan, state, pool, ids)
    first_gradients = pool.gradients
    _, later = run_round(run.method, plan, state, pool, ids)
    gradients = first_gradients + (plan.rounds - 1) * (pool.gradients - first_gradients)
    total = {way: first[way] + (plan.rounds - 1) * later[way] for way in ("bytes_up", "bytes_down")}
    size = run.start.element_size()
    own = sum(v.numel() for v in pool.own.values())
    server = sum(v.numel() for v in state.tensors().values()) * size
    chunk = int(run.settings.get("chunk", plan.cohort))
    working = chunk * plan.layout.size * size * 6  # y, gradient, direction and temporaries
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
        "simulation_memory": server + working + run.data.nbytes + own * size * plan.clients,
    }
