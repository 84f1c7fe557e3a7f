"""What the runs of a study share: a command, or a model and a federation in Python.

With its candidates a `Study` is a source of runs. Federation and model are built once per seed, so
that all methods of a seed have the same clients and the same start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import nn

from ..core.errors import ArgumentError
from ..data import Federation
from ..methods import Method
from ..training.bind import BoundRun, SimulatedClients, bind
from ..training.callbacks import Callback
from ..training.command import CommandConfig, CommandRun, build_run, make_config
from ..training.config import RunConfig
from .candidates import Candidate
from .tasks import RunInputs, RunSource, RunTask

MakeModel = nn.Module | Callable[[int], nn.Module]
MakeFederation = Federation | Callable[[int], Federation]


class Study(RunSource, Protocol):
    """What all runs of a study share."""

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        ...

    @property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        ...

    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        """Return the study with these candidates; `inputs` finds them by label."""
        ...

    def with_validation(self, fraction: float) -> Self:
        """Return the study with validation data: its own, or this fraction."""
        ...


def check_candidates(study: Study, candidates: Sequence[Candidate], seed: int) -> BoundRun:
    """Check all methods before anything is trained; return the first run, bound."""
    first = study.with_candidates(candidates).inputs(
        RunTask(candidates[0].label, seed, study.rounds)
    )
    run = bind(first.config, first.model, SimulatedClients(first.federation))
    for candidate in candidates:
        candidate.method.check(run.plan)
    return run


@dataclass(frozen=True)
class CommandStudy:
    """A study of the command line.

    Args:
        command: What all runs share.
        methods: Name and settings of each candidate's method, by label.
        built: Data and model of the current seed.
    """

    command: CommandConfig
    methods: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    built: dict[int, CommandRun] = field(default_factory=dict, repr=False)

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return self.command.rounds

    @property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        return int(self.command.options["eval_every"])

    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        """Return the study with these candidates."""
        return replace(self, methods={c.label: (c.name or "", c.texts) for c in candidates})

    def with_validation(self, fraction: float) -> Self:
        """Return the study with validation data: its own, or this fraction."""
        if self.command.options["validation"] is not None:
            return self
        return replace(self, command=self.command.replace(validation=fraction))

    def inputs(self, task: RunTask) -> RunInputs:
        """Return what a run is trained with."""
        name, texts = self.methods[task.label]
        command = self.command.replace(method=name, set=texts, seed=task.seed)
        if task.seed not in self.built:
            built = build_run(command)
            self.built.clear()  # keeps the data of one seed only
            self.built[task.seed] = built
        shared = self.built[task.seed]
        config = make_config(command, shared.federation.clients).replace(
            cohort=shared.config.cohort  # the same for all methods of a seed
        )
        return RunInputs(config, shared.model, shared.federation, command=command.to_json())

    def __getstate__(self) -> dict[str, Any]:
        return {"command": self.command, "methods": self.methods, "built": {}}


@dataclass(frozen=True)
class PythonStudy:
    """A study of `tf.compare` or `tf.tune`.

    Args:
        model: A module, the start of every seed; or f(seed), called under that torch seed.
        federation: The data; or f(seed).
        config: The options that all runs share.
        callbacks: Called after each round of every run.
        methods: Each candidate's method, by label.
        built: Model and federation of the current seed.
    """

    model: MakeModel
    federation: MakeFederation
    config: RunConfig
    callbacks: Sequence[Callback] = ()
    methods: dict[str, Method] = field(default_factory=dict)
    built: dict[int, tuple[nn.Module, Federation]] = field(default_factory=dict, repr=False)

    @classmethod
    def create(
        cls, model: MakeModel, federation: MakeFederation, options: Mapping[str, Any]
    ) -> "PythonStudy":
        """Return the study with keyword arguments of `fit`."""
        options = dict(options)
        callbacks = options.pop("callbacks", ())
        return cls(model, federation, RunConfig(**options), callbacks)

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return self.config.rounds

    @property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        return self.config.eval_every

    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        """Return the study with these candidates."""
        return replace(self, methods={c.label: c.method for c in candidates})

    def with_validation(self, fraction: float) -> Self:
        """Return the study with validation data: its own, or this fraction."""
        if self.config.evaluate.validation is not None:
            return self
        return replace(self, config=self.config.replace(validation=fraction))

    def inputs(self, task: RunTask) -> RunInputs:
        """Return what a run is trained with."""
        config = self.config.replace(method=self.methods[task.label], seed=task.seed)
        return RunInputs(config, *self._build(task.seed), callbacks=self.callbacks)

    def _build(self, seed: int) -> tuple[nn.Module, Federation]:
        """Return the model and the federation of a seed; only one seed's are kept."""
        if seed not in self.built:
            made = self._make_model(seed), self._make_federation(seed)
            self.built.clear()
            self.built[seed] = made
        return self.built[seed]

    def _make_model(self, seed: int) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return self.model
        if not callable(self.model):
            raise ArgumentError(
                f"model must be a module or a function of the seed, got {self.model!r}."
            )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.model(seed)

    def _make_federation(self, seed: int) -> Federation:
        federation = self.federation
        if not isinstance(federation, Federation) and callable(federation):
            return federation(seed)
        return federation
