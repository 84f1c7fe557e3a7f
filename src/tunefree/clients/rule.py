"""Base classes of client-side parts: the hooks that the local loop and the round call.

A *direction* modifies a client's gradient, a *step* moves along it. Both are pure functions of
rows (one per client); they see no module, data loader or device. The simulation calls them with m
rows, a client in a federation with one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.fields import Checked
from ..core.plan import Plan as Plan
from ..core.plan import Query as Query
from ..core.plan import Round as Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import row_sq
from .local_problem import LocalProblem as LocalProblem
from .local_problem import StepMap as StepMap


@dataclass(frozen=True)
class LocalObjective:
    """phi, the batch loss of a step as the direction modifies it; evaluated only on request."""

    loss: Rows  # the scaled batch loss at y (m,)
    extra: Callable[[Rows], Rows | float]  # what direction and weight decay add at a point
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
class StepContext:
    """A local step: its position in the run, its objective, and what the server sent."""

    index: int | Tensor  # k; a scalar tensor in a fused step
    round: Round  # in a fused step it tells the plan and nothing else
    factor: float | Tensor  # the schedule's in this round; a scalar tensor in a fused step
    share: Rows  # (m,) batch size over the client's samples
    steps: Rows  # (m,) local steps of each client
    objective: LocalObjective
    down: Channels


StepResult: TypeAlias = tuple[Rows, Rows, State]
"""The next y (m, d), the step sizes used (m,), and the scratch memory."""


@dataclass(frozen=True)
class LocalResult:
    """The local loop's record, one row per client."""

    x: Vector  # what the server sent (d,)
    down: Channels
    y: Rows  # where it ended (m, d)
    delta: Rows  # y - start (m, d)
    steps: Rows  # local steps taken (m,)
    loss: Rows  # mean batch loss (m,)
    lr: Rows  # mean step size (m,)
    trials: Rows  # loss evaluations beyond the gradients' own (m,)
    scratch: State  # the step's scratch memory at the end
    grad_mean: Rows | None = None  # mean of the unmodified gradients (m, d), when asked for
    grad_sq: Rows | None = None  # sum of their squared norms (m,), when asked for
    point_mean: Rows | None = None  # mean of the points they were taken at (m, d), when asked for
    grad_full: Rows | None = None  # gradient at x over all own data (m, d), when asked for
    loss_end: Rows | None = None  # loss at y over all own data (m,), when asked for
    grad_end: Rows | None = None  # gradient at y over all own data (m, d), when asked for


@dataclass(frozen=True)
class Upload:
    """A client's upload that has passed the wire."""

    sent: Channels  # what the client meant
    arrived: Channels  # what the wire made of it
    mean: Channels  # means over the cohort, those in `echo`

    def apply(self, name: str, old: Rows, new: Rows) -> Rows:
        """Return what both ends hold after the change new - old was sent: old + arrived.

        Where the wire changed nothing it is `new` itself, so that no rounding gathers over rounds.
        """
        sent, arrived = self.sent[name], self.arrived[name]
        return new if arrived is sent else torch.where(arrived == sent, new, old + arrived)


class LocalPhases(NamedTuple):
    """A client's local work in a round: `times` phases of `steps` local steps (None: K)."""

    times: int = 1
    steps: int | None = None


class ClientPart(Checked):
    """Base of directions and steps; every hook has a default that does nothing.

    Class attributes:
        uploads: Names of the vectors that `upload` sends.
        reports: Names of the scalars that `upload` sends.
        records: Names of the optional fields of `LocalResult` that `upload` reads.
        needs: Those of `delta` and `delta_sq` that `update_shared` reads.
        sends: Names of the shared state that `down` sends.
        reads: What the server rule must send down for this part.
        error_compensated: Uploads whose compression error the part compensates by itself, because
            it keeps what arrived.
        echo: Means that the server sends back to the cohort for `update_memory`.
        prepares: Whether every client works once before round 0.
        full: Whether the method is defined for full participation only.
        needs_constant_lr: Whether a learning-rate schedule would break the part.
    """

    uploads: ClassVar[tuple[str, ...]] = ()
    reports: ClassVar[tuple[str, ...]] = ()
    records: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    error_compensated: ClassVar[tuple[str, ...]] = ()
    echo: ClassVar[tuple[str, ...]] = ()
    prepares: ClassVar[bool] = False
    full: ClassVar[bool] = False
    needs_constant_lr: ClassVar[bool] = False

    @property
    def updates_memory(self) -> bool:
        """Whether `update_memory` has something to do."""
        return type(self).update_memory is not ClientPart.update_memory

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this part cannot work under, before round 0."""

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return one client's first memory, and the first shared state."""
        return {}, {}

    def start_round(self, x: Vector, shared: State, t: Round, query: Query) -> State:
        """Start a round on the server; may query the clients.

        Names that `init` lacks last for the round: `update_shared` drops them.
        """
        return shared

    def down(self, shared: State) -> Channels:
        """Return what the server sends along with x: by default, what `sends` names."""
        return {name: shared[name] for name in self.sends}

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Return what each client sends along with delta, and its memory from now on.

        A channel called "delta" replaces the plain move.
        """
        return {}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Return the memory once the upload has passed the wire and the means are known."""
        return own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Return the shared state after a round, from the means over the cohort."""
        return shared


class Direction(ClientPart, ABC):
    """Modifies the gradient of a client's local steps.

    Class attributes:
        sets: Fields of `LocalProblem` beyond shift, mu and anchor that `local_problem` sets;
            directions that set the same field cannot be added.
        needs_full_grad: Whether `local_problem` reads down["own_grad"], each client's gradient at
            x over all of its data, which never travels.
        goes_with: Server rules that the direction is defined with; empty means any.
    """

    sets: ClassVar[tuple[str, ...]] = ()
    needs_full_grad: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ()

    @property
    def has_fusible_maps(self) -> bool:
        """Whether every map of the local problem, if it has any, is a `StepMap`."""
        return not {"grad_at", "project"} & set(self.sets)

    @property
    def changes_gradient(self) -> bool:
        """Whether `local_problem` may change the gradient."""
        return True

    def local_phases(self, t: Round) -> LocalPhases:
        """Return the number of local phases before the upload, and their steps."""
        return LocalPhases()

    @abstractmethod
    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Return the problem that clients solve in this local phase."""

    def between_phases(self, result: LocalResult, own: State, t: Round) -> State:
        """Return the memory for the next phase; names that `init` lacks last for the round."""
        return own


