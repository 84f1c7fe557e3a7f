"""What a node must know of a run, sent as the same text in every message."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, get_type_hints

import torch

from .. import methods
from ..core.errors import ArgumentError, convert_errors
from ..core.fields import has_type
from ..core.files import to_json
from ..core.layout import Layout
from ..core.plan import Plan
from ..core.types import Vector
from ..methods import Method
from ..models.problem import LOSSES, Problem
from ..training.config import RunConfig
from ..wire._bits import encode_numbers


@dataclass(frozen=True)
class RunTerms:
    """The run as a node sees it."""

    clients: int  # N
    steps: float  # K; the mean over clients if they differ
    held: bool  # whether the server has a sample of its own
    width: int  # of the population's widest batch, to which a node pads as a simulation does
    options: dict[str, Any]  # of `RunConfig` that nodes must know, as plain data
    named: dict[str, Any] | None  # the method's name and settings, if it was given by name
    method: str  # digest of the method, by which a node knows that it has the same
    model: str  # digest of the model's layout and frozen values
    start: str  # digest of the first model, from which clients' first memories are made
    deep: bool  # whether the server trains the method's form for deep networks

    def text(self) -> str:
        """Return the terms as JSON."""
        return to_json(asdict(self))

    @staticmethod
    def read(text: str) -> "RunTerms":
        """Return the terms that `text` wrote; other texts are a DataError."""
        with convert_errors("The terms of this run cannot be read"):
            found = RunTerms(**json.loads(text))
            for name, kind in get_type_hints(RunTerms).items():
                if not has_type(getattr(found, name), kind):
                    raise TypeError(f"{name} is {getattr(found, name)!r}")
            assert found.config.rounds  # reads the options, which checks them
        return found

    @cached_property
    def config(self) -> RunConfig:
        """The options that nodes know; the others have their defaults."""
        known = RunConfig().record(node=True)
        if self.options.keys() != known.keys():
            raise ValueError("the options are not those of this version")
        options = dict(self.options)
        loss = options["loss"] if options["loss"] in (*LOSSES, "auto") else "auto"
        dtype = {"float32": torch.float32, "float64": torch.float64}[options["dtype"]]
        return RunConfig().replace(**options | {"dtype": dtype, "loss": loss})

    @property
    def loss(self) -> str:
        """The loss's name; a function has the name of its definition."""
        return str(self.options["loss"])

    def plan(self, layout: Layout) -> Plan:
        """Return the plan, as the server has it."""
        config = self.config
        return Plan(
            clients=self.clients,
            cohort=self.clients if config.cohort is None else config.cohort,
            rounds=config.rounds,
            steps=self.steps,
            layout=layout,
            seed=config.seed,
            batch=config.batch,
            held=self.held,
        )

    def choose(self, given: Method | None) -> Method:
        """Return the method: the one by name, or the one that this node was given."""
        method = given
        if self.named is not None:
            with convert_errors("The method in the terms of this run cannot be constructed"):
                method = methods.get(str(self.named["name"]), **self.named["set"])
        if method is None:
            raise ArgumentError(
                "The server's method was not given by name; give it to client_app(method=...), too."
            )
        method = method.for_deep_networks() if self.deep else method
        if digest_method(method) != self.method:
            raise ArgumentError(
                f"The server's method has other settings than {method.name!r} has here; use one "
                "version of tunefree and one definition of the method on both sides."
            )
        return method

    def check(self, problem: Problem) -> None:
        """Refuse a model that is not the server's."""
        if digest_model(problem) != self.model:
            raise ArgumentError(
                "The server's model has other trainable tensors or frozen values than this one of "
                f"{problem.layout.size} trainable numbers; build the same module on both sides."
            )


def digest_method(method: Method) -> str:
    """Return 16 hex digits that tell a method and its settings from others.

    The weights are left out: the server decides them, and nodes do not use them.
    """
    return _digest(method.describe() | {"weights": None})


def digest_model(problem: Problem) -> str:
    """Return 16 hex digits that tell a model's form and frozen values from others."""
    layout = problem.layout
    return _digest([list(layout.names), [list(s) for s in layout.shapes], problem.frozen_digest()])


def digest_start(x: Vector) -> str:
    """Return 64 hex digits of a model, so that all clients are sent the same first one."""
    return hashlib.sha256(encode_numbers(x)).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value).encode()).hexdigest()[:16]


def name_method(method: str | Method, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a method's name and settings as plain data; None if it was given as an object."""
    if not isinstance(method, str):
        return None
    named = {"name": method, "set": dict(settings)}
    try:
        is_plain = bool(json.loads(json.dumps(named)) == named)
    except TypeError:
        is_plain = False
    if not is_plain:
        raise ArgumentError(
            "Settings(set=...) must hold texts and numbers; give the method itself, tf.methods.get("
            f"{method!r}, ...), to server_app and to client_app."
        )
    return named
