"""What a client-side part is: hooks that the one local loop and the one round call.

A *direction* bends a client's gradient, a *step* says how far to go along it. Both are pure:
they see rows (one per client), never a module, a loader, a device or a loop over clients. The
simulator calls them with m rows, a real client with one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.plan import Ask as Ask
from ..core.plan import Plan as Plan
from ..core.plan import Round as Round
from ..core.types import Channels, Rows, State, Vector
from .bend import Local as Local


@dataclass(frozen=True)
class Tick:
    """Where a local step stands."""

    index: int  # k
    round: Round
    share: Rows  # (m,) batch size over the client's samples
    steps: Rows  # (m,) local steps of each client

    @property
    def factor(self) -> float:
        """The schedule's factor in this round."""
        return self.round.factor


@dataclass(frozen=True)
class Phi:
    """The bent batch loss of a step; evaluated only where a step asks for it."""

    loss: Rows  # the scaled batch loss at y (m,)
    extra: Callable[[Rows], Rows | float]  # what the bend and weight decay add at a point
    value: Callable[[Rows], Rows]  # the scaled batch loss elsewhere, same batch and masks
    y: Rows
    slope: Callable[[Rows], Rows] | None = None  # d at another point, same batch and masks

    def here(self) -> Rows:
        """Return phi(y): (m,)."""
        return self.loss + self.extra(self.y)

    def at(self, z: Rows) -> Rows:
        """Return phi(z): (m,)."""
        return self.value(z) + self.extra(z)


@dataclass(frozen=True)
class Work:
    """The local loop's record, one row per client."""

    y: Rows  # where it ended (m, d)
    delta: Rows  # y - start (m, d)
    steps: Rows  # local steps taken (m,)
    loss: Rows  # mean batch loss (m,)
    lr: Rows  # mean step size (m,)
    trials: Rows  # loss evaluations beyond the gradients' own (m,)
    scratch: State  # the step's scratch memory at the end
    grad_mean: Rows | None = None  # mean of the unbent gradients (m, d), when asked for
    grad_sq: Rows | None = None  # sum of their squared norms (m,), when asked for
    point_mean: Rows | None = None  # mean of the points they were taken at (m, d), when asked for
    grad_full: Rows | None = None  # gradient at x over all own data (m, d), when asked for
    loss_end: Rows | None = None  # loss at y over all own data (m,), when asked for
    grad_end: Rows | None = None  # gradient at y over all own data (m, d), when asked for


class Turns(NamedTuple):
    """How a client works between two talks: `times` turns of `steps` local steps (None: K)."""

    times: int = 1
    steps: int | None = None


class ClientPart:
    """What directions and steps share: every hook does nothing unless a part says otherwise.

    `uploads` names the vectors and `reports` the scalars that `upload` sends; `needs` those of
    `delta` and `delta_sq` that `absorb` reads; `reads` what the server's rule must send down for
    it; `echo` the means that the server sends back to the cohort for `keep`; `settles` the uploads
    whose loss on a wire the part makes up for by itself, since it keeps what arrived. `prepares`:
    everyone works once before round 0. `full`: the method is defined for full participation alone.
    `steady`: a schedule of learning rates would break it.
    """

    uploads: ClassVar[tuple[str, ...]] = ()
    reports: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    settles: ClassVar[tuple[str, ...]] = ()
    echo: ClassVar[tuple[str, ...]] = ()
    prepares: ClassVar[bool] = False
    full: ClassVar[bool] = False
    steady: ClassVar[bool] = False

    @property
    def records(self) -> tuple[str, ...]:
        """Names of the optional fields of `Work` that `upload` reads."""
        return ()

    @property
    def keeps(self) -> bool:
        """Whether `keep` has something to do."""
        return type(self).keep is not ClientPart.keep

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this part cannot work under, before round 0."""

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return one client's first memory, and the first shared state."""
        return {}, {}

    def open(self, x: Vector, shared: State, t: Round, ask: Ask) -> State:
        """Start a round on the server; may ask the clients.

        Names that `init` lacks last for the round: `absorb` drops them.
        """
        return shared

    def down(self, shared: State) -> Channels:
        """Return what the server sends along with x."""
        return {}

    def upload(
        self, work: Work, x: Vector, down: Channels, own: State, t: Round
    ) -> tuple[Channels, State]:
        """Return what each client sends along with delta, and its memory from now on.

        A channel called "delta" replaces the plain move.
        """
        return {}, own

    def keep(
        self, sent: Channels, arrived: Channels, mean: Channels, own: State, t: Round
    ) -> State:
        """Return the memory once the upload has passed the wire and the means are known.

        `sent` is what the client meant, `arrived` what the wire made of it.
        """
        return own

    def absorb(self, mean: Channels, shared: State, t: Round) -> State:
        """Return the shared state after a round, from the means over the cohort."""
        return shared