class Step(ClientPart, ABC):
    """Moves a client along the modified gradient.

    Class attributes:
        sets_lr: Whether the step chooses its own size, so that a schedule has no effect.
        exact: Whether the step relies on `d` being the gradient of the objective; clipping would
            break it.
        consumes_grad: Whether `take` keeps no reference to `d` and evaluates no gradient of the
            objective; the engine then does not copy `d` out of its own memory.
        fusible: Whether `take` can be compiled together with the gradient: it consists of
            elementwise operations and sums over rows, has no branch on a tensor, evaluates the
            objective at y only and its slope anywhere, and of `context` reads anything but share
            and the round beside its plan. Holds for the class that defines `take`, not for
            subclasses that define their own.
    """

    sets_lr: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    consumes_grad: ClassVar[bool] = False
    fusible: ClassVar[bool] = False

    @property
    def is_fusible(self) -> bool:
        """Whether the class that defines `take` is `fusible`."""
        owner = next(c for c in type(self).__mro__ if "take" in vars(c))
        return bool(vars(owner).get("fusible", False))

    @property
    def most(self) -> int | None:
        """Most steps of a solver on the whole local batch, whatever K is; None for other steps."""
        return None

    def extra_gradients(self, steps: float) -> float:
        """Return how many gradients `take` asks for in this number of steps, for a dry run."""
        return 0.0

    def resolve(self, down: Channels, t: Round) -> tuple["Step", Round]:
        """Return the step that clients take in this round, given what the server sent."""
        return self, t

    def descent_lr(self, factor: float) -> float | None:
        """Return lr if every step is y - lr d and nothing else, else None.

        Args:
            factor: The schedule's, in this round.
        """
        return None

    def begin(self, y: Rows, down: Channels) -> State:
        """Return the step's scratch memory for one local phase, one row per client.

        Entries with a meaning: "trials" counts loss evaluations and "slopes" gradients beyond the
        loop's own, for the history; "done" stops the clients in which it is true.
        """
        return {}

    @abstractmethod
    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        """Return the next y (m, d), the step sizes used (m,) and the scratch memory."""


class LineSearch(Step):
    """A step along -d whose size is found by trials; every client searches for itself.

    A search is a dict of (m,) tensors. These have a meaning: "lr", the size of the next trial and
    in the end the one found; "open", the clients that still search; "moving", those that move.
    The hooks are elementwise functions of such tensors, without a branch on one, so that a step
    can be compiled; `context` is as in a fusible step and has `share` too.
    """

    fusible: ClassVar[bool] = True

    @property
    @abstractmethod
    def most_trials(self) -> int:
        """Most trials of a step; 0 takes the first size without one."""

    @abstractmethod
    def start_search(self, sq: Rows, here: Rows, context: StepContext, scratch: State) -> State:
        """Return the search before its first trial, from |d|^2 and phi(y)."""

    @abstractmethod
    def judge(self, value: Rows, search: State) -> State:
        """Return the search after a trial: `value` is phi(y - lr d)."""

    @abstractmethod
    def finish(self, search: State) -> State:
        """Return the scratch memory after a step."""

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        """Search until each client's trial is accepted, and go there."""
        search = self.start_search(row_sq(d), context.objective.here(), context, scratch)
        for _ in range(self.most_trials):
            search = self.judge(context.objective.at(descend(y, d, search["lr"])), search)
            if not bool(search["open"].any()):
                break
        lr, moving = search["lr"], search["moving"]
        y = torch.where(moving[:, None], descend(y, d, lr), y)
        return y, lr * moving, self.finish(search)


def descend(y: Rows, d: Rows, lr: Rows | float) -> Rows:
    """Return y - lr d in one pass, with one step size for all or one per row (m,)."""
    if isinstance(lr, Tensor):
        return torch.addcmul(y, d, lr[:, None] if lr.ndim else lr, value=-1)
    return torch.add(y, d, alpha=-float(lr))


def per_client(y: Rows, lr: float | Tensor) -> Rows:
    """Return one step size for each row of y: (m,)."""
    if isinstance(lr, Tensor):
        return lr.to(y.dtype).expand(y.shape[:1])
    return y.new_full(y.shape[:1], lr)
