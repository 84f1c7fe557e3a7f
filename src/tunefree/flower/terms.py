"""What a node must know of a run beyond the round at hand; the same text in every message."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from .. import methods
from ..core.errors import ArgumentError, convert_errors
from ..core.files import to_json
from ..core.layout import Layout
from ..core.plan import Plan
from ..data.batches import BatchPlan
from ..methods import Method
from ..models.problem import Problem


@dataclass(frozen=True)
class RunTerms:
    """The run as a node sees it.

    `words` are the method's name and settings, where it was given by name; `method` and `model`
    are digests, by which a node knows that it works on the same. `width` is the widest batch of
    the population, so that a node cuts its data as a simulation does.
    """

    clients: int
    cohort: int
    rounds: int
    plan_steps: float
    seed: int
    batch: int | None
    held: bool
    width: int
    steps: int | None
    epochs: int | None
    loss: str
    dtype: str
    augment: str | None
    words: dict[str, Any] | None
    method: str
    model: str

    def text(self) -> str:
        """Return it as JSON."""
        return to_json(asdict(self))

    @staticmethod
    def read(text: str) -> "RunTerms":
        """Undo `text`."""
        with convert_errors("The terms of this run cannot be read"):
            found = RunTerms(**json.loads(text))
            for name, kind in get_type_hints(RunTerms).items():
                if not _fits(getattr(found, name), kind):
                    raise TypeError(f"{name} is {getattr(found, name)!r}")
        return found

    @property
    def cut(self) -> BatchPlan:
        """How local work is cut."""
        return BatchPlan(batch=self.batch, steps=self.steps, epochs=self.epochs)

    def plan(self, layout: Layout) -> Plan:
        """Return the plan, as the server has it."""
        return Plan(
            self.clients,
            self.cohort,
            self.rounds,
            self.plan_steps,
            layout,
            self.seed,
            self.batch,
            self.held,
        )

    def choose(self, given: Method | None) -> Method:
        """Return the method: the one by name, or the one that this node was given."""
        if self.words is not None:
            with convert_errors("The method in the terms of this run cannot be made"):
                method = methods.get(str(self.words["name"]), **self.words["set"])
        elif given is None:
            raise ArgumentError(
                "The server's method has no name that would tell a node all of it; give the same "
                "method to client_app(method=...)."
            )
        else:
            method = given
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
                f"The server's model has other trainable tensors or other frozen values than the "
                f"one here, with {problem.layout.size} trainable numbers; build the same module on "
                "both sides."
            )


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON has the type that a field declares."""
    kinds = [
        get_origin(k) or k for k in (get_args(kind) if isinstance(kind, UnionType) else (kind,))
    ]
    return type(value) in kinds or (float in kinds and type(value) is int)


def digest_method(method: Method) -> str:
    """Return 16 hex digits that tell a method and its settings from others."""
    return _digest(method.describe())


def digest_model(problem: Problem) -> str:
    """Return 16 hex digits that tell a model's form and frozen values from others."""
    layout = problem.layout
    return _digest([list(layout.names), [list(s) for s in layout.shapes], problem.frozen()])


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value).encode()).hexdigest()[:16]


def words_of(method: str | Method, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a method by name as plain data; None where it was given as an object."""
    if not isinstance(method, str):
        return None
    words = {"name": method, "set": dict(settings)}
    try:
        same = bool(json.loads(json.dumps(words)) == words)
    except TypeError:
        same = False
    if not same:
        raise ArgumentError(
            "Settings(set=...) must hold words and numbers; give the method itself, tf.methods.get("
            f"{method!r}, ...), to server_app and to client_app."
        )
    return words
