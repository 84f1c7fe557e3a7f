"""Where a study's runs come from: a recipe in words, or a model and a federation in Python.

A setup is what all runs share; with methods it becomes a source of runs. The federation and the
model are made once per seed, so that all methods of a seed have the same clients and the same
start; cohorts and batches are functions of the seed anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..core.errors import ArgumentError
from ..data import Federation
from ..methods import Method
from ..training.bind import Job, bind
from ..training.fit import options
from ..training.recipe import Recipe, arguments, make_method, recall
from .names import Entrant
from .work import Source, Task

MakeModel = nn.Module | Callable[[int], nn.Module]
MakeFederation = Federation | Callable[[int], Federation]


class Setup(Protocol):
    """What all runs of a study share."""

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        ...

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        ...

    def source(self, entrants: Sequence[Entrant]) -> Source:
        """Return the runs of these methods."""
        ...

    def validated(self, share: float) -> "Setup":
        """Return the setup with validation data, its own share if it has one."""
        ...


@dataclass(frozen=True)
class RecipeSetup:
    """The command line's: a recipe."""

    recipe: Recipe
    made: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return self.recipe.rounds

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return self.recipe.eval_every

    def source(self, entrants: Sequence[Entrant]) -> Source:
        """Return the runs of these methods."""
        named = {e.label: (e.name or "", e.words) for e in entrants}
        return Words(self.recipe, named, self.made)

    def validated(self, share: float) -> Setup:
        """Return the setup with validation data, its own share if it has one."""
        own = self.recipe.validation
        recipe = replace(self.recipe, validation=share if own is None else own)
        return replace(self, recipe=recipe)


@dataclass(frozen=True)
class GivenSetup:
    """Python's: a model, a federation and arguments of `fit`."""

    model: MakeModel
    federation: MakeFederation
    settings: dict[str, Any]
    made: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return options(**self.settings, model=None, federation=None).rounds

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return options(**self.settings, model=None, federation=None).eval_every

    def source(self, entrants: Sequence[Entrant]) -> Source:
        """Return the runs of these methods."""
        named = {e.label: e.method for e in entrants}
        return Given(self.model, self.federation, named, self.settings, self.made)

    def validated(self, share: float) -> Setup:
        """Return the setup with validation data, its own share if it has one."""
        return replace(self, settings={"validation": share, **self.settings})


def check(setup: Setup, entrants: Sequence[Entrant], seed: int) -> Job:
    """Refuse what cannot be run, before anything is trained; return the first run, bound."""
    first = Task(entrants[0].label, seed, setup.rounds)
    job = bind(options(**setup.source(entrants).arguments(first)))
    for entrant in entrants:
        entrant.method.check(job.plan)
    return job


@dataclass
class Words:
    """Runs of the command line: a recipe, and each label's method in words.

    Args:
        recipe: What all runs share.
        methods: Name and settings of the method, by label.
        made: What is common to the runs of a seed: data, model and so on.
    """

    recipe: Recipe
    methods: dict[str, tuple[str, tuple[str, ...]]]
    made: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    def recipe_of(self, task: Task) -> Recipe:
        """Return the recipe of one run, as `tunefree run` takes it."""
        name, words = self.methods[task.label]
        return replace(self.recipe, method=name, set=words, seed=task.seed)

    def arguments(self, task: Task) -> dict[str, Any]:
        """Return the arguments of `fit`."""
        recipe = self.recipe_of(task)
        if task.seed not in self.made:
            found = arguments(recipe)
            self.made.clear()  # one seed's data at a time
            self.made[task.seed] = found
        own = {"method": make_method(recipe), "validation": recipe.validation}
        return {**self.made[task.seed], **own, "command": in_words(recipe)}

    def __getstate__(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "methods": self.methods, "made": {}}


def in_words(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data."""
    found = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    return {k: str(v) if isinstance(v, Path) else v for k, v in found.items()}


def from_words(words: Mapping[str, Any]) -> Recipe:
    """Return the recipe that `in_words` wrote down."""
    return recall(words)


@dataclass
class Given:
    """Runs of Python: a model and a federation, or functions of the seed that make them.

    Args:
        model: A module, the start of every seed; or f(seed), called under that torch seed.
        federation: The data; or f(seed).
        methods: The method, by label.
        settings: Arguments of `fit` that all runs share.
        made: Model and federation of a seed.
    """

    model: MakeModel
    federation: MakeFederation
    methods: dict[str, Method]
    settings: dict[str, Any]
    made: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    def arguments(self, task: Task) -> dict[str, Any]:
        """Return the arguments of `fit`."""
        if task.seed not in self.made:
            found = self._make(task.seed)
            self.made.clear()
            self.made[task.seed] = found
        own = {"method": self.methods[task.label], "seed": task.seed}
        return {**self.settings, **self.made[task.seed], **own}

    def _make(self, seed: int) -> dict[str, Any]:
        model: Any = self.model
        if not isinstance(model, nn.Module):
            if not callable(model):
                raise ArgumentError(
                    f"model must be a module or a function of the seed, got {model!r}."
                )
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                model = model(seed)
        federation: Any = self.federation
        if not isinstance(federation, Federation) and callable(federation):
            federation = federation(seed)
        return {"model": model, "federation": federation}
