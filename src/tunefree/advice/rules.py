"""The rules of `advise`: which method to try in which situation, best first."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class AdviceRule:
    """A method with settings, when to try it, the evidence and the reason."""

    when: str
    method: str
    settings: tuple[str, ...]  # KEY=VALUE; {penalty} is replaced by the situation's
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
TABLE = """
there is a penalty and everyone takes part:
    za1 penalty={penalty} | docs/catalogue.md, With a penalty; Zhang et al. 2024
        Controls against drift at one upload; proximal maps keep zeros exact.
there is a penalty:
    fedcanon penalty={penalty} | docs/catalogue.md, With a penalty; FedCanon
        Most accurate of those for partial participation; one proximal map a round.
    fedda penalty={penalty} | docs/catalogue.md, With a penalty; Yuan et al. 2021
        Most zeros, since means are taken before the proximal map; clients keep nothing.
    fedmid penalty={penalty} | docs/catalogue.md, With a penalty; Yuan et al. 2021
        The simplest: FedAvg with a proximal map after every step; clients keep nothing.
uploads must be short:
    auto wire=qsgd:15 | docs/catalogue.md, Compressed uploads
        A sixth of the upload at no loss in accuracy; clients keep nothing.
uploads must be short and settings may be searched for:
    fedefams | docs/catalogue.md; Li & Li 2023
        A thirteenth of the upload; AMSGrad on the server makes up for what is lost.
uploads must be short:
    auto wire=qsgd:3 | docs/catalogue.md, Compressed uploads
        A tenth of the upload at next to no loss in accuracy; clients keep nothing.
    fedsps wire=qsgd:15 | docs/catalogue.md, Compressed uploads; Mukherjee et al. 2023
        Polyak steps, a sixth of the upload; counts on a loss that can reach zero.
    auto wire=ef+topk:0.05 | docs/catalogue.md, Compressed uploads
        A thirteenth of the upload for about three points; clients keep the error of compression.
    auto wire=ef+sign | docs/catalogue.md, Compressed uploads
        One bit a number for about six points; clients keep the error of compression.
nothing is to be tuned:
    auto | docs/auto.md; docs/catalogue.md
        The best of the catalogue at its defaults, and near the best of a learning-rate grid on most
        tasks; clients keep nothing.
    fedsps | docs/catalogue.md; Mukherjee et al. 2023
        Polyak steps: the second best that sets its own step; counts on a loss that can reach zero.
    feddowg | docs/auto.md; docs/catalogue.md; Khaled et al. 2023
        DoWG steps and a plain average: auto without its server, to see what that adds.
settings may be searched for:
    fedduadagrad | docs/auto.md; docs/catalogue.md
        One rate to search; at its best rate ahead on four of seven tasks, but none serves all.
    auto | docs/auto.md; docs/catalogue.md
        Needs no search: what the search has to beat.
clients are alike and settings may be searched for:
    fedexp | docs/auto.md; Jhunjhunwala et al. 2023
        An extrapolated server step; above FedAvg at every rate where labels are even.
clients differ, everyone takes part, and settings may be searched for:
    scaffold | Karimireddy et al. 2020
        Controls cancel the drift of clients that differ; they are fresh when all take part.
clients differ and settings may be searched for:
    fedyogi | docs/catalogue.md; Reddi et al. 2021
        The best of the adaptive servers; two rates to search.
"""


def _read_rules(table: str) -> Iterator[AdviceRule]:
    for when, rules in re.findall(r"^(\S.*):\n((?: .*\n)+)", table, re.M):
        for words, source, reason in re.findall(
            r"^ {4}(\S.*) \| (.*)\n((?: {8}.*\n)+)", rules, re.M
        ):
            method, *settings = words.split()
            yield AdviceRule(when, method, tuple(settings), source, " ".join(reason.split()))


RULES = tuple(_read_rules(TABLE))
