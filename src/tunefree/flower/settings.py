"""What a server is told of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from .. import methods
from ..core.errors import ArgumentError, check_int, check_positive, unknown_name
from ..methods import Method
from ..models.problem import Loss
from ..privacy import Secure
from ..server.aggregate import Aggregation, weighted_mean
from ..training.callbacks import Callback
from ..training.evaluate import Metric
from .exchange import FailurePolicy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run over a real federation; as in `fit`, and what only a real one needs.

    Args:
        model: Any module; its own parameters are the start.
        clients: Number of clients N; the first round waits for all of them.
        method: A name, or a `tf.Method` that is also given to `client_app`.
        set: The method's settings, words and numbers, where it is given by name.
        rounds: Rounds T, >= 1.
        cohort: Clients per round S; None is everyone.
        steps: Local steps K of every client (20 unless epochs is given).
        epochs: Passes over each client's own data, instead of steps.
        batch: Samples per local step; None is all of a client's data.
        loss: "cross_entropy", "mse", "auto" by each node's labels, or a function that is also
            given to `client_app`.
        seed: Everything random is a function of it.
        dtype: torch.float32 or torch.float64.
        device: Where the server works.
        augment: "crop-flip" or None.
        test: Inputs and targets on which the server evaluates.
        held: Inputs and targets that the server holds for methods that ask for it.
        metrics: Further numbers by name, each f(outputs, targets) over the test data.
        eval_every: Evaluate every so many rounds, and after the last.
        out: Folder for settings, history and a checkpoint after every round; a run that finds one
            continues it. None writes nothing, and a run that breaks off is lost.
        minimum: Fewest clients of a cohort that must answer; None is half of them. Methods that
            need full participation, and the pass before round 0, need everyone.
        deadline: Seconds that clients have for an answer.
        wait: Seconds to wait for clients to come or to return.
        lost: "refuse" a client whose memory is lost, or "renew" it: it begins anew, though what
            the server has of its old memory stays.
        largest: Longest upload that is let in, in units of 1 + |x|.
        aggregate: How means are made of what clients send, as in `fit`.
        secure: Adds up what clients send under masks, instead of `aggregate`; needs
            tunefree[privacy] here and on the nodes.
        callbacks: Called with an `Event` after each round.
    """

    model: nn.Module
    clients: int
    method: str | Method = "auto"
    set: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 100
    cohort: int | None = None
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = 50
    loss: str | Loss = "auto"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    augment: str | None = None
    test: tuple[Any, Any] | None = None
    held: tuple[Any, Any] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    eval_every: int = 1
    out: str | Path | None = None
    minimum: int | None = None
    deadline: float = 600.0
    wait: float = 1800.0
    lost: Literal["refuse", "renew"] = "refuse"
    largest: float = 1e4
    aggregate: Aggregation = weighted_mean
    secure: Secure | None = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "eval_every"):
            check_int("Settings", name, getattr(self, name))
        for name in ("cohort", "minimum", "steps", "epochs", "batch"):
            if getattr(self, name) is not None:
                check_int("Settings", name, getattr(self, name))
        check_int("Settings", "seed", self.seed, 0)
        for name in ("deadline", "largest"):
            check_positive("Settings", name, getattr(self, name))
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(
                f"Settings takes steps or epochs, got steps={self.steps} and epochs={self.epochs}."
            )
        if self.cohort is not None and self.cohort > self.clients:
            raise ArgumentError(
                f"Settings(cohort=...) must be at most the number of clients, {self.clients}, got "
                f"{self.cohort}."
            )
        if self.minimum is not None and self.minimum > (self.cohort or self.clients):
            raise ArgumentError(
                f"Settings(minimum=...) must be at most the cohort, {self.cohort or self.clients}, "
                f"got {self.minimum}."
            )
        if self.lost not in ("refuse", "renew"):
            raise unknown_name("lost", self.lost, ("refuse", "renew"))
        if not isinstance(self.method, str) and self.set:
            raise ArgumentError("Settings(set=...) goes with a method's name, not with a method.")

    def chosen(self) -> Method:
        """Return the method."""
        return methods.get(self.method, **self.set) if isinstance(self.method, str) else self.method

    @property
    def patience(self) -> FailurePolicy:
        """How to deal with clients that fail."""
        return FailurePolicy(self.minimum, self.deadline, self.wait, self.lost, self.largest)
