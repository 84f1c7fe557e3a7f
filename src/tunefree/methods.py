"""The catalogue: a method is a product of small parts, a named method one expression over them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Real
from typing import Any, Literal

from .clients import Armijo, Constant, Direction, DoG, Plain, Proximal, Scaffold, Schedule, Step
from .errors import ArgumentError, not_negative, positive, unknown
from .server import (
    Average,
    Averaged,
    FedDuAdagrad,
    FedDuAdam,
    FedExP,
    FedExPM,
    Last,
    LastTwo,
    Momentum,
    Output,
    Server,
)
from .server.aggregate import Weights
from .wire import Dense, Wire

OUTPUTS: dict[str, Output] = {"last": Last(), "last-two": LastTwo(), "averaged": Averaged()}
STANDARD = ("delta", "delta_sq")  # means that exist whatever the parts


@dataclass(frozen=True, kw_only=True)
class Method:
    """One federated method: parts that combine freely wherever the mathematics allows.

    Args:
        direction: How a client bends its gradient.
        step: How far a client goes along it.
        server: What the server does with the means.
        wire: How uploaded vectors are packed.
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
        if self.step.sets_lr and not self.rates.steady:
            raise ArgumentError(
                f"Cannot use schedule={self.rates.shape!r} with {step}. This is because it sets "
                "its own step size; leave the schedule out, or use a constant step."
            )
        sent = (*STANDARD, *self.direction.uploads, *self.step.uploads)
        twice = sorted({name for name in sent if sent.count(name) > 1})
        if twice:
            raise ArgumentError(
                f"Cannot combine {type(self.direction).__name__} with {step}. This is because "
                f"both send the channel {twice[0]!r}; use one of them."
            )
        missing = [name for name in self.server.needs if name not in sent]
        if missing:
            raise ArgumentError(
                f"Cannot use {type(self.server).__name__} with {type(self.direction).__name__} and "
                f"{step}. This is because it needs {', '.join(missing)}, and clients send only "
                f"{', '.join(sent)}; use a direction or step that sends it."
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
    if isinstance(value, str | Real | None):
        return value
    kind = type(value)  # a part of the user's own that is no dataclass: its class and fields
    inside = {k: _plain(v) for k, v in getattr(value, "__dict__", {}).items()}
    return {"part": f"{kind.__module__}.{kind.__qualname__}", **inside}


def auto() -> Method:
    """Nothing to choose: live DoWG steps, FedDuAdagrad server, averaged output. Ours.

    Chosen by measurement (docs/auto.md): on most tasks tried it ends at or near the best of a
    learning-rate grid, on none does it collapse. Clients count their gradients as they come, so
    none runs away; the server never moves further than the clients did.
    """
    return Method(
        step=DoG(weighted=True, live=True), server=FedDuAdagrad(max_move=1.0), output=Averaged()
    )


def fedavg(*, lr: float = 0.1, server_lr: float = 1.0) -> Method:
    """Local SGD and averaging; lr is a choice. McMahan et al. 2017."""
    return Method(step=Constant(lr), server=Average(server_lr))


def fedavgm(*, lr: float = 0.1, server_lr: float = 1.0, momentum: float = 0.9) -> Method:
    """FedAvg with server momentum; lr is a choice. Hsu et al. 2019."""
    return Method(step=Constant(lr), server=Momentum(server_lr, momentum))


def fedprox(*, lr: float = 0.1, mu: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with a pull to the server's model; lr and mu are choices. Li et al. 2020."""
    return Method(direction=Proximal(mu), step=Constant(lr), server=Average(server_lr))


def scaffold(
    *, lr: float = 0.1, server_lr: float = 1.0, option: Literal["I", "II"] = "II"
) -> Method:
    """Control variates against client drift; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=Scaffold(option), step=Constant(lr), server=Average(server_lr))


def fedexp(*, lr: float = 0.1, eps: float = 1e-3, max_server_step: float | None = None) -> Method:
    """Extrapolated server step; lr is a choice. Jhunjhunwala et al. 2023."""
    return Method(step=Constant(lr), server=FedExP(eps, max_server_step), output=LastTwo())


def fedexpm(*, lr: float = 0.1, eps: float = 1e-3, momentum: float = 0.9) -> Method:
    """FedExP with server momentum; lr is a choice. Jhunjhunwala et al. 2023."""
    return Method(step=Constant(lr), server=FedExPM(eps, momentum), output=LastTwo())


def fedsls(
    *,
    c: float = 0.1,
    backtrack: float = 0.9,
    max_lr: float = 1.0,
    max_backtracks: int = 100,
    reset: Literal["grow", "reset", "keep"] = "grow",
    growth: float = 2.0,
    server_lr: float = 1.0,
) -> Method:
    """Armijo line search on clients, averaging; no learning rate. FedSLS."""
    armijo = Armijo(c, backtrack, max_lr, max_backtracks, reset, growth)
    return Method(step=armijo, server=Average(server_lr), output=LastTwo())


def fedexpsls(
    *,
    c: float = 0.1,
    backtrack: float = 0.9,
    max_lr: float = 1.0,
    max_backtracks: int = 100,
    reset: Literal["grow", "reset", "keep"] = "grow",
    growth: float = 2.0,
    eps: float = 1e-3,
    max_server_step: float | None = None,
) -> Method:
    """Armijo line search on clients, extrapolated server; no learning rate. FedExpSLS."""
    armijo = Armijo(c, backtrack, max_lr, max_backtracks, reset, growth)
    return Method(step=armijo, server=FedExP(eps, max_server_step), output=LastTwo())


def fedduadagrad(*, lr: float = 0.1, eps: float = 1e-9, eps_g: float = 0.0) -> Method:
    """Self-set server step in AdaGrad's geometry; client lr is a choice. FedDuA."""
    return Method(step=Constant(lr), server=FedDuAdagrad(eps, eps_g), output=LastTwo())


def fedduadam(
    *,
    lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-9,
    eps_g: float = 0.0,
) -> Method:
    """Self-set server step in Adam's geometry; client lr is a choice. FedDuA."""
    return Method(step=Constant(lr), server=FedDuAdam(beta1, beta2, eps, eps_g), output=LastTwo())


def feddog(*, r_rel: float = 1e-2, server_lr: float = 1.0) -> Method:
    """DoG steps over the federation; no learning rate. After Ivgi et al. 2023."""
    return Method(step=DoG(r_rel), server=Average(server_lr))


def feddowg(*, r_rel: float = 1e-2, server_lr: float = 1.0) -> Method:
    """DoWG steps over the federation; no learning rate. After Khaled et al. 2023."""
    return Method(step=DoG(r_rel, weighted=True), server=Average(server_lr))


CATALOGUE: dict[str, Callable[..., Method]] = {
    "auto": auto,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedduadagrad": fedduadagrad,
    "fedduadam": fedduadam,
    "feddog": feddog,
    "feddowg": feddowg,
    "fedexp": fedexp,
    "fedexpm": fedexpm,
    "fedexpsls": fedexpsls,
    "fedprox": fedprox,
    "fedsls": fedsls,
    "scaffold": scaffold,
}
COMMON = ("wire", "output", "weights", "schedule", "weight_decay", "clip")  # for every method


def names() -> list[str]:
    """Return every method name.

    >>> "fedavg" in names()
    True
    """
    return sorted(CATALOGUE)


def settings(name: str) -> dict[str, inspect.Parameter]:
    """Return a named method's own arguments, with types and defaults."""
    if name not in CATALOGUE:
        raise unknown("method", name, CATALOGUE)
    return dict(inspect.signature(CATALOGUE[name]).parameters)


def get(name: str, **arguments: Any) -> Method:
    """Return a named method; arguments are its own, or those every method takes.

    >>> get("fedavg", lr=0.3, weights="samples").step
    Constant(lr=0.3)
    """
    own = settings(name)
    for key in arguments:
        if key not in own and key not in COMMON:
            raise unknown(f"argument of {name}", key, [*own, *COMMON])
    method = CATALOGUE[name](**{k: v for k, v in arguments.items() if k in own})
    return replace(method, name=name, **{k: v for k, v in arguments.items() if k in COMMON})
