"""The rules of `advise`: what to try in which situation, in order, with reason and source."""

from collections.abc import Callable
from dataclasses import dataclass

SKEWED = 0.2  # from here on clients count as different


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What rules look at.

    Attributes:
        clients: How many there are.
        cohort: How many take part in a round.
        parameters: Trainable numbers of the model.
        skew: How far a client's labels are from everybody's, 0 (alike) to 1; None without labels.
        tuning: Whether settings may be searched for.
        stateless: Whether clients keep nothing between rounds.
        penalty: The regulariser in words, or None.
        max_upload: Bytes that a client may send in a round, or None.
    """

    clients: int
    cohort: int
    parameters: int
    skew: float | None = None
    tuning: bool = False
    stateless: bool = False
    penalty: str | None = None
    max_upload: int | None = None

    @property
    def everyone(self) -> bool:
        """Whether everyone takes part in every round."""
        return self.cohort == self.clients

    @property
    def skewed(self) -> bool:
        """Whether clients differ; without labels to tell, they are taken to."""
        return self.skew is None or self.skew > SKEWED

    @property
    def tight(self) -> bool:
        """Whether the model as it is is too long to be sent up."""
        return self.max_upload is not None and self.max_upload < 4 * self.parameters

    def __str__(self) -> str:
        size = f"{self.parameters:,} parameters"
        said = "labels do not tell" if self.skew is None else f"label skew {self.skew:.2f}"
        alike = "taken to differ" if self.skewed else "taken to be alike"
        return f"{self.clients} clients, {self.cohort} a round, {said}: {alike}; {size}."


@dataclass(frozen=True)
class Rule:
    """One row of the table: when, what, why, and how we know."""

    when: str
    holds: Callable[[Situation], bool]
    method: str
    settings: tuple[str, ...]  # as after --set; {penalty} is the one asked for
    reason: str
    source: str


CATALOGUE = "docs/catalogue.md"
AUTO = "docs/auto.md"

RULES: tuple[Rule, ...] = (
    # With a penalty: methods that have its proximal map.
    Rule(
        "there is a penalty and everyone takes part",
        lambda s: s.penalty is not None and s.everyone,
        "za1",
        ("penalty={penalty}",),
        "Controls against drift at one upload; proximal maps keep zeros exact.",
        f"{CATALOGUE}, With a penalty; Zhang et al. 2024",
    ),
    Rule(
        "there is a penalty",
        lambda s: s.penalty is not None,
        "fedcanon",
        ("penalty={penalty}",),
        "Most accurate of those for partial participation; one proximal map a round.",
        f"{CATALOGUE}, With a penalty; FedCanon",
    ),
    Rule(
        "there is a penalty",
        lambda s: s.penalty is not None,
        "fedda",
        ("penalty={penalty}",),
        "Most zeros, since means are taken before the proximal map; clients keep nothing.",
        f"{CATALOGUE}, With a penalty; Yuan et al. 2021",
    ),
    Rule(
        "there is a penalty",
        lambda s: s.penalty is not None,
        "fedmid",
        ("penalty={penalty}",),
        "The plainest: FedAvg with a proximal map after every step; clients keep nothing.",
        f"{CATALOGUE}, With a penalty; Yuan et al. 2021",
    ),
    # Uploads that must be shorter than the model.
    Rule(
        "uploads must be short",
        lambda s: s.penalty is None and s.tight,
        "auto",
        ("wire=qsgd:15",),
        "A sixth of the upload at no loss in accuracy; clients keep nothing.",
        f"{CATALOGUE}, Compressed uploads",
    ),
    Rule(
        "uploads must be short and settings may be searched for",
        lambda s: s.penalty is None and s.tight and s.tuning,
        "fedefams",
        (),
        "A thirteenth of the upload; AMSGrad on the server makes up for what is lost.",
        f"{CATALOGUE}; Li & Li 2023",
    ),
    Rule(
        "uploads must be short",
        lambda s: s.penalty is None and s.tight,
        "auto",
        ("wire=qsgd:3",),
        "A tenth of the upload at next to no loss in accuracy; clients keep nothing.",
        f"{CATALOGUE}, Compressed uploads",
    ),
    Rule(
        "uploads must be short",
        lambda s: s.penalty is None and s.tight,
        "fedsps",
        ("wire=qsgd:15",),
        "Polyak steps, a sixth of the upload; counts on a loss that can reach zero.",
        f"{CATALOGUE}, Compressed uploads; Mukherjee et al. 2023",
    ),
    Rule(
        "uploads must be short",
        lambda s: s.penalty is None and s.tight,
        "auto",
        ("wire=ef+topk:0.05",),
        "A thirteenth of the upload for about three points; clients keep what they still owe.",
        f"{CATALOGUE}, Compressed uploads",
    ),
    Rule(
        "uploads must be short",
        lambda s: s.penalty is None and s.tight,
        "auto",
        ("wire=ef+sign",),
        "One bit a number for about six points; clients keep what they still owe.",
        f"{CATALOGUE}, Compressed uploads",
    ),
    # Nothing may be searched for.
    Rule(
        "nothing is to be tuned",
        lambda s: s.penalty is None and not s.tight and not s.tuning,
        "auto",
        (),
        "The best of the catalogue at its defaults, and near the best of a learning-rate grid on "
        "most tasks; clients keep nothing.",
        f"{AUTO}; {CATALOGUE}",
    ),
    Rule(
        "nothing is to be tuned",
        lambda s: s.penalty is None and not s.tight and not s.tuning,
        "fedsps",
        (),
        "Polyak steps: the second best that sets its own step; counts on a loss that can reach "
        "zero.",
        f"{CATALOGUE}; Mukherjee et al. 2023",
    ),
    Rule(
        "nothing is to be tuned",
        lambda s: s.penalty is None and not s.tight and not s.tuning,
        "feddowg",
        (),
        "DoWG steps and a plain average: auto without its server, to see what that adds.",
        f"{AUTO}; {CATALOGUE}; Khaled et al. 2023",
    ),
    # Settings may be searched for.
    Rule(
        "settings may be searched for",
        lambda s: s.penalty is None and not s.tight and s.tuning,
        "fedduadagrad",
        (),
        "One rate to search; at its best rate ahead on four of seven tasks, but none serves all.",
        f"{AUTO}; {CATALOGUE}",
    ),
    Rule(
        "settings may be searched for",
        lambda s: s.penalty is None and not s.tight and s.tuning,
        "auto",
        (),
        "Needs no search: what the search has to beat.",
        f"{AUTO}; {CATALOGUE}",
    ),
    Rule(
        "clients are alike and settings may be searched for",
        lambda s: s.penalty is None and not s.tight and s.tuning and not s.skewed,
        "fedexp",
        (),
        "An extrapolated server step; above FedAvg at every rate where labels are even.",
        f"{AUTO}; Jhunjhunwala et al. 2023",
    ),
    Rule(
        "clients differ, all take part, and settings may be searched for",
        lambda s: s.penalty is None and not s.tight and s.tuning and s.skewed and s.everyone,
        "scaffold",
        (),
        "Controls cancel the drift of clients that differ; they are fresh when all take part.",
        "Karimireddy et al. 2020",
    ),
    Rule(
        "clients differ and settings may be searched for",
        lambda s: s.penalty is None and not s.tight and s.tuning and s.skewed,
        "fedyogi",
        (),
        "The best of the adaptive servers; two rates to search.",
        f"{CATALOGUE}; Reddi et al. 2021",
    ),
)
