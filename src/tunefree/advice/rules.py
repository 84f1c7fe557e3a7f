"""The rules of `advise`: which method to try in which situation, best first."""

from collections.abc import Callable
from dataclasses import dataclass

SKEWED = 0.2  # label skew above which clients count as heterogeneous


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The problem and the constraints that rules depend on."""

    clients: int
    cohort: int  # clients per round
    parameters: int  # trainable ones of the model
    skew: float | None = (
        None  # of the clients' labels, from 0 (identical) to 1; None without labels
    )
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
    """One row of the table: a condition, a method with settings, the reason and the evidence."""

    when: str
    holds: Callable[[Situation], bool]
    method: str
    reason: str
    source: str
    settings: tuple[str, ...] = ()  # KEY=VALUE; {penalty} is replaced by the situation's


def _has_penalty(s: Situation) -> bool:
    return s.penalty is not None


def _is_compressed(s: Situation) -> bool:
    return s.penalty is None and s.is_upload_limited


def _is_untuned(s: Situation) -> bool:
    return s.penalty is None and not s.is_upload_limited and not s.tuning


def _is_tuned(s: Situation) -> bool:
    return s.penalty is None and not s.is_upload_limited and s.tuning


CATALOGUE = "docs/catalogue.md"
AUTO = "docs/auto.md"

RULES: tuple[AdviceRule, ...] = (
    # With a penalty: methods that apply its proximal map.
    AdviceRule(
        "there is a penalty and everyone takes part",
        lambda s: _has_penalty(s) and s.is_full_participation,
        "za1",
        "Controls against drift at one upload; proximal maps keep zeros exact.",
        f"{CATALOGUE}, With a penalty; Zhang et al. 2024",
        ("penalty={penalty}",),
    ),
    AdviceRule(
        "there is a penalty",
        _has_penalty,
        "fedcanon",
        "Most accurate of those for partial participation; one proximal map a round.",
        f"{CATALOGUE}, With a penalty; FedCanon",
        ("penalty={penalty}",),
    ),
    AdviceRule(
        "there is a penalty",
        _has_penalty,
        "fedda",
        "Most zeros, since means are taken before the proximal map; clients keep nothing.",
        f"{CATALOGUE}, With a penalty; Yuan et al. 2021",
        ("penalty={penalty}",),
    ),
    AdviceRule(
        "there is a penalty",
        _has_penalty,
        "fedmid",
        "The simplest: FedAvg with a proximal map after every step; clients keep nothing.",
        f"{CATALOGUE}, With a penalty; Yuan et al. 2021",
        ("penalty={penalty}",),
    ),
    # The upload limit is below the size of the model.
    AdviceRule(
        "uploads must be short",
        _is_compressed,
        "auto",
        "A sixth of the upload at no loss in accuracy; clients keep nothing.",
        f"{CATALOGUE}, Compressed uploads",
        ("wire=qsgd:15",),
    ),
    AdviceRule(
        "uploads must be short and settings may be searched for",
        lambda s: _is_compressed(s) and s.tuning,
        "fedefams",
        "A thirteenth of the upload; AMSGrad on the server makes up for what is lost.",
        f"{CATALOGUE}; Li & Li 2023",
    ),
    AdviceRule(
        "uploads must be short",
        _is_compressed,
        "auto",
        "A tenth of the upload at next to no loss in accuracy; clients keep nothing.",
        f"{CATALOGUE}, Compressed uploads",
        ("wire=qsgd:3",),
    ),
    AdviceRule(
        "uploads must be short",
        _is_compressed,
        "fedsps",
        "Polyak steps, a sixth of the upload; counts on a loss that can reach zero.",
        f"{CATALOGUE}, Compressed uploads; Mukherjee et al. 2023",
        ("wire=qsgd:15",),
    ),
    AdviceRule(
        "uploads must be short",
        _is_compressed,
        "auto",
        "A thirteenth of the upload for about three points; clients keep the error of compression.",
        f"{CATALOGUE}, Compressed uploads",
        ("wire=ef+topk:0.05",),
    ),
    AdviceRule(
        "uploads must be short",
        _is_compressed,
        "auto",
        "One bit a number for about six points; clients keep the error of compression.",
        f"{CATALOGUE}, Compressed uploads",
        ("wire=ef+sign",),
    ),
    # No tuning.
    AdviceRule(
        "nothing is to be tuned",
        _is_untuned,
        "auto",
        "The best of the catalogue at its defaults, and near the best of a learning-rate grid on "
        "most tasks; clients keep nothing.",
        f"{AUTO}; {CATALOGUE}",
    ),
    AdviceRule(
        "nothing is to be tuned",
        _is_untuned,
        "fedsps",
        "Polyak steps: the second best that sets its own step; counts on a loss that can reach "
        "zero.",
        f"{CATALOGUE}; Mukherjee et al. 2023",
    ),
    AdviceRule(
        "nothing is to be tuned",
        _is_untuned,
        "feddowg",
        "DoWG steps and a plain average: auto without its server, to see what that adds.",
        f"{AUTO}; {CATALOGUE}; Khaled et al. 2023",
    ),
    # Tuning allowed.
    AdviceRule(
        "settings may be searched for",
        _is_tuned,
        "fedduadagrad",
        "One rate to search; at its best rate ahead on four of seven tasks, but none serves all.",
        f"{AUTO}; {CATALOGUE}",
    ),
    AdviceRule(
        "settings may be searched for",
        _is_tuned,
        "auto",
        "Needs no search: what the search has to beat.",
        f"{AUTO}; {CATALOGUE}",
    ),
    AdviceRule(
        "clients are alike and settings may be searched for",
        lambda s: _is_tuned(s) and not s.is_skewed,
        "fedexp",
        "An extrapolated server step; above FedAvg at every rate where labels are even.",
        f"{AUTO}; Jhunjhunwala et al. 2023",
    ),
    AdviceRule(
        "clients differ, all take part, and settings may be searched for",
        lambda s: _is_tuned(s) and s.is_skewed and s.is_full_participation,
        "scaffold",
        "Controls cancel the drift of clients that differ; they are fresh when all take part.",
        "Karimireddy et al. 2020",
    ),
    AdviceRule(
        "clients differ and settings may be searched for",
        lambda s: _is_tuned(s) and s.is_skewed,
        "fedyogi",
        "The best of the adaptive servers; two rates to search.",
        f"{CATALOGUE}; Reddi et al. 2021",
    ),
)
