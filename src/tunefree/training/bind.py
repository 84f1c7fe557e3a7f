"""Binding a run: everything is checked and built before round 0.

`bind` turns a configuration, a model and a source of clients into a `BoundRun`, which the trainer
runs. The source is a federation in this process (`SimulatedClients`) or the nodes of a real one
(`tunefree.flower`).
"""

import hashlib
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.device import find_device
from ..core.errors import (
    ArgumentError,
    DataError,
    Interrupted,
    cannot_use,
    check_argument,
    check_known,
    check_nonnegative,
    check_numbers,
)
from ..core.plan import Plan
from ..core.types import Inputs, Pair, Vector, list_tensors, map_inputs
from ..data._arrays import all_finite
from ..data.batches import batch_width, mean_steps
from ..data.federation import Federation
from ..data.moments import column_spread, count_columns
from ..faults import Faults, PartialPlan
from ..methods import Method
from ..models.problem import WEIGHT, Problem, are_labels
from ..privacy import Privacy
from ..robust import Robust
from ..rounds.client import init_client_memory
from ..rounds.pool import ClientPool
from ..rounds.server import exchange_moments, init_server_state, run_round
from ..simulation.dry_run import DryRun
from ..simulation.engine import SimulationConfig
from ..simulation.faulty import FaultyClients
from ..simulation.ranks import Ranks, init_ranks
from ..simulation.simulation import Simulation
from ..version import __version__
from ..wire import Ledger
from .config import RunConfig, parsed
from .decide import (
    adapt_to_table,
    count_layers,
    decide_method,
    decide_monitor,
    decide_scaling,
    decide_validation,
)
from .evaluate import Evaluation, measure_regularity, per_client
from .run import Run, check_frozen

log = logging.getLogger("tunefree")


@dataclass(frozen=True)
class ClientData:
    """What a run knows of its clients' data before round 0."""

    sizes: Tensor  # samples of each client (N,)
    description: dict[str, Any]  # for `settings.json`: name, clients, samples, ...
    effective_samples: float | None = None  # what the samples' weights stand for, if they differ
    nbytes: int = 0  # memory of the training data in this process
    has_held: bool = False  # whether the server holds a sample of its own
    test: Evaluation | None = None
    validation: Evaluation | None = None
    columns: int = 0  # of the inputs, if they are a table (2-D floats)
    targets: int = 0  # per row, if they are numbers that can be standardised with the columns
    spread: float = 1.0  # largest over smallest range of the columns, if known


class ClientSource(Protocol):
    """Where the clients of a run come from."""

    @property
    def clients(self) -> int:
        """Number of clients N."""
        ...

    @property
    def sizes(self) -> Tensor | None:
        """Samples of each client (N,), if some of them can be held out here."""
        ...

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Check the data against the model, choose the loss and move the data to the device."""
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


def bind(config: RunConfig, model: nn.Module, source: ClientSource) -> BoundRun:
    """Check every option and build what depends on it; nothing is trained yet.

    Raises:
        ArgumentError: If an option is out of range or does not fit the others.
        DataError: If the data cannot be used.
        Interrupted: After Ctrl-C while compiling; its run has no round yet.
    """
    method, ranks = decide_method(config, count_layers(model)), init_ranks()
    is_decided, config = config.evaluate.validation is None, decide_validation(config, source.sizes)
    if config.cohort is not None:
        most = f"at most the number of clients, {source.clients}"
        check_argument("fit", "cohort", config.cohort, most, config.cohort <= source.clients)
    device, precision = find_device(config.device), parsed(config.engine).precision
    problem = Problem(model, config.loss, config.dtype, device, precision)
    limits = torch.finfo(problem.dtype)
    check_numbers(method.name, method.describe(), (limits.tiny, limits.max))
    data = source.load(config, problem)
    plan = _make_plan(config, problem, data)
    if (faults := parsed(config.scenario.faults)) is not None:
        faults.check(method, plan)
        _check_sampling(config.aggregate, faults)
    method.check(plan)
    if isinstance(config.aggregate, Robust):
        config.aggregate.check(plan.cohort)
    start = problem.start if config.start is None else _read_start(problem, config.start)
    is_scaled = decide_scaling(config, data.columns, data.targets, data.spread)
    if is_scaled:
        _standardise(config.start, problem, data)
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
        asks_moments=is_scaled and config.start is None,
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
    faults, clients = parsed(config.scenario.faults), len(data.sizes)
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


def _standardise(start: nn.Module | Run | None, problem: Problem, data: ClientData) -> None:
    """Standardise the inputs, and targets that are numbers; by the scales of `start`, if any."""
    inputs = problem.standardise_inputs(data.columns)
    if not isinstance(start, Run):
        if data.targets and problem.takes_target_scaling(data.columns, data.targets):
            problem.standardise_targets(data.targets)
        return
    assert start.scaling is not None
    inputs.copy_(start.scaling)
    if (found := start.target_scaling) is not None:
        problem.standardise_targets(found.shape[1]).copy_(found)


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
    def sizes(self) -> Tensor:
        """Samples of each client (N,)."""
        return self._original.sizes

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Hold out the validation set, move the data to the device and check it."""
        fed, held_out, weight = self._fit_targets(problem), None, None
        if (share := config.evaluate.validation) is not None:
            weight = _sample_weights(fed, config)
            weight = None if weight is None else weight[fed.choose_rows(share, config.seed)]
            fed, held_out = fed.hold_out(share, config.seed)
        fed = fed.to(problem.device, problem.dtype)
        for pair in ((fed.x, fed.y), fed.test, fed.held):
            if pair is not None:
                _check_finite(pair, problem.dtype)
        labels = [fed.y] if fed.test is None else [fed.y, fed.test[1]]
        highest = max(int(y.max()) for y in labels) if are_labels(fed.y) else None
        problem.check(map_inputs(lambda t: t[:2], fed.x), fed.y[:2], highest, fed.y)
        if problem.casts:
            fed = fed.map_x(problem.prepare)
        nbytes = sum(t.numel() * t.element_size() for t in (*list_tensors(fed.x), fed.y))
        description: dict[str, Any] = {
            "name": fed.name,
            "clients": fed.clients,
            "samples": fed.samples,
            "digest": self._original.digest(),
            "picture": fed.picture(),
            "classes": fed.classes if fed.labels is None else list(fed.labels),
            "target": list(fed.y.shape[1:]),
            "target_name": fed.target_name,
            "casts": problem.casts or None,
            "features": None if fed.features is None else fed.features.to_json(),
        }
        metrics, test, validation = config.evaluate.metrics or {}, None, None
        groups, names = per_client(fed) if config.evaluate.per_client else (None, ())
        if fed.test is not None:
            test = Evaluation(problem, fed.test, metrics, groups, names)
        if held_out is not None:
            weight = None if weight is None else weight.to(problem.device)
            validation = Evaluation(
                problem, prepare_pair(problem, held_out), metrics, weight=weight
            )
        self._federation = _add_weights(fed, config, problem)
        return ClientData(
            sizes=fed.sizes,
            effective_samples=_effective_samples(_sample_weights(fed, config)),
            description=description,
            nbytes=nbytes,
            has_held=fed.held is not None,
            test=test,
            validation=validation,
            columns=count_columns(fed.x),
            targets=fed.y[:1].numel() if problem.loss_name == "mse" else 0,
            spread=column_spread(fed.x),
        )

    def _fit_targets(self, problem: Problem) -> Federation:
        """Return the federation with targets as the loss and the model's outputs need them."""
        fed = self._original
        if problem.loss_name not in ("auto", "cross_entropy", "bce"):
            return fed.with_numbers()
        if fed.classes is None:
            return fed
        few = problem.prepare(map_inputs(lambda t: t[:2], fed.x))
        outputs = problem.count_outputs(few)
        if outputs is None:
            return fed
        fed = fed.with_classes(max(outputs, 2))
        if fed.labels is not None and outputs != 1 and outputs < len(fed.labels):
            some = ", ".join(map(repr, fed.labels[:10])) + ("…" if len(fed.labels) > 10 else "")
            raise ArgumentError(
                f"The model returns {outputs} outputs per sample, but there are {len(fed.labels)} "
                f"classes ({some}); give the last layer {len(fed.labels)} outputs."
            )
        return fed

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        """Return the simulation, with faults and attacks if the scenario has some."""
        engine, faults = parsed(config.engine), parsed(config.scenario.faults)
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
            augment=parsed(config.augment),
            aggregate=parsed(config.aggregate),
            faults=faults,
            attack=parsed(config.scenario.attack),
        )
        simulation = Simulation(setup)
        return simulation if faults is None else FaultyClients(simulation, faults)


