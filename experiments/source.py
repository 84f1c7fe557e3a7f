"""Building what a run is trained with: data, clients and network, once per task and seed."""

import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError
from tunefree.core.types import Inputs, list_tensors, map_inputs
from tunefree.data import Dataset, Federation, load, partition
from tunefree.models import nets
from tunefree.study.tasks import RunInputs, RunTask
from tunefree.training.callbacks import Callback, Event
from tunefree.training.command import TOKEN_MODELS
from tunefree.training.config import RunConfig

from . import named
from .frozen import features
from .keys import DATA, OPTION_OF, RUN_OPTIONS
from .runs import RunSpec

T = TypeVar("T")
COORDINATES = 8  # parameters of a model small enough to be drawn


@dataclass
class ExperimentSource:
    """Builds what runs are trained with.

    Args:
        device: As `fit` takes it.
        data_dir: Where datasets are looked for first.
        live: Folder for checkpoints of runs that ask for them.
        sets: Datasets that were loaded, newest last.
        made: Federations and networks, by the words that decide them, newest last.
    """

    device: str = "auto"
    data_dir: Path | None = None
    live: Path | None = None
    sets: OrderedDict[str, Dataset] = field(default_factory=OrderedDict, repr=False)
    made: OrderedDict[str, tuple[nn.Module, Federation]] = field(
        default_factory=OrderedDict, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sets": OrderedDict(), "made": OrderedDict()}

    def inputs(self, task: RunTask) -> RunInputs:
        """Return configuration, model and federation of a run."""
        assert isinstance(task, RunSpec)
        words = task.words
        model, federation = self.problem(words)
        options = {OPTION_OF.get(k, k): v for k, v in words.items() if k in RUN_OPTIONS}
        options["cohort"] = options.get("cohort") or None
        options["batch"] = options.get("batch", 50) or None
        options["dtype"] = getattr(torch, options.get("dtype", "float32"))
        callbacks: list[Callback] = []
        if model_size(model) <= COORDINATES or "solution" in words:
            callbacks.append(CoordinateLogger(words.get("solution")))
        if words.get("moves"):
            callbacks.append(MoveLogger(parameters_to_vector(model.parameters()).detach()))
        config = RunConfig(seed=words["seed"], device=self.device).replace(
            method=named.make(words["method"], words["set"]), **options
        )
        often = words.get("checkpoint_every")
        return RunInputs(config, model, federation, {"experiment": task.label}, callbacks, often)

    def problem(self, words: Mapping[str, Any]) -> tuple[nn.Module, Federation]:
        """Return network and federation, cached for the last tasks."""
        deciding = {k: words[k] for k in (*DATA, "seed") if k in words}
        key = json.dumps(deciding, sort_keys=True)
        return _cached(self.made, key, lambda: self._make(deciding))

    def _make(self, words: Mapping[str, Any]) -> tuple[nn.Module, Federation]:
        data = self.dataset(words)
        parts = partition.parse(words["split"])
        fed = data.split(parts, clients=words.get("clients"), seed=words["seed"])
        changes: dict[str, Any] = {}
        if words.get("test", "own") == "train":
            changes |= {"test": (fed.x, fed.y), "test_owner": None}
        if words.get("held"):
            changes["held"] = take_balanced(fed.x, fed.y, words["held"])
        if changes:
            fed = copy.copy(fed)
            fed.__dict__.update(changes)
        model = make_network(words, data)
        return (
            features(model, fed, find_device(self.device))
            if words.get("features")
            else (model, fed)
        )

    def dataset(self, words: Mapping[str, Any]) -> Dataset:
        """Return the dataset, or the part of it that is specified."""
        args = dict(words.get("data_args", {}))
        if words.get("redraw"):
            args["seed"] = words["seed"]
        deciding = ("data", "rows", "test_rows", "standardise")
        known = {k: words[k] for k in deciding if k in words} | args
        key = json.dumps(known, sort_keys=True)
        return _cached(self.sets, key, lambda: self._load(words, args))

    def _load(self, words: Mapping[str, Any], args: Mapping[str, Any]) -> Dataset:
        whole = load(words["data"], self.data_dir, **args)
        whole = standardise(whole) if words.get("standardise") else whole
        return take_rows(whole, words.get("rows"), words.get("test_rows"))


def _cached(kept: OrderedDict[str, T], key: str, make: Callable[[], T]) -> T:
    if key not in kept:
        while len(kept) > 1:  # two tasks at most are in memory
            kept.popitem(last=False)
        kept[key] = make()
    kept.move_to_end(key)
    return kept[key]


def model_size(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in model.parameters())


class CoordinateLogger:
    """A callback that logs the coordinates of tiny models, and the distance to the solution."""

    def __init__(self, solution: list[float] | None) -> None:
        self._solution = solution

    def __call__(self, event: Event) -> None:
        """Add w1, w2, ... and `distance` to the round."""
        if len(event.x) <= COORDINATES:
            event.row.update({f"w{i + 1}": float(v) for i, v in enumerate(event.x)})
        if self._solution is not None:
            goal = event.output.new_tensor(self._solution)
            event.row["distance"] = float((event.output - goal).norm())


class MoveLogger:
    """A callback that logs how far the server's model moves.

    Args:
        start: Where it begins.
    """

    def __init__(self, start: Tensor) -> None:
        self._start = self._last = start

    def __call__(self, event: Event) -> None:
        """Add `move`, the length of the round's step, and `moved`, the distance from the start."""
        x = event.x.detach().to(self._start, copy=True)
        event.row["move"] = float((x - self._last).norm())
        event.row["moved"] = float((x - self._start).norm())
        self._last = x


def make_network(words: Mapping[str, Any], data: Dataset) -> nn.Module:
    """Return the network, initialised from the seed or set to the start given."""
    first = list_tensors(data.x)[0]
    shape: Any = tuple(first.shape[1:])
    classes, name = data.classes or 1, words["model"]
    args = dict(words.get("model_args", {}))
    if data.words and name in TOKEN_MODELS:
        args.setdefault("vocab", len(data.words))
    model = nets.build(name, shape=shape, classes=classes, seed=words["seed"], **args)
    if "start" in words:
        point = torch.tensor(words["start"], dtype=parameters_to_vector(model.parameters()).dtype)
        if point.numel() != model_size(model):
            raise ArgumentError(
                f"start must have the {model_size(model)} numbers of the model, got "
                f"{point.numel()}."
            )
        vector_to_parameters(point, model.parameters())
    return model


def standardise(data: Dataset) -> Dataset:
    """Return the dataset with every channel of mean 0 and deviation 1 over the training rows."""
    if not isinstance(data.x, Tensor) or not data.x.is_floating_point():
        raise ArgumentError(f"standardise needs one tensor of real numbers, {data.name} has none.")
    axes = [axis for axis in range(data.x.ndim) if axis != 1]
    scale, mean = torch.std_mean(data.x, axes, correction=0, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    test = data.test
    if test is not None:
        assert isinstance(test[0], Tensor)
        test = ((test[0] - mean) / scale, test[1])
    return replace(data, x=(data.x - mean) / scale, test=test)


def take_rows(data: Dataset, rows: int | None, test_rows: int | None) -> Dataset:
    """Return the dataset with fewer rows, drawn once for all seeds."""
    out = data
    if rows is not None and rows < data.samples:
        at = _draw(data.samples, rows)
        owner = None if data.owner is None else data.owner[at]
        out = replace(out, x=_index_rows(data.x, at), y=data.y[at], owner=owner)
    if test_rows is not None and data.test is not None and test_rows < len(data.test[1]):
        at = _draw(len(data.test[1]), test_rows)
        owner = None if data.test_owner is None else data.test_owner[at]
        out = replace(out, test=(_index_rows(data.test[0], at), data.test[1][at]), test_owner=owner)
    return out


def _draw(of: int, count: int) -> Tensor:
    return torch.randperm(of, generator=torch.Generator().manual_seed(0))[:count].sort().values


def _index_rows(inputs: Inputs, at: Tensor) -> Inputs:
    return map_inputs(lambda t: t[at], inputs)


def take_balanced(x: Inputs, y: Tensor, count: int) -> tuple[Inputs, Tensor]:
    """Return `count` samples, balanced over the classes.

    >>> take_balanced(torch.arange(6.0), torch.tensor([0, 0, 0, 0, 1, 1]), 4)[1].tolist()
    [0, 0, 1, 1]
    """
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    turn = torch.zeros_like(y)
    for label in range(int(y.max()) + 1):
        mine = order[y[order] == label]
        turn[mine] = torch.arange(len(mine))
    at = torch.argsort(turn, stable=True)[:count].sort().values
    return _index_rows(x, at), y[at]
