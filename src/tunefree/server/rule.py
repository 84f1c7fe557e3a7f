"""What a server rule is: it sees weighted means over the cohort, never a client."""

from abc import ABC, abstractmethod
from typing import ClassVar

from ..clients.rule import Plan, Round
from ..types import Channels, State, Trace, Vector


class Server(ABC):
    """Turns the means into the next x; hooks do nothing unless a rule says otherwise.

    `needs` names the means it reads. `delta` (the mean move) and `delta_sq` (the mean squared
    length of the moves) are there for every method; others come from directions and steps.
    """

    needs: ClassVar[tuple[str, ...]] = ("delta",)

    def init(self, x: Vector, plan: Plan) -> State:
        """Return the first memory."""
        return {}

    @abstractmethod
    def step(
        self, x: Vector, mean: Channels, state: State, t: Round
    ) -> tuple[Vector, State, Trace]:
        """Return the next x, the memory from now on, and numbers for the history."""
        ...


class Output:
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
