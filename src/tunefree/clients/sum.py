"""Several directions at once: their local problems add up.

    phi(y) = F(y) + sum_j phi_j(y),     d = g(y) + sum_j d_j

Differences from the paper: none; ours, so that a proximal pull and a control variate combine.
"""

from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from ..core.errors import ArgumentError
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector, select_prefix
from .rule import Direction, LocalPhases, LocalProblem, LocalResult, Upload


def _pack(states: list[State]) -> State:
    return {f"{j}.{name}": v for j, state in enumerate(states) for name, v in state.items()}


def _joined(name: str) -> Any:
    """Return a property: the names of all parts, each once."""
    return property(
        lambda self: tuple(n for p in self.parts for n in getattr(p, name)),
        doc="What the parts name, side by side.",
    )


def _any(name: str) -> Any:
    """Return a property: whether it holds for any part."""
    return property(
        lambda self: any(getattr(p, name) for p in self.parts), doc="Whether any part is so."
    )


@dataclass(frozen=True, init=False)
class Sum(Direction):
    """Direction that adds others: `Sum(Scaffold(), Proximal(0.1))`."""

    parts: tuple[Direction, ...]

    def __init__(self, *parts: Direction) -> None:
        if len(parts) < 2 or not all(isinstance(p, Direction) for p in parts):
            raise ArgumentError(f"Sum(...) takes two or more directions, got {parts!r}.")
        object.__setattr__(self, "parts", parts)
        sent = (*self.uploads, *self.reports)
        if len(set(sent)) < len(sent):
            raise ArgumentError(
                f"Cannot add directions that send the same channel, got {', '.join(sent)}; "
                "use each of them once."
            )
        others = [p for p in parts if not p.prepares]
        busy = [
            p
            for p in others
            if p.uploads or p.reports or type(p).start_round is not Direction.start_round
        ]
        if busy and len(others) < len(parts):
            raise ArgumentError(
                f"Cannot add {type(busy[0]).__name__} to a direction for which everyone works "
                "before round 0. This is because it would miss that pass; use one of them."
            )
        if len(set(self.sets)) < len(self.sets):
            raise ArgumentError(
                "Cannot add directions that set the same thing of a local step, got "
                f"{', '.join(self.sets)}; use one of them."
            )

    uploads = _joined("uploads")
    reports = _joined("reports")
    needs = _joined("needs")
    reads = _joined("reads")
    error_compensated = _joined("error_compensated")
    goes_with = _joined("goes_with")
    echo = _joined("echo")
    sets = _joined("sets")
    records = _joined("records")
    prepares = _any("prepares")
    full = _any("full")
    needs_constant_lr = _any("needs_constant_lr")
    updates_memory = _any("updates_memory")
    needs_full_grad = _any("needs_full_grad")

    @property
    def has_fusible_maps(self) -> bool:
        """Whether that holds for all parts."""
        return all(p.has_fusible_maps for p in self.parts)

    def check(self, plan: Plan) -> None:
        for part in self.parts:
            part.check(plan)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        both = [p.init(x, plan) for p in self.parts]
        return _pack([own for own, _ in both]), _pack([shared for _, shared in both])

    def start_round(self, x: Vector, shared: State, t: Round, query: Query) -> State:
        return _pack([p.start_round(x, mine, t, query) for p, mine in self._split(shared)])

    def down(self, shared: State) -> Channels:
        return _pack([p.down(mine) for p, mine in self._split(shared)])

    def local_phases(self, t: Round) -> LocalPhases:
        found = (p.local_phases(t) for p in self.parts)
        return next((phases for phases in found if phases != LocalPhases()), LocalPhases())

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        each = zip(self._split(own), self._down(down), strict=True)
        return reduce(add, [p.local_problem(x, sent, mine, t) for (p, mine), sent in each])

    def between_phases(self, result: LocalResult, own: State, t: Round) -> State:
        each = zip(self._split(own), self._results(result), strict=True)
        return _pack([p.between_phases(part, mine, t) for (p, mine), part in each])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        each = zip(self._split(own), self._results(result), strict=True)
        pairs = [p.upload(part, mine, t) for (p, mine), part in each]
        return {k: v for sent, _ in pairs for k, v in sent.items()}, _pack([o for _, o in pairs])

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        return _pack([p.update_memory(up, mine, t) for p, mine in self._split(own)])

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        return _pack([p.update_shared(mean, mine, t) for p, mine in self._split(shared)])

    def _split(self, state: State) -> list[tuple[Direction, State]]:
        """Return each part with its own entries."""
        return [(p, select_prefix(state, str(j))) for j, p in enumerate(self.parts)]

    def _down(self, down: Channels) -> list[Channels]:
        """Return what each part was sent; what the server's rule sent is for everyone."""
        common = {name: v for name, v in down.items() if not name.partition(".")[0].isdigit()}
        return [common | mine for _, mine in self._split(down)]

    def _results(self, result: LocalResult) -> list[LocalResult]:
        return [replace(result, down=down) for down in self._down(result.down)]
