"""The rules of `advise`, in rules.toml: which method to try in which situation, best first."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files

SKEWED = 0.2  # label skew above which clients count as heterogeneous


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The problem and the constraints that rules depend on."""

    clients: int
    cohort: int  # clients per round
    parameters: int  # trainable ones of the model
    skew: float | None = None  # of the labels, from 0 (identical clients) to 1; None without labels
    tuning: bool = False  # whether hyperparameters may be tuned
    stateless: bool = False  # whether clients keep no state between rounds
    penalty: str | None = None  # as text
    max_upload: int | None = None  # bytes that a client may send per round

    @property
    def is_full_participation(self) -> bool:
        """Whether all clients take part in every round."""
        return self.cohort == self.clients

    @property
    def is_skewed(self) -> bool:
        """Whether clients are heterogeneous; assumed if there are no labels."""
        return self.skew is None or self.skew > SKEWED

    @property
    def is_upload_limited(self) -> bool:
        """Whether an uncompressed model exceeds the upload limit."""
        return self.max_upload is not None and self.max_upload < 4 * self.parameters

    def __str__(self) -> str:
        size = f"{self.parameters:,} parameters"
        labels = "no labels" if self.skew is None else f"label skew {self.skew:.2f}"
        alike = "assumed to differ" if self.is_skewed else "assumed to be alike"
        return f"{self.clients} clients, {self.cohort} a round, {labels}: {alike}; {size}."


@dataclass(frozen=True, kw_only=True)
class AdviceRule:
    """A method with settings, when to try it, the evidence and the reason."""

    when: str
    method: str
    settings: Sequence[str] = ()  # KEY=VALUE; {penalty} is replaced by the situation's
    source: str
    reason: str

    def holds(self, s: Situation) -> bool:
        """Return whether all holds that `when` says, and no penalty or limit that it does not."""
        if (s.penalty is not None) != (PENALTY in self.when):
            return False
        if s.penalty is None and s.is_upload_limited != (SHORT in self.when):
            return False
        return all(test(s) for phrase, test in CONDITIONS.items() if phrase in self.when)


PENALTY, SHORT = "there is a penalty", "uploads must be short"
CONDITIONS: dict[str, Callable[[Situation], bool]] = {
    "everyone takes part": lambda s: s.is_full_participation,
    "clients differ": lambda s: s.is_skewed,
    "clients are alike": lambda s: not s.is_skewed,
    "settings may be searched for": lambda s: s.tuning,
    "nothing is to be tuned": lambda s: not s.tuning,
}
_TABLE = tomllib.loads(package_files(__package__).joinpath("rules.toml").read_text("utf-8"))
RULES = tuple(AdviceRule(**rule) for rule in _TABLE["rule"])