def _add_weights(fed: Federation, config: RunConfig, problem: Problem) -> Federation:
    """Return the federation with the weight of each sample as its last input, if there are any.

    Weights have mean 1, so that the mean loss of all samples is the weighted one.
    """
    weight = _sample_weights(fed, config)
    if weight is None:
        return fed
    problem.weighted = True
    own = (weight / weight.mean()).to(problem.device, problem.dtype)
    x: Inputs = {**fed.x, WEIGHT: own} if isinstance(fed.x, dict) else (*list_tensors(fed.x), own)
    return fed.replace(x=x)


def _sample_weights(fed: Federation, config: RunConfig) -> Tensor | None:
    """Return the weight of each sample in training; None if all are equal."""
    weight = fed.sample_weight
    if (given := config.class_weight) is None:
        return weight
    if fed.classes is None:
        raise ArgumentError("fit(class_weight=...) needs class labels, but y has none.")
    each = _class_weights(fed, given)[fed.y.cpu()]
    return each if weight is None else weight * each


def _effective_samples(weight: Tensor | None) -> float | None:
    """Return how many samples weights stand for; None without weights.

    A whole number is so many equal samples, as in scikit-learn. Where weights add up to less than
    Kish's effective number of samples, such as to 1, it is that number.

    >>> _effective_samples(torch.tensor([0.0, 3.0, 1.0])), _effective_samples(torch.ones(4) / 4)
    (4.0, 4.0)
    """
    if weight is None:
        return None
    total = weight.sum()
    return float(torch.maximum(total, total.square() / weight.square().sum()))


def _class_weights(fed: Federation, given: str | Mapping[Any, float]) -> Tensor:
    """Return the weight of each class (classes,)."""
    assert fed.classes is not None
    labels = [str(label) for label in fed.labels or range(fed.classes)]
    if isinstance(given, Mapping):
        named = {str(label): value for label, value in given.items()}
        for label, value in named.items():
            check_known("label in fit(class_weight=...)", label, labels)
            check_nonnegative("fit", "class_weight", value)
        weights = [float(named.get(label, 1.0)) for label in labels]
        return torch.tensor(weights, dtype=torch.float64)
    check_argument("fit", "class_weight", given, "'balanced' or a dict", given == "balanced")
    counts = torch.bincount(fed.y.cpu(), minlength=fed.classes).double()
    return counts.sum() / (fed.classes * counts.clamp(min=1))


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
    state, first = run_round(run.method, plan, state, pool, ids, run.standardise(pool))
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
