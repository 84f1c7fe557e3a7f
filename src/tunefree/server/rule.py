"""What a server rule is: it sees weighted means over the cohort, never a client."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

from ..core.fields import Checked
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, Metrics, State, Vector

ServerUpdate: TypeAlias = tuple[Vector, State, Metrics]
"""The next x, the memory from now on, and numbers for the history."""


class Server(Checked, ABC):
    """Computes the next x from the means; by default, hooks do nothing.

    `needs` names the means it reads. `delta` (the mean move) and `delta_sq` (the mean squared
    length of the moves) exist with every method; others come from directions and steps.
    `sends` names what `down` adds to x. `euclidean`: the move is a multiple of the means, so that a
    proximal map after it means what it says. `goes_with` names the directions it is defined with;
    none means any. `full` and `needs_constant_lr`: as for clients' parts.
    """

    needs: ClassVar[tuple[str, ...]] = ("delta",)
    sends: ClassVar[tuple[str, ...]] = ()
    euclidean: ClassVar[bool] = True
    goes_with: ClassVar[tuple[str, ...]] = ()
    full: ClassVar[bool] = False
    needs_constant_lr: ClassVar[bool] = False

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this rule cannot work under, before round 0."""

    def init(self, x: Vector, plan: Plan) -> State:
        """Return the first memory."""
        return {}

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        """Take in what everyone sent before round 0, where a client part prepares."""
        return x, state

    def cohort_round(self, state: State, t: Round) -> int:
        """Return the index of the cohort that takes part; another round's gives its clients."""
        return t.index

    def start_round(self, x: Vector, state: State, t: Round, query: Query) -> State:
        """Start a round; may query the clients."""
        return state

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Return what is sent to the cohort; a rule whose clients hold x leaves it out."""
        return {"x": x} | {name: state[name] for name in self.sends}

    @abstractmethod
    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        """Return the next x, the memory from now on, and numbers for the history."""

    def recover(self, x: Vector, state: State, t: Round) -> tuple[Vector, State] | None:
        """Return x and memory to go on from after a round that was not finite; None ends the run.

        x and the memory are those before the round.
        """
        return None

    def output(self, x: Vector, state: State) -> Vector:
        """Return the model that x stands for."""
        return x


def delegate_to_inner(name: str) -> Any:
    """Return a property of a rule around another one, `inner`: as the other rule has it."""
    return property(lambda self: getattr(self.inner, name), doc="As the inner rule.")


class Output(Checked):
    """Chooses the model that is evaluated and shipped; training goes on from x."""

    def init(self, x: Vector) -> State:
        """Return the first memory, before any round."""
        return {}

    def update(self, x: Vector, state: State, t: Round) -> State:
        """Return the memory after a round that ended at x."""
        return state

    def value(self, x: Vector, state: State) -> Vector:
        """Return the model to ship."""
        return x
