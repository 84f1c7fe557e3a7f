"""Advice: which methods to try on this data, under these constraints, why, and at what cost.

What is better is written in `advise_rules.RULES`. What is possible is not written anywhere: every
method is rehearsed, and dropped if it sends more than it may, needs memory that clients lack, or
clients that are absent.
"""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .. import methods
from ..core.errors import ArgumentError, check_between, check_int
from ..core.plan import Plan
from ..core.text import human
from ..core.types import Vector
from ..data.batches import BatchPlan
from ..data.federation import Federation
from ..methods import Method
from ..models.problem import Problem
from ..rounds import init_server_state, run_round
from ..simulation.rehearse import DryRun
from ..simulation.simulate import mean_steps
from ..training.command import parse_method_settings
from .rules import RULES, Rule, Situation


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A method to try; costs are per client and round, memory in bytes between rounds.

    Attributes:
        method: Its name.
        settings: Its settings that differ from the defaults, as KEY=VALUE.
        when: The situation in which it is advised.
        reason: Why.
        source: How we know.
        choose: Settings with a default that no default can set for every problem.
        bytes_up: Sent by a client of the cohort.
        bytes_down: Received by one.
        gradients: Minibatch gradients taken by one.
        client_memory: Kept by every client.
        server_memory: Kept by the server, the model included.
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
        """Return the method, as `fit` takes it."""
        return make(self.method, self.settings)

    def command(self, *words: str, verb: str = "run") -> str:
        """Return the command that runs it, with further words for the data and the model."""
        pairs = (word for setting in self.settings for word in ("--set", setting))
        return shlex.join(["tunefree", verb, *words, "--method", self.method, *pairs])

    def __str__(self) -> str:
        lines = [
            " ".join((self.method, *self.settings)),
            self.reason,
            f"Advised where {self.when}; see {self.source}.",
            f"A client, a round: {human(self.bytes_up)} up, {human(self.bytes_down)} down, "
            f"{self.gradients:g} gradients; keeps {human(self.client_memory)}.",
        ]
        if self.choose:
            lines.append(f"To choose: {', '.join(self.choose)}.")
        return "\n   ".join(lines)


