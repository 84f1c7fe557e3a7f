"""The clients of a run before round 0: what is known of their data, and how a pool of them is made.

`SimulatedClients` are those of a federation in this process: it holds out validation data, chooses
the form of the targets, weighs samples and makes the simulation. The nodes of a real federation
are another `ClientSource` (`tunefree.flower`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import (
    ArgumentError,
    DataError,
    check_argument,
    check_known,
    check_nonnegative,
)
from ..core.plan import Plan
from ..core.ranks import init_ranks
from ..core.types import Inputs, Samples, Vector, list_tensors, take_rows
from ..data.arrays import all_finite
from ..data.federation import Federation
from ..data.moments import column_spread, count_columns
from ..methods import Method
from ..models.problem import WEIGHT, Problem, are_labels
from ..rounds.pool import ClientPool
from ..simulation.engine import SimulationConfig
from ..simulation.faulty import FaultyClients
from ..simulation.simulation import Simulation
from .config import RunConfig, get_parsed
from .evaluate import Evaluation, weigh_test_rows


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

    @property
    def sizes(self) -> Tensor | None:
        """Samples of each client (N,), if some of them can be held out here."""

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Check the data against the model, choose the loss and move the data to the device."""

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        """Return the clients; called after `load`."""


class SimulatedClients(ClientSource):
    """The clients of a federation whose data is in this process."""

    def __init__(self, federation: Federation) -> None:
        is_valid = isinstance(federation, Federation)
        check_argument("fit", "federation", federation, "a tf.Federation", is_valid)
        self._original = self._federation = federation

    @property
    def clients(self) -> int:
        return self._original.clients

    @property
    def sizes(self) -> Tensor:
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
        problem.check(take_rows(fed.x, slice(2)), fed.y[:2], highest, fed.y)
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
        groups, names = weigh_test_rows(fed) if config.evaluate.per_client else (None, ())
        if fed.test is not None:
            test = Evaluation(problem, fed.test, metrics, groups, names)
        if held_out is not None:
            weight = None if weight is None else weight.to(problem.device)
            validation = Evaluation(
                problem, prepare_pair(problem, held_out), metrics, weight=weight
            )
        weight = _sample_weights(fed, config)
        self._federation = fed if weight is None else _add_weights(fed, weight, problem)
        return ClientData(
            sizes=fed.sizes,
            effective_samples=None if weight is None else _effective_samples(weight),
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
        few = problem.prepare(take_rows(fed.x, slice(2)))
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
        engine, faults = get_parsed(config.engine), get_parsed(config.scenario.faults)
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
            augment=get_parsed(config.preprocess.augment),
            aggregate=get_parsed(config.aggregate),
            faults=faults,
            attack=get_parsed(config.scenario.attack),
        )
        simulation = Simulation(setup)
        return simulation if faults is None else FaultyClients(simulation, faults)


def _add_weights(fed: Federation, weight: Tensor, problem: Problem) -> Federation:
    """Return the federation with the weight of each sample as its last input.

    Weights have mean 1, so that the mean loss of all samples is the weighted one.
    """
    problem.weighted = True
    own = (weight / weight.mean()).to(problem.device, problem.dtype)
    x: Inputs = {**fed.x, WEIGHT: own} if isinstance(fed.x, dict) else (*list_tensors(fed.x), own)
    return fed.replace(x=x)


def _sample_weights(fed: Federation, config: RunConfig) -> Tensor | None:
    """Return the weight of each sample in training; None if all are equal."""
    weight = fed.sample_weight
    if (given := config.preprocess.class_weight) is None:
        return weight
    if fed.classes is None:
        raise ArgumentError("Preprocess(class_weight=...) needs class labels, but y has none.")
    each = _class_weights(fed, given)[fed.y.cpu()]
    return each if weight is None else weight * each


def _effective_samples(weight: Tensor) -> float:
    """Return how many samples weights stand for.

    A sample with an integer weight w counts as w equal samples, as in scikit-learn. Where weights
    add up to less than Kish's effective number of samples, such as to 1, it is that number.

    >>> _effective_samples(torch.tensor([0.0, 3.0, 1.0])), _effective_samples(torch.ones(4) / 4)
    (4.0, 4.0)
    """
    total = weight.sum()
    return float(torch.maximum(total, total.square() / weight.square().sum()))


def _class_weights(fed: Federation, given: str | Mapping[Any, float]) -> Tensor:
    """Return the weight of each class (classes,)."""
    assert fed.classes is not None
    labels = [str(label) for label in fed.labels or range(fed.classes)]
    if isinstance(given, Mapping):
        named = {str(label): value for label, value in given.items()}
        for label, value in named.items():
            check_known("label in Preprocess(class_weight=...)", label, labels)
            check_nonnegative("Preprocess", "class_weight", value)
        weights = [float(named.get(label, 1.0)) for label in labels]
        return torch.tensor(weights, dtype=torch.float64)
    check_argument("Preprocess", "class_weight", given, "'balanced' or a dict", given == "balanced")
    counts = torch.bincount(fed.y.cpu(), minlength=fed.classes).double()
    return counts.sum() / (fed.classes * counts.clamp(min=1))


def prepare_pair(problem: Problem, pair: Samples) -> Samples:
    """Return inputs and targets on the problem's device and in its dtype."""
    inputs, target = problem.prepare(pair[0]), problem.prepare(pair[1])
    assert isinstance(target, Tensor)
    _check_finite((inputs, target), problem.dtype)
    return inputs, target


def _check_finite(pair: Samples, dtype: torch.dtype) -> None:
    for part in (*list_tensors(pair[0]), pair[1]):
        if not all_finite(part):
            use = "scale it, or use fit(dtype=torch.float64)"
            raise DataError(f"The data has numbers too large for {dtype}; {use}.")
