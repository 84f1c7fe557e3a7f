"""Several directions at once: their bends add up.

    phi(y) = F(y) + sum_j bend_j(y),     d = g(y) + sum_j d_j

Differences from the paper: none; ours, so that a proximal pull and a control variate combine.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add

from ..errors import ArgumentError
from ..types import Channels, State, Vector
from .rule import Ask, Direction, Local, Plan, Round, Work


def _pack(states: list[State]) -> State:
    return {f"{j}.{name}": v for j, state in enumerate(states) for name, v in state.items()}


def _part(state: State, j: int) -> State:
    head = f"{j}."
    return {name[len(head) :]: v for name, v in state.items() if name.startswith(head)}


@dataclass(frozen=True, init=False)
class Sum(Direction):
    """Direction that adds others: `Sum(Scaffold(), Proximal(0.1))`."""

    parts: tuple[Direction, ...]

    def __init__(self, *parts: Direction) -> None:
        if len(parts) < 2 or not all(isinstance(p, Direction) for p in parts):
            raise ArgumentError(f"Sum(...) takes two or more directions, got {parts!r}.")
        names = [name for p in parts for name in p.uploads]
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"Cannot add directions that send the same channel, got {', '.join(names)}; "
                "use each of them once."
            )
        object.__setattr__(self, "parts", parts)

    @property
    def uploads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Every channel of every part."""
        return tuple(name for p in self.parts for name in p.uploads)

    @property
    def records(self) -> tuple[str, ...]:
        """Every field that some part reads."""
        return tuple(name for p in self.parts for name in p.records)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return the parts' memories side by side."""
        both = [p.init(x, plan) for p in self.parts]
        return _pack([own for own, _ in both]), _pack([shared for _, shared in both])

    def open(self, x: Vector, shared: State, t: Round, ask: Ask) -> State:
        """Open each part."""
        return _pack([p.open(x, _part(shared, j), t, ask) for j, p in enumerate(self.parts)])

    def down(self, shared: State) -> Channels:
        """Send what each part sends."""
        return _pack([p.down(_part(shared, j)) for j, p in enumerate(self.parts)])

    def local(self, x: Vector, down: Channels, own: State) -> Local:
        """Return the sum of the bends."""
        bends = [p.local(x, _part(down, j), _part(own, j)) for j, p in enumerate(self.parts)]
        return reduce(add, bends)

    def upload(self, work: Work, x: Vector, down: Channels, own: State) -> tuple[Channels, State]:
        """Send what each part sends."""
        pairs = [p.upload(work, x, _part(down, j), _part(own, j)) for j, p in enumerate(self.parts)]
        return {k: v for sent, _ in pairs for k, v in sent.items()}, _pack([o for _, o in pairs])

    def absorb(self, mean: Channels, shared: State, t: Round) -> State:
        """Let each part absorb."""
        return _pack([p.absorb(mean, _part(shared, j), t) for j, p in enumerate(self.parts)])
