"""A method is a product of small parts that combine freely wherever the mathematics allows."""

from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any, Literal

from .. import penalties
from ..clients import Constant, Direction, Plain, Schedule, Step
from ..clients.rule import Plan
from ..errors import ArgumentError, not_negative, positive, unknown
from ..penalties import Penalty, Zero
from ..server import Average, Averaged, Last, LastTwo, Output, Server
from ..server.aggregate import Weights
from ..wire import Choose, Dense, ErrorFeedback, Wire, parse

OUTPUTS: dict[str, Output] = {"last": Last(), "last-two": LastTwo(), "averaged": Averaged()}
STANDARD = ("delta", "delta_sq")  # means that exist whatever the parts


@dataclass(frozen=True, kw_only=True)
class Method:
    """One federated method: parts that combine freely wherever the mathematics allows.

    Args:
        direction: How a client bends its gradient.
        step: How far a client goes along it.
        server: What the server does with the means.
        wire: How uploaded vectors are packed: a wire, or text such as "ef+topk:0.05".
        output: Which model is evaluated and shipped: a part, or "last", "last-two", "averaged".
        weights: "uniform" (as in the papers) or "samples": how clients count in the means.
        schedule: Learning rate over rounds: a Schedule, or text such as "cosine+warmup:10".
        weight_decay: Adds (weight_decay / 2) |y|^2 to every client's loss, >= 0.
        clip: Longest minibatch gradient let through, > 0, or None.
        name: What it is called in tables.
    """

    direction: Direction = field(default_factory=Plain)
    step: Step = field(default_factory=Constant)
    server: Server = field(default_factory=Average)
    wire: Wire = field(default_factory=Dense)
    output: Output | Literal["last", "last-two", "averaged"] = field(default_factory=Last)
    weights: Weights = "uniform"
    schedule: Schedule | str = field(default_factory=Schedule)
    weight_decay: float = 0.0
    clip: float | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        if isinstance(self.wire, str):
            object.__setattr__(self, "wire", parse(self.wire))
        if isinstance(self.output, str):
            if self.output not in OUTPUTS:
                raise unknown("output", self.output, OUTPUTS)
            object.__setattr__(self, "output", OUTPUTS[self.output])
        kinds: dict[str, type] = {
            "direction": Direction,
            "step": Step,
            "server": Server,
            "wire": Wire,
            "output": Output,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ArgumentError(
                    f"Method({name}=...) must be a {kind.__name__}, got {getattr(self, name)!r}."
                )
        if self.weights not in ("uniform", "samples"):
            raise unknown("weights", self.weights, ("uniform", "samples"))
        not_negative("Method", "weight_decay", self.weight_decay)
        if self.clip is not None:
            positive("Method", "clip", self.clip)
        self._check_fit()

    def _check_fit(self) -> None:
        step = type(self.step).__name__
        if self.clip is not None and self.step.exact:
            raise ArgumentError(
                f"Cannot use clip={self.clip!r} with {step}. This is because its line search "
                "needs the gradient of the function it evaluates; leave clip out, or use a "
                "constant step."
            )
        maps = [n for n in ("look", "land") if n in self.direction.sets]
        if maps and self.step.exact:
            raise ArgumentError(
                f"Cannot use {step} with {type(self.direction).__name__}. This is because its line "
                "search needs the gradient of the function it evaluates, and the direction puts "
                "a proximal map into every step; use a constant step."
            )
        if self.step.sets_lr and not self.rates.steady:
            raise ArgumentError(
                f"Cannot use schedule={self.rates.shape!r} with {step}. This is because it sets "
                "its own step size; leave the schedule out, or use a constant step."
            )
        fixed = [type(p).__name__ for p in self._parts if p.steady]
        if fixed and not self.rates.steady:
            raise ArgumentError(
                f"Cannot use schedule={self.rates.shape!r} with {fixed[0]}. This is because it "
                "counts on the same step size in every round; leave the schedule out."
            )
        self._check_channels(step)
        self._check_rates(step)

    def _check_channels(self, step: str) -> None:
        parts = (self.direction, self.step)
        own = [name for p in parts for name in (*p.uploads, *p.reports)]
        twice = sorted({name for name in own if own.count(name) > 1})
        if twice:
            raise ArgumentError(
                f"Cannot combine {type(self.direction).__name__} with {step}. This is because "
                f"both send the channel {twice[0]!r}; use one of them."
            )
        sent = tuple(dict.fromkeys((*STANDARD, *own)))
        missing = [name for name in self.server.needs if name not in sent]
        if missing:
            raise ArgumentError(
                f"Cannot use {type(self.server).__name__} with {type(self.direction).__name__} and "
                f"{step}. This is because it needs {', '.join(missing)}, and clients send only "
                f"{', '.join(sent)}; use a direction or step that sends it."
            )
        given = [type(p).__name__ for p in (self.direction, self.step) if p.reads]
        lacking = [n for p in parts for n in p.reads if n not in self.server.sends]
        if lacking:
            raise ArgumentError(
                f"Cannot use {given[0]} with {type(self.server).__name__}. This is because it "
                f"reads {', '.join(lacking)}, which that server rule does not send; use the "
                "server rule of the named method."
            )

    def _check_rates(self, step: str) -> None:
        """Parts that divide by the client's step size must mean the same one."""
        rates = {
            type(p).__name__: lr for p in self._parts if (lr := getattr(p, "lr", None)) is not None
        }
        if len(set(rates.values())) > 1:
            said = ", ".join(f"{name}(lr={lr!r})" for name, lr in rates.items())
            raise ArgumentError(f"Parts of one method must have the same lr, got {said}.")
        knows = [type(p).__name__ for p in (self.direction, self.server) if hasattr(p, "lr")]
        if knows and not isinstance(self.step, Constant):
            raise ArgumentError(
                f"Cannot use {step} with {knows[0]}. This is because it divides by the client's "
                "step size, which must be a constant; use Constant."
            )

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

    @property
    def records(self) -> frozenset[str]:
        """Optional fields of the local loop's record that some part reads."""
        return frozenset((*self.direction.records, *self.step.records))

    @property
    def echo(self) -> tuple[str, ...]:
        """Means that are sent back to the cohort."""
        return tuple(dict.fromkeys((*self.direction.echo, *self.step.echo)))

    @property
    def prepares(self) -> bool:
        """Whether everyone works once before round 0."""
        return self.direction.prepares or self.step.prepares

    @property
    def keeps(self) -> bool:
        """Whether a client's memory waits for the means."""
        return self.direction.keeps or self.step.keeps

    @property
    def full(self) -> bool:
        """Whether everyone must take part in every round."""
        return any(p.full for p in self._parts)

    @property
    def penalty(self) -> Penalty | None:
        """The regulariser h, where some part has one."""
        found = (getattr(p, "penalty", None) for p in self._parts)
        return next((p for p in found if p is not None and p != Zero()), None)

    def prox_step(self, plan: Plan) -> float:
        """Return the step of the proximal map, for methods with a penalty."""
        own = getattr(self.server, "alpha_at", None)
        return float(self.direction.lr * plan.steps if own is None else own(plan))  # type: ignore[attr-defined]

    def check(self, plan: Plan) -> None:
        """Refuse a plan that some part cannot work under, before round 0."""
        if self.full and not plan.full:
            raise ArgumentError(
                f"Cannot use {self.name} with {plan.cohort} of {plan.clients} clients a round. "
                "This is because it is defined for full participation; use cohort=None."
            )
        for part in self._parts:
            part.check(plan)
        inner = self.wire.inner if isinstance(self.wire, ErrorFeedback) else None
        settled = inner is None or inner.lossless or isinstance(inner, Choose)
        if inner is not None and not settled and inner.contraction(plan.layout) is None:
            raise ArgumentError(
                f"Cannot use error feedback around {inner!r}. This is because what it forgets may "
                "grow from round to round; use a compressor that never lengthens the error, such "
                "as TopK, Sign or RandK(unbiased=False)."
            )

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

    def describe(self) -> dict[str, Any]:
        """Return the parts and their settings as plain data, for records and comparison."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


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
    if isinstance(wire, str):
        return parse(wire)
    if not isinstance(wire, Wire):
        raise ArgumentError(f"compressor=... must be a wire or its text, got {wire!r}.")
    return wire


def read_penalty(penalty: Penalty | str | None) -> Penalty:
    """Return a penalty, or the one that a text such as "l1:1e-4" stands for."""
    if penalty is None:
        return Zero()
    if isinstance(penalty, str):
        return penalties.get(penalty)
    if not isinstance(penalty, Penalty):
        raise ArgumentError(f"penalty=... must be a penalty or its text, got {penalty!r}.")
    return penalty
