"""The configuration of a run over a real federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ..core.errors import ArgumentError, check_argument, check_cohort
from ..core.fields import AtLeastOne, NonNegative, Positive, PositiveInt, check_fields
from ..models.engine import EngineName
from ..privacy import Privacy, Secure
from ..training.callbacks import Callback
from ..training.config import OPTIONS, Engine, RunConfig, make_option


@dataclass(frozen=True, kw_only=True)
class Settings(RunConfig):
    """A run over a real federation: the options of `fit`, and what only a real one needs.

    Options that need all data in one process (validation data, scores per client, engines,
    scenarios) are refused. A method or loss that is not given by name is also given to
    `client_app`.

    Args:
        model: Any module; its own parameters are the start.
        clients: Number of clients N; the first round waits for all of them.
        set: The method's settings, texts and numbers, if it is given by name.
        device: Device of the server.
        test: Inputs and targets on which the server evaluates.
        held: Inputs and targets that the server holds for methods that ask for it.
        out: Folder for settings, history and a checkpoint after every round; a run that finds one
            continues it. None writes nothing, and a run that breaks off is lost.
        minimum: Fewest clients of a cohort that must answer; None is half of the cohort. Methods
            that need full participation, and the preparation before round 0, need all clients.
        deadline: Seconds that clients have for an answer.
        wait: Seconds to wait for clients to connect, and for enough answers in a round.
        lost: "refuse" excludes a client whose memory is lost; "renew" lets it start with a new
            memory (and prepare again), while the server keeps its share of the old memory.
        largest: Largest norm of a vector that is accepted, in units of 1 + |x|.
        claim_limit: Largest number of samples that a client counts for, in units of the median over
            all clients: what nodes state cannot be checked. None believes them.
        secure: Sums what clients send under masks, instead of `aggregate`; needs
            tunefree[privacy] here and on the nodes. Experimental and unaudited.
        callbacks: Called with an `Event` after each round.
    """

    owner: ClassVar[str] = "Settings"
    model: nn.Module
    clients: PositiveInt
    set: Mapping[str, Any] = field(default_factory=dict)
    device: str | torch.device = make_option("cpu")
    engine: EngineName | Engine = field(default_factory=lambda: Engine(precision="fp32"))
    test: tuple[Any, Any] | None = None
    held: tuple[Any, Any] | None = None
    out: str | Path | None = None
    minimum: PositiveInt | None = None
    deadline: Positive = 600.0
    wait: NonNegative = 1800.0
    lost: Literal["refuse", "renew"] = "refuse"
    largest: Positive = 1e4
    claim_limit: AtLeastOne | None = 10.0
    secure: Secure | None = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        is_module = isinstance(self.model, nn.Module)
        check_argument("Settings", "model", self.model, "a torch.nn.Module", is_module)
        check_fields(self)
        cohort = self.cohort or self.clients
        check_cohort("Settings", cohort, self.clients)
        fits = self.minimum is None or self.minimum <= cohort
        check_argument("Settings", "minimum", self.minimum, f"at most the cohort, {cohort}", fits)
        if isinstance(self.aggregate, Privacy) and self.aggregate.cohorts != "known":
            why = "nodes are told the run's seed, from which all cohorts follow"
            raise ArgumentError(f"Settings(aggregate=...) needs cohorts='known': {why}.")
        if not isinstance(self.method, str) and self.set:
            raise ArgumentError("Settings(set=...) goes with a method's name, not with a method.")
        defaults, given = RunConfig().flat(), self.flat()
        for name in (about.name for _, about in OPTIONS if not about.metadata["federated"]):
            if given[name] != defaults[name]:
                why = "it needs all clients' data in one process; use fit, or leave it out"
                raise ArgumentError(f"Settings cannot have {name}={given[name]!r}: {why}.")

    @property
    def method_settings(self) -> Mapping[str, Any]:
        return self.set

    @property
    def has_plain_mean(self) -> bool:
        return super().has_plain_mean and self.secure is None