@dataclass(frozen=True)
class Advice:
    """What to try, best first; and what was given up to find it."""

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
    """Return the methods to try on this data under these constraints, best first.

    Args:
        model: Any module.
        federation: Who owns which samples.
        cohort: Clients per round; None is everyone.
        steps: Local steps of every client (20 unless epochs is given).
        epochs: Passes over each client's own data, instead of steps.
        batch: Samples per local step; None is all of a client's data.
        tuning: Whether learning rates may be searched for.
        stateless: Whether clients keep nothing between rounds.
        penalty: A regulariser in words, such as "l1:1e-4" for a sparse model.
        max_upload: Bytes that a client may send in a round, or text such as "1MB".
        skew: How much clients differ, in [0, 1); measured on the labels if None.
        most: How many methods at most.

    >>> fed = Federation(torch.eye(4), [0, 1, 0, 1], owner=[0, 1, 2, 3])
    >>> [choice.method for choice in advise(nn.Linear(4, 2), fed, cohort=2)]
    ['auto', 'fedsps', 'feddowg']
    """
    check_int("advise", "most", most)
    if cohort is not None:
        check_int("advise", "cohort", cohort)
        if cohort > federation.clients:
            raise ArgumentError(
                f"advise(cohort=...) must be at most the number of clients, {federation.clients}, "
                f"got {cohort}."
            )
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
        max_upload=None if max_upload is None else read_bytes(max_upload),
    )
    steps = 20 if steps is None and epochs is None else steps
    cut = BatchPlan(batch=batch, steps=steps, epochs=epochs)
    plan = Plan(
        situation.clients,
        situation.cohort,
        100,
        mean_steps(federation, cut),
        problem.layout,
        batch=batch,
        held=federation.held is not None,
    )
    width = int(federation.sizes.max()) if batch is None else batch
    passes = float((-(-federation.sizes // width)).double().mean())
    return _choose(situation, plan, problem.start, passes, most)


def _choose(s: Situation, plan: Plan, x: Vector, passes: float, most: int) -> Advice:
    """Take the first that can be used; those with something to choose only if there must be."""
    seen = [_rehearsed(rule, s, plan, x, passes) for rule in RULES if rule.holds(s)]
    able = [c for c in seen if c is not None]
    kept = [c for c in able if not (s.stateless and c.client_memory)]
    sent = [c for c in kept if s.max_upload is None or c.bytes_up <= s.max_upload]
    free = [c for c in sent if s.tuning or not c.choose]
    found = list({(c.method, c.settings): c for c in free or sent}.values())
    notes = []
    if sent and not free:
        notes.append(
            "Nothing that fits sets its own step size: the defaults are a start, and `tunefree "
            "tune` searches for better."
        )
    if kept and not sent:
        least = min(kept, key=lambda c: c.bytes_up)
        notes.append(
            f"Nothing fits {human(s.max_upload or 0)} up per client and round: the least is "
            f"{human(least.bytes_up)}, by {' '.join((least.method, *least.settings))}."
        )
    if able and not kept:
        notes.append("Nothing fits clients that keep nothing between rounds.")
    return Advice(s, tuple(found[:most]), tuple(notes))


def _rehearsed(rule: Rule, s: Situation, plan: Plan, x: Vector, passes: float) -> Choice | None:
    """Return the rule's method with what a round costs; None where it cannot be used."""
    settings = tuple(word.format(penalty=s.penalty) for word in rule.settings)
    method = make(rule.method, settings)
    try:
        method.check(plan)
    except ArgumentError:
        return None
    crew = DryRun(method, plan, x, passes)
    ids, everyone = torch.arange(plan.cohort), torch.arange(plan.clients)
    now, _ = run_round(method, plan, init_server_state(method, x, plan), crew, ids, everyone)
    before = crew.gradients
    now, row = run_round(method, plan, now, crew, ids, everyone)
    size = x.element_size()
    kept = {id(v): v for v in now.tensors().values()}.values()
    return Choice(
        method=rule.method,
        settings=settings,
        when=rule.when,
        reason=rule.reason,
        source=rule.source,
        choose=methods.CATALOGUE[rule.method].choose,
        bytes_up=-(-row["bytes_up"] // plan.cohort),
        bytes_down=-(-row["bytes_down"] // plan.cohort),
        gradients=(crew.gradients - before) / plan.cohort,
        client_memory=size * sum(v.numel() for v in crew.own.values()),
        server_memory=size * sum(v.numel() for v in kept),
    )


def make(name: str, settings: tuple[str, ...]) -> Method:
    """Return a method from its name and settings in words."""
    return methods.get(name, **parse_method_settings(name, settings))


def label_skew(federation: Federation) -> float | None:
    """Return how far a client's labels are from everybody's, 0 (alike) to 1; None without labels.

    The root mean square, over clients, of the total variation distance, less what clients of their
    size show by chance.

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
    spread = (share * (1 - share) / sizes).sqrt()  # of a share that is drawn
    chance = math.sqrt(2 / math.pi) * spread.sum(1) / 2  # mean of a normal's absolute value
    return float((distance.square() - chance.square()).mean().clamp(min=0).sqrt())


def read_bytes(text: int | str) -> int:
    """Return a number of bytes, given as one or in words.

    >>> read_bytes("1.5MB"), read_bytes("300 kB"), read_bytes(512)
    (1500000, 300000, 512)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([kMGT]?)B?\s*", str(text), re.IGNORECASE)
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if not match or number <= 0:
        raise ArgumentError(
            f"advise(max_upload=...) must be bytes > 0, or text such as '300kB', got {text!r}."
        )
    return int(number * 1000 ** " KMGT".index(match[2].upper() or " "))
