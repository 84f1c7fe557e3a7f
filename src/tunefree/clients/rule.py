"""What a client-side part is: hooks that the one local loop and the one round call.

A *direction* bends a client's gradient, a *step* says how far to go along it. Both are pure:
they see rows (one per client), never a module, a loader, a device or a loop over clients. The
simulator calls them with m rows, a real client with one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from ..models.problem import Layout
from ..types import Channels, Rows, State, Vector


@dataclass(frozen=True)
class Plan:
    """What is known before round 0; schedules and defaults are bound to it once."""

    clients: int  # N
    cohort: int  # S
    rounds: int  # T
    steps: float  # K; its mean over clients where they differ
    layout: Layout


@dataclass(frozen=True)
class Round:
    """One round: its number, the weight of those who answered, the schedule's factor."""

    index: int
    fraction: float  # 1 under full participation, cohort / clients under uniform weights
    factor: float = 1.0  # multiplies every learning rate


@dataclass(frozen=True)
class Local:
    """How the batch loss F is bent; closed under `+`.

    phi(y) = F(y) + <tilt, y> + (mu / 2) |y - centre|^2
    d      = g(y) + tilt + mu (y - centre)
    """

    tilt: Rows | None = None
    mu: float = 0.0
    centre: Vector | None = None

    def __add__(self, other: "Local") -> "Local":
        tilts = [t for t in (self.tilt, other.tilt) if t is not None]
        mu = self.mu + other.mu
        pulls = [(a.mu, a.centre) for a in (self, other) if a.centre is not None and a.mu > 0]
        centre = None
        if len(pulls) == 2 and pulls[0][1] is not pulls[1][1]:
            (m1, c1), (m2, c2) = pulls
            centre = (m1 * c1 + m2 * c2) / mu  # same gradient; phi differs by a constant
        elif pulls:
            centre = pulls[0][1]
        return Local(sum(tilts[1:], tilts[0]) if tilts else None, mu, centre)

    def value(self, y: Rows) -> Rows | float:
        """Return what is added to the batch loss at y: (m,)."""
        out: Rows | float = 0.0
        if self.tilt is not None:
            out = out + (self.tilt * y).sum(-1)
        if self.centre is not None and self.mu > 0:
            out = out + (self.mu / 2) * (y - self.centre).square().sum(-1)
        return out

    def bend(self, grad: Rows, y: Rows) -> Rows:
        """Return the bent gradient at y: (m, d)."""
        if self.tilt is not None:
            grad = grad + self.tilt
        if self.centre is not None and self.mu > 0:
            grad = grad + self.mu * (y - self.centre)
        return grad


@dataclass(frozen=True)
class Tick:
    """Where a local step stands."""

    index: int  # k
    factor: float  # the schedule's, for this round
    share: Rows  # (m,) batch size over the client's samples


@dataclass(frozen=True)
class Phi:
    """The bent batch loss of a step; evaluated only where a step asks for it."""

    loss: Rows  # the batch loss at y (m,)
    extra: Callable[[Rows], Rows | float]  # what the bend and weight decay add at a point
    value: Callable[[Rows], Rows]  # the batch loss at another point, same batch and masks
    y: Rows

    def here(self) -> Rows:
        """Return phi(y): (m,)."""
        return self.loss + self.extra(self.y)

    def at(self, z: Rows) -> Rows:
        """Return phi(z): (m,)."""
        return self.value(z) + self.extra(z)


@dataclass(frozen=True)
class Work:
    """The local loop's record, one row per client."""

    delta: Rows  # y - x (m, d)
    steps: Rows  # local steps taken (m,)
    loss: Rows  # mean batch loss (m,)
    lr: Rows  # mean step size (m,)
    trials: Rows  # loss evaluations beyond the gradients' own (m,)
    grad_mean: Rows | None = None  # mean of the unbent gradients (m, d), when asked for
    grad_sq: Rows | None = None  # sum of their squared norms (m,), when asked for
    grad_full: Rows | None = None  # gradient at x over all own data (m, d), when asked for


Who = Literal["cohort", "all", "held"]
What = Literal["loss", "grad", "grad_sq"]


class Ask(Protocol):
    """An exchange inside a round: points go out, means come back, bytes are counted."""

    def __call__(self, what: What, at: list[Vector], who: Who = "cohort") -> list[Tensor]:
        """Return the weighted mean over clients' full data of `what` at each point."""
        ...


class ClientPart:
    """What directions and steps share: every hook does nothing unless a part says otherwise.

    `uploads` names the channels that `upload` sends.
    """

    uploads: ClassVar[tuple[str, ...]] = ()

    @property
    def records(self) -> tuple[str, ...]:
        """Names of the optional fields of `Work` that `upload` reads."""
        return ()

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return one client's first memory, and the first shared state."""
        return {}, {}

    def open(self, x: Vector, shared: State, t: Round, ask: Ask) -> State:
        """Start a round on the server; may ask the clients."""
        return shared

    def down(self, shared: State) -> Channels:
        """Return what the server sends along with x."""
        return {}

    def upload(self, work: Work, x: Vector, down: Channels, own: State) -> tuple[Channels, State]:
        """Return what each client sends along with delta, and its memory from now on."""
        return {}, own

    def absorb(self, mean: Channels, shared: State, t: Round) -> State:
        """Return the shared state after a round, from the means over the cohort."""
        return shared


class Direction(ClientPart, ABC):
    """Bends the gradient."""

    @abstractmethod
    def local(self, x: Vector, down: Channels, own: State) -> Local:
        """Return the bend that holds for this round's local work."""
        ...


class Step(ClientPart, ABC):
    """Moves along the bent gradient.

    `sets_lr`: the step finds its own size, so that a schedule has nothing to act on.
    `exact`: it relies on `d` being the gradient of `phi`, so that clipping would break it.
    """

    sets_lr: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def begin(self, y: Rows, down: Channels) -> State:
        """Return the step's scratch memory for one round, one row per client.

        An entry "trials" counts loss evaluations beyond the gradients' own, for the history.
        """
        return {}

    @abstractmethod
    def take(
        self, y: Rows, d: Rows, phi: Phi, tick: Tick, down: Channels, scratch: State
    ) -> tuple[Rows, Rows, State]:
        """Return the next y (m, d), the step sizes used (m,) and the scratch memory."""
        ...


def row_sq(rows: Rows) -> Rows:
    """Return the squared Euclidean norm of each row: (m,)."""
    squares: Rows = torch.linalg.vecdot(rows, rows)
    return squares


def along(y: Rows, d: Rows, lr: Rows) -> Rows:
    """Return y - lr d in one pass, with one step size per row (m,)."""
    return torch.addcmul(y, d, -lr[:, None])