class Direction(ClientPart, ABC):
    """Bends the gradient.

    `sets` names what of `Local` beyond tilt and pull it sets; two that set the same do not add.
    `sees_grad`: `local` finds each client's gradient at x over all of its data in
    down["own_grad"], which never travels. `goes_with` names the server rules it is defined with;
    none means any.
    """

    sets: ClassVar[tuple[str, ...]] = ()
    sees_grad: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ()

    @property
    def bends(self) -> bool:
        """Whether `local` may return a bend."""
        return True

    def turns(self, t: Round) -> Turns:
        """Return how much a client works before it talks."""
        return Turns()

    @abstractmethod
    def local(self, x: Vector, down: Channels, own: State, t: Round) -> Local:
        """Return the bend that holds for this turn's local work."""
        ...

    def between(self, work: Work, x: Vector, down: Channels, own: State, t: Round) -> State:
        """Return the memory for the next turn; names that `init` lacks last for the round."""
        return own


class Step(ClientPart, ABC):
    """Moves along the bent gradient.

    `sets_lr`: the step finds its own size, so that a schedule has nothing to act on.
    `exact`: it relies on `d` being the gradient of `phi`, so that clipping would break it.
    `forgets`: once `take` returns, nothing of `d` itself is left (in the scratch memory, say), and
    `take` asks `phi` for no slope; the engine then need not copy `d` out of its own memory.
    """

    sets_lr: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    forgets: ClassVar[bool] = False

    @property
    def most(self) -> int | None:
        """Most steps of a solver on the whole local batch, whatever K is; None for other steps."""
        return None

    def rate(self, factor: float) -> float | None:
        """Return lr where a step is y - lr d and nothing else, whatever happens on the way.

        Args:
            factor: The schedule's, in this round.
        """
        return None

    def begin(self, y: Rows, down: Channels) -> State:
        """Return the step's scratch memory for one turn, one row per client.

        Entries with a meaning: "trials" counts loss evaluations and "slopes" gradients beyond the
        loop's own, for the history; "done" stops the clients in which it is true.
        """
        return {}

    @abstractmethod
    def take(
        self, y: Rows, d: Rows, phi: Phi, tick: Tick, down: Channels, scratch: State
    ) -> tuple[Rows, Rows, State]:
        """Return the next y (m, d), the step sizes used (m,) and the scratch memory."""
        ...


def settled(old: Rows, new: Rows, sent: Rows, arrived: Rows) -> Rows:
    """Return what both ends hold after the change new - old was sent: old + arrived.

    Where the wire changed nothing it is `new` itself, so that no rounding gathers over rounds.
    """
    return new if arrived is sent else torch.where(arrived == sent, new, old + arrived)


def along(y: Rows, d: Rows, lr: Rows | float) -> Rows:
    """Return y - lr d in one pass, with one step size for all or one per row (m,)."""
    if isinstance(lr, Tensor):
        return torch.addcmul(y, d, lr[:, None], value=-1)
    return torch.add(y, d, alpha=-float(lr))
