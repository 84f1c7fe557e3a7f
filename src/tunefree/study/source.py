"""What the runs of a study share: a command, or a model and a federation in Python.

Federation and model are built once per seed, so that all methods of a seed have the same clients
and the same start.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from ..core.errors import ArgumentError, check_argument, unknown_name
from ..core.random import torch_seed
from ..data import Federation
from ..methods import Method
from ..training.bind import BoundRun, bind
from ..training.callbacks import Callback
from ..training.client_data import SimulatedClients
from ..training.command import CommandConfig, build_run, make_config
from ..training.config import RunConfig, check_option_names
from ..training.run import Run
from .candidates import Candidate, make_seeds
from .tasks import RunInputs, RunTask, run_folder

MakeModel = nn.Module | Run | Callable[[int], nn.Module | Run]
MakeFederation = Federation | Callable[[int], Federation]
Built = tuple[nn.Module | Run, Federation]


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """What all runs of a study share."""

    config: RunConfig | CommandConfig
    seeds: Sequence[int] = (0,)
    out: Path | None = None  # the study's folder
    jobs: int = 1  # processes
    command: Mapping[str, Any] | None = None  # that started it; kept in the study's JSON file
    built: dict[int, Built] = field(default_factory=dict, repr=False)  # of the current seed

    @property
    def options(self) -> Mapping[str, Any]:
        """The options by name."""
        config = self.config
        return config.options if isinstance(config, CommandConfig) else config.flat()

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return int(self.options["rounds"])

    def with_validation(self, fraction: float) -> Self:
        """Return the study with validation data: its own, or this fraction."""
        if self.options["validation"] is not None:
            return self
        return replace(self, config=self.config.replace(validation=fraction))

    @abstractmethod
    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        """Return the study with these candidates; `inputs` finds them by label."""

    @abstractmethod
    def inputs(self, task: RunTask) -> RunInputs:
        """Return what a run is trained with."""

    @abstractmethod
    def _build(self, seed: int) -> Built:
        """Build the model and the federation of a seed."""

    def shared(self, seed: int) -> Built:
        """Return the model and the federation of a seed, the same for all methods."""
        if seed not in self.built:
            built = self._build(seed)
            self.built.clear()  # keeps the data of one seed only
            self.built[seed] = built
        return self.built[seed]

    def task(self, label: str, seed: int, until: int | None = None) -> RunTask:
        """Return the run of a label and a seed, which may stop `until` a round."""
        return RunTask(label, seed, self.rounds, run_folder(self.out, label, seed), until)

    def check(self, candidates: Sequence[Candidate]) -> BoundRun:
        """Check all methods before anything is trained; return the first run, bound."""
        task = RunTask(candidates[0].label, self.seeds[0], self.rounds)
        first = self.with_candidates(candidates).inputs(task)
        run = bind(first.config, first.model, SimulatedClients(first.federation))
        for candidate in candidates:
            assert candidate.method is not None
            candidate.method.check(run.plan)
        return run


@dataclass(frozen=True, kw_only=True)
class CommandStudy(Study):
    """A study of the command line; it can be sent to other processes."""

    config: CommandConfig
    methods: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # by label

    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        return replace(self, methods={c.label: (c.name or "", c.texts) for c in candidates})

    def inputs(self, task: RunTask) -> RunInputs:
        name, texts = self.methods[task.label]
        command = self.config.replace(method=name, set=texts, seed=task.seed)
        shared = self.shared(task.seed)
        return RunInputs(make_config(command), *shared, command=command.to_json())

    def _build(self, seed: int) -> Built:
        built = build_run(self.config.replace(seed=seed))
        return built.model, built.federation

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"built": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the study in another process, which runs the user's files, too."""
        self.__dict__.update(state)
        for name in {name for name, _ in self.methods.values()} or {self.config.method}:
            self.config.replace(method=name).load_user_objects()


@dataclass(frozen=True, kw_only=True)
class PythonStudy(Study):
    """A study of `tf.compare` or `tf.tune`."""

    config: RunConfig
    model: MakeModel  # a function is called under the torch seed
    federation: MakeFederation
    callbacks: Sequence[Callback] = ()  # of every run
    methods: dict[str, Method] = field(default_factory=dict)  # by label

    @classmethod
    def create(
        cls,
        what: str,
        model: MakeModel,
        federation: MakeFederation,
        options: dict[str, Any],
        seeds: int | Sequence[int],
        out: str | os.PathLike[str] | None,
    ) -> Self:
        """Return the study of `what` with keyword arguments of `fit`, less those that it sets."""
        callbacks = options.pop("callbacks", ())
        own = ("method", "seed")
        if taken := [name for name in own if name in options]:
            known = [f.name for f in fields(RunConfig) if f.name not in own]
            raise unknown_name(f"argument of {what}", taken[0], known)
        check_option_names(what, options)
        check_argument(what, "out", out, "a folder", out is None or bool(os.fspath(out)))
        return cls(
            config=RunConfig(**options),
            model=model,
            federation=federation,
            callbacks=callbacks,
            seeds=make_seeds(seeds, what),
            out=None if out is None else Path(out),
        )

    def with_candidates(self, candidates: Sequence[Candidate]) -> Self:
        return replace(self, methods={c.label: c.method for c in candidates if c.method})

    def inputs(self, task: RunTask) -> RunInputs:
        config = self.config.replace(method=self.methods[task.label], seed=task.seed)
        return RunInputs(config, *self.shared(task.seed), callbacks=self.callbacks)

    def _build(self, seed: int) -> Built:
        federation = self.federation(seed) if callable(self.federation) else self.federation
        return self._make_model(seed), federation

    def _make_model(self, seed: int) -> nn.Module | Run:
        if isinstance(self.model, nn.Module | Run):
            return self.model
        if not callable(self.model):
            raise ArgumentError(
                f"model must be a module, a Run or a function of the seed, got {self.model!r}."
            )
        with torch_seed(seed):
            return self.model(seed)
