"""A federated method: direction, step, server rule, wire and output, which combine freely."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Real
from typing import Any, Literal

from .. import penalties
from ..clients import Constant, Direction, Plain, Schedule, Step
from ..core.errors import (
    ArgumentError,
    cannot_use,
    check_argument,
    check_known,
    check_nonnegative,
    check_positive,
)
from ..core.plan import Plan
from ..penalties import Penalty, Zero
from ..server import Average, Averaged, Last, LastTwo, Output, Server
from ..server.aggregate import Weights
from ..wire import Choose, Dense, ErrorFeedback, Wire, parse
from .fits import STANDARD, check_fit, split_direction

Solver = Literal["steps", "exact", "armijo"] | Step
OUTPUTS: dict[str, Output] = {"last": Last(), "last-two": LastTwo(), "averaged": Averaged()}


@dataclass(frozen=True)
class DeepForm:
    """The step and the server rule that take the place of a method's own in deep networks.

    The method's own schedule goes with them; another one stays.
    """

    instead_of: tuple[Step, Server, Schedule]
    step: Step
    server: Server


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method, composed of parts.

    Args:
        direction: How a client modifies its gradient.
        step: How a client moves along the modified gradient.
        server: What the server does with the means.
        wire: How uploaded vectors are packed: a wire, or text such as "ef+topk:0.05".
        output: Which model is evaluated and shipped: a part, or "last", "last-two", "averaged".
        weights: How clients count in the means: "uniform" (alike, as in most papers) or "samples".
            None, as in FedAvg, is decided before round 0: by samples where the server averages
            uploads as they are, uniform under masks, noise and robust rules.
        schedule: Learning rate over rounds: a Schedule, or text such as "cosine+warmup:10".
        weight_decay: Adds (weight_decay / 2) |y|^2 to every client's loss, >= 0.
        clip: Longest minibatch gradient let through, > 0, or None; gradients over all data, which
            some methods ask for, are not clipped.
        name: What it is called in tables.
        deep: Its form for deep networks, if it has another one there, as `auto` does. A method with
            other parts than those that the form takes the place of has none.
    """

    direction: Direction = field(default_factory=Plain)
    step: Step = field(default_factory=Constant)
    server: Server = field(default_factory=Average)
    wire: Wire = field(default_factory=Dense)
    output: Output | Literal["last", "last-two", "averaged"] = field(default_factory=Last)
    weights: Weights | None = "uniform"
    schedule: Schedule | str = field(default_factory=Schedule)
    weight_decay: float = 0.0
    clip: float | None = None
    name: str = "custom"
    deep: DeepForm | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        if isinstance(self.wire, str):
            object.__setattr__(self, "wire", parse(self.wire))
        if isinstance(self.output, str):
            check_known("output", self.output, OUTPUTS)
            object.__setattr__(self, "output", OUTPUTS[self.output])
        for kind in (Direction, Step, Server, Wire, Output):
            name = kind.__name__.lower()
            part = getattr(self, name)
            check_argument("Method", name, part, f"a {kind.__name__}", isinstance(part, kind))
        if self.weights is not None:
            check_known("weights", self.weights, ("uniform", "samples"))
        check_nonnegative("Method", "weight_decay", self.weight_decay)
        if self.clip is not None:
            check_positive("Method", "clip", self.clip)
        check_fit(self.direction, self.step, self.server, self.rates, self.clip)
        if self.deep is not None and self.deep.instead_of[:2] != (self.step, self.server):
            object.__setattr__(self, "deep", None)

    def for_deep_networks(self) -> "Method":
        """Return the form that deep networks are trained with: mostly the method itself."""
        if self.deep is None:
            return self
        rates = Schedule() if self.rates == self.deep.instead_of[2] else self.rates
        return replace(self, step=self.deep.step, server=self.deep.server, schedule=rates)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that a `Sum` adds, or the direction itself."""
        return split_direction(self.direction)

    @property
    def leaves(self) -> tuple[Any, ...]:
        """Directions, step and server rule."""
        return (*self.directions, self.step, self.server)

    @property
    def _parts(self) -> tuple[Direction, Step, Server]:
        return self.direction, self.step, self.server

    @property
    def vectors(self) -> tuple[str, ...]:
        """Vectors that a client sends up."""
        needs = {name for p in self._parts for name in p.needs}
        delta = ("delta",) if needs & set(STANDARD) else ()
        return tuple(dict.fromkeys((*delta, *self.direction.uploads, *self.step.uploads)))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Scalars that a client sends up."""
        square = ("delta_sq",) if any("delta_sq" in p.needs for p in self._parts) else ()
        return (*square, *self.direction.reports, *self.step.reports)

    def channels(self, preparing: bool = False) -> tuple[str, ...]:
        """Everything that a client sends up, vectors first; before round 0 only parts send."""
        if not preparing:
            return (*self.vectors, *self.scalars)
        vectors = (*self.direction.uploads, *self.step.uploads)
        return (*vectors, *self.direction.reports, *self.step.reports)

    @property
    def records(self) -> frozenset[str]:
        """Optional fields of the local loop's record that some part reads."""
        return frozenset((*self.direction.records, *self.step.records))

    def descent_lr(self, factor: float, step: Step | None = None) -> float | None:
        """Return lr if a local step is y - lr grad F(y) and grad F has no other use, else None.

        An engine may then take whole steps itself. `step` is the one of a round, if it is known.
        """
        changes = self.direction.changes_gradient or self.weight_decay or self.clip is not None
        if changes or self.records & {"grad_mean", "grad_sq", "point_mean"}:
            return None
        return (step or self.step).descent_lr(factor)

    @property
    def is_fusible(self) -> bool:
        """Whether an engine can compile local steps as a whole, with their direction and step."""
        return self.step.is_fusible and self.direction.has_fusible_maps

    @property
    def echo(self) -> tuple[str, ...]:
        """Means that are sent back to the cohort."""
        return tuple(dict.fromkeys((*self.direction.echo, *self.step.echo)))

    @property
    def prepares(self) -> bool:
        """Whether everyone works once before round 0."""
        return self.direction.prepares or self.step.prepares

    @property
    def full(self) -> bool:
        """Whether everyone must take part in every round."""
        return any(p.full for p in self._parts)

    @property
    def penalty(self) -> Penalty | None:
        """The regulariser h, where some part has one."""
        found = (getattr(p, "penalty", None) for p in self.leaves)
        return next((p for p in found if p is not None and p != Zero()), None)

    def prox_step(self, plan: Plan) -> float:
        """Return the step of the proximal map, for methods with a penalty."""
        own = getattr(self.server, "alpha_at", None)
        lr = next((p.lr for p in self.directions if hasattr(p, "lr")), 1.0)
        return float(lr * plan.steps if own is None else own(plan))

    def check(self, plan: Plan) -> None:
        """Refuse a plan that some part cannot work under, before round 0."""
        if self.full and not plan.full:
            cohort = f"{plan.cohort} of {plan.clients} clients a round"
            why = "it is defined for full participation; use cohort=None (--cohort 0)"
            raise cannot_use(self.name, cohort, why)
        for part in self._parts:
            part.check(plan)
        bare = self.wire.inner if isinstance(self.wire, ErrorFeedback) else self.wire
        owing = bare is not self.wire or bool(self.direction.error_compensated)
        known = bare.lossless or isinstance(bare, Choose)  # which picks a wire for every upload
        if owing and not known and bare.contraction(plan.layout) is None:
            raise cannot_use(
                repr(bare),
                "error feedback" if bare is not self.wire else self.name,
                "its error is added to the next round and may grow from round to round; use a "
                "compressor that never lengthens the error, such as TopK, Sign or "
                "RandK(unbiased=False)",
            )

    def wire_of(self, channel: str) -> Wire:
        """Return the wire of a channel: error feedback only where a part has none of its own."""
        own = channel in self.direction.error_compensated
        return self.wire.inner if own and isinstance(self.wire, ErrorFeedback) else self.wire

    @property
    def rates(self) -> Schedule:
        """The schedule, parsed."""
        assert isinstance(self.schedule, Schedule)
        return self.schedule

    @property
    def shipped(self) -> Output:
        """The output part, resolved."""
        assert isinstance(self.output, Output)
        return self.output

    @property
    def resolved_weights(self) -> Weights:
        """The weights, resolved, as `training.decide.decide_method` returns them."""
        assert self.weights is not None
        return self.weights

    def describe(self) -> dict[str, Any]:
        """Return the parts and their settings as plain data, for records and comparison."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "deep"}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {"part": type(value).__name__, **parts}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, str | Real | None):
        return value
    if callable(value) and hasattr(value, "__qualname__"):  # a rule given as a function
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)  # a part of the user's own that is no dataclass: its class and fields
    inside = {k: _plain(v) for k, v in getattr(value, "__dict__", {}).items()}
    return {"part": f"{kind.__module__}.{kind.__qualname__}", **inside}


def read_wire(wire: Wire | str) -> Wire:
    """Return a wire, or the one that a text such as "topk:0.05" stands for."""
    if not isinstance(wire, Wire | str):
        raise ArgumentError(f"compressor=... must be a wire or its text, got {wire!r}.")
    return parse(wire)


def read_penalty(penalty: Penalty | str | None) -> Penalty:
    """Return a penalty, or the one that a text such as "l1:1e-4" stands for."""
    if not isinstance(penalty, Penalty | str | None):
        raise ArgumentError(f"penalty=... must be a penalty or its text, got {penalty!r}.")
    return Zero() if penalty is None else penalties.get(penalty)
