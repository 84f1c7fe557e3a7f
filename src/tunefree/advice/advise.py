"""`advise`: which methods to try on given data under given constraints, with reasons and costs.

`rules.RULES` ranks the methods. Each candidate is run for two rounds without data
(`measure_costs`), and dropped if it exceeds the upload limit, needs client state that is not
allowed, or needs full participation.
"""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from .. import methods
from ..core.errors import ArgumentError, check_between, check_cohort, check_int
from ..core.plan import Plan
from ..core.text import format_bytes
from ..core.types import Vector
from ..data.batches import BatchPlan, mean_steps
from ..data.federation import Federation
from ..methods import Method
from ..models.problem import Problem
from ..simulation.dry_run import measure_costs
from ..training.command import parse_method_settings
from .rules import RULES, AdviceRule, Situation


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A recommended method; costs are per client and round.

    Attributes:
        method: Its name.
        settings: Its settings that differ from the defaults, as KEY=VALUE.
        when: The situation in which it is recommended.
        reason: Why it is recommended.
        source: The evidence.
        choose: Hyperparameters whose default does not suit every problem.
        bytes_up: Bytes that a client of the cohort sends.
        bytes_down: Bytes that it receives.
        gradients: Minibatch gradients that it computes.
        client_memory: Bytes of state of every client between rounds.
        server_memory: Bytes of state of the server between rounds, the model included.
    """

    method: str
    settings: tuple[str, ...]
    when: str
    reason: str
    source: str
    choose: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    gradients: float
    client_memory: int
    server_memory: int

    def make(self) -> Method:
        """Return the method, for `fit`."""
        return make_method(self.method, self.settings)

    def command(self, *words: str, verb: str = "run") -> str:
        """Return the command that runs it, with further options for the data and the model."""
        pairs = (word for setting in self.settings for word in ("--set", setting))
        return shlex.join(["tunefree", verb, *words, "--method", self.method, *pairs])

    def __str__(self) -> str:
        lines = [
            " ".join((self.method, *self.settings)),
            self.reason,
            f"Advised where {self.when}; see {self.source}.",
            f"A client, a round: {format_bytes(self.bytes_up)} up, "
            f"{format_bytes(self.bytes_down)} down, "
            f"{self.gradients:g} gradients; keeps {format_bytes(self.client_memory)}.",
        ]
        if self.choose:
            lines.append(f"To choose: {', '.join(self.choose)}.")
        return "\n   ".join(lines)


@dataclass(frozen=True)
class Advice:
    """Recommended methods, best first, and notes on constraints that could not be met."""

    situation: Situation
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    def __str__(self) -> str:
        parts = [f"{n}. {choice}" for n, choice in enumerate(self.choices, 1)]
        return "\n".join([str(self.situation), *parts, *self.notes])


def advise(
    model: nn.Module,
    federation: Federation,
    *,
    cohort: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int | None = 50,
    tuning: bool = False,
    stateless: bool = False,
    penalty: str | None = None,
    max_upload: int | str | None = None,
    skew: float | None = None,
    most: int = 3,
) -> Advice:
    """Recommend methods for this data under these constraints, best first.

    Args:
        model: Any module.
        federation: The clients' data.
        cohort: Clients per round; None for all of them.
        steps: Local steps of every client (20 unless epochs is given).
        epochs: Passes over each client's own data, instead of steps.
        batch: Samples per local step; None for all of a client's data.
        tuning: Whether learning rates may be tuned.
        stateless: Whether clients keep no state between rounds.
        penalty: A penalty as text, such as "l1:1e-4" for a sparse model.
        max_upload: Bytes that a client may send per round, or text such as "1MB".
        skew: Label skew in [0, 1); measured if None.
        most: Maximum number of recommendations.

    >>> import torch
    >>> fed = Federation(torch.eye(4), [0, 1, 0, 1], owner=[0, 1, 2, 3])
    >>> [choice.method for choice in advise(nn.Linear(4, 2), fed, cohort=2)]
    ['auto', 'fedsps', 'feddowg']
    """
    check_int("advise", "most", most)
    if cohort is not None:
        check_int("advise", "cohort", cohort)
        check_cohort("advise", cohort, federation.clients)
    if skew is not None:
        check_between("advise", "skew", skew, -1e-9, 1)
    problem = Problem(model)
    situation = Situation(
        clients=federation.clients,
        cohort=federation.clients if cohort is None else cohort,
        parameters=problem.layout.size,
        skew=label_skew(federation) if skew is None else skew,
        tuning=tuning,
        stateless=stateless,
        penalty=penalty,
        max_upload=None if max_upload is None else parse_bytes(max_upload),
    )
    steps = 20 if steps is None and epochs is None else steps
    batches = BatchPlan(batch=batch, steps=steps, epochs=epochs)
    plan = Plan(
        situation.clients,
        situation.cohort,
        100,
        mean_steps(federation.sizes, batches),
        problem.layout,
        batch=batch,
        held=federation.held is not None,
    )
    width = int(federation.sizes.max()) if batch is None else batch
    passes = float((-(-federation.sizes // width)).double().mean())
    return _choose(situation, plan, problem.start, passes, most)


def _choose(s: Situation, plan: Plan, x: Vector, passes: float, most: int) -> Advice:
    """Return the first methods that satisfy the constraints; those to be tuned only if needed."""
    candidates = [_evaluate(rule, s, plan, x, passes) for rule in RULES if rule.holds(s)]
    usable = [c for c in candidates if c is not None]
    allowed = [c for c in usable if not (s.stateless and c.client_memory)]
    small = [c for c in allowed if s.max_upload is None or c.bytes_up <= s.max_upload]
    tuned = [c for c in small if s.tuning or not c.choose]
    found = list({(c.method, c.settings): c for c in tuned or small}.values())
    notes = []
    if small and not tuned:
        hint = "the defaults are a start, and `tunefree tune` searches for better"
        notes.append(f"Nothing that fits sets its own step size: {hint}.")
    if allowed and not small:
        least = min(allowed, key=lambda c: c.bytes_up)
        notes.append(
            f"Nothing fits {format_bytes(s.max_upload or 0)} up per client and round: the least is "
            f"{format_bytes(least.bytes_up)}, by {' '.join((least.method, *least.settings))}."
        )
    if usable and not allowed:
        notes.append("Nothing fits clients that keep nothing between rounds.")
    return Advice(s, tuple(found[:most]), tuple(notes))


def _evaluate(
    rule: AdviceRule, s: Situation, plan: Plan, x: Vector, passes: float
) -> Choice | None:
    """Return the rule's method with its costs per round; None if the plan does not allow it."""
    settings = tuple(word.format(penalty=s.penalty) for word in rule.settings)
    method = make_method(rule.method, settings)
    try:
        method.check(plan)
    except ArgumentError:
        return None
    costs, size = measure_costs(method, plan, x, passes), x.element_size()
    return Choice(
        method=rule.method,
        settings=settings,
        when=rule.when,
        reason=rule.reason,
        source=rule.source,
        choose=methods.CATALOGUE[rule.method].choose,
        bytes_up=-(-costs.later["bytes_up"] // plan.cohort),
        bytes_down=-(-costs.later["bytes_down"] // plan.cohort),
        gradients=costs.later_gradients / plan.cohort,
        client_memory=size * costs.client_numbers,
        server_memory=size * costs.server_numbers,
    )


def make_method(name: str, settings: tuple[str, ...]) -> Method:
    """Return a method from its name and settings, as KEY=VALUE."""
    return methods.get(name, **parse_method_settings(name, settings))


def label_skew(federation: Federation) -> float | None:
    """Return the label skew of clients, from 0 (identical) to 1; None without labels.

    This is the root mean square over clients of the total variation distance between a client's
    labels and all labels, less the distance that identical clients of this size have by chance.

    >>> import torch
    >>> x, owner = torch.zeros(4, 1), [0, 0, 1, 1]
    >>> label_skew(Federation(x, [0, 1, 0, 1], owner))
    0.0
    >>> round(label_skew(Federation(x, [0, 0, 1, 1], owner)), 2)
    0.41
    """
    if federation.classes is None:
        return None
    counts = federation.label_counts().double()
    sizes = counts.sum(1, keepdim=True)
    share = counts.sum(0) / counts.sum()
    distance = (counts / sizes - share).abs().sum(1) / 2
    spread = (share * (1 - share) / sizes).sqrt()  # standard deviation of a share
    chance = math.sqrt(2 / math.pi) * spread.sum(1) / 2  # mean of a normal's absolute value
    return float((distance.square() - chance.square()).mean().clamp(min=0).sqrt())


def parse_bytes(text: int | str) -> int:
    """Return a number of bytes from an int or text.

    >>> parse_bytes("1.5MB"), parse_bytes("300 kB"), parse_bytes(512)
    (1500000, 300000, 512)
    """
    form = r"\s*(\d+\.?\d*|\.\d+)\s*([kMGT]?)B?\s*"
    match = re.fullmatch(form, str(text), re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        rule = "bytes > 0, or text such as '300kB'"
        raise ArgumentError(f"advise(max_upload=...) must be {rule}, got {text!r}.")
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))
