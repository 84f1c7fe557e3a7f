"""Checks that the parts of a method fit together; an error says why they do not."""

from dataclasses import fields
from typing import Any

from ..clients import Constant, Direction, Schedule, Step
from ..core.errors import ArgumentError, cannot_use
from ..server import Average, Server

STANDARD = ("delta", "delta_sq")  # means that every method can use


def split_direction(direction: Direction) -> tuple[Direction, ...]:
    """Return the directions that a `Sum` adds, or the direction itself."""
    return tuple(getattr(direction, "parts", (direction,)))


def check_fit(
    direction: Direction, step: Step, server: Server, schedule: Schedule, clip: float | None
) -> None:
    """Raise `ArgumentError` for parts that cannot work together, with the reason."""
    name, other = type(step).__name__, type(direction).__name__
    exact = "its line search needs the gradient of the function it evaluates"
    if clip is not None and step.exact:
        raise cannot_use(f"clip={clip!r}", name, f"{exact}; leave clip out, or use a constant step")
    if step.exact and not {"grad_at", "project"}.isdisjoint(direction.sets):
        why = f"{exact}, and the direction puts a proximal map into every step"
        raise cannot_use(name, other, f"{why}; use a constant step")
    rates = f"schedule={schedule.shape!r}"
    if step.sets_lr and not schedule.is_constant:
        why = "it sets its own step size; leave the schedule out, or use a constant step"
        raise cannot_use(rates, name, why)
    fixed = [type(p).__name__ for p in (direction, step, server) if p.needs_constant_lr]
    if fixed and not schedule.is_constant:
        why = "it counts on the same step size in every round; leave the schedule out"
        raise cannot_use(rates, fixed[0], why)
    _check_channels(direction, step, server)
    _check_step_sizes(direction, step, server)
    _check_halves(direction, step, server)
    if direction.prepares and type(step).start_round is not Step.start_round:
        why = "everyone works before round 0, when that step has not begun"
        raise cannot_use(name, other, f"{why}; use the step of the named method")


def _check_channels(direction: Direction, step: Step, server: Server) -> None:
    """Check that what a part reads is sent, and that no channel is sent twice."""
    parts = (direction, step)
    first, second, rule = (type(p).__name__ for p in (direction, step, server))
    own = [name for p in parts for name in (*p.uploads, *p.reports)]
    twice = sorted({name for name in own if own.count(name) > 1})
    if twice:
        why = f"both send the channel {twice[0]!r}; use one of them"
        raise ArgumentError(f"Cannot combine {first} with {second}. This is because {why}.")
    sent = tuple(dict.fromkeys((*STANDARD, *own)))
    missing = ", ".join(name for name in server.needs if name not in sent)
    if missing:
        why = f"it needs {missing}, and clients send only {', '.join(sent)}"
        use = "use a direction or step that sends it"
        raise cannot_use(rule, f"{first} and {second}", f"{why}; {use}")
    for part in parts:
        for channel in part.reads:
            if channel not in server.sends:
                why = f"it reads {channel}, which that server rule does not send"
                use = "use the server rule of the named method"
                raise cannot_use(type(part).__name__, rule, f"{why}; {use}")


def _check_step_sizes(direction: Direction, step: Step, server: Server) -> None:
    """Check that parts which use the client's step size have the same one."""
    parts = (*split_direction(direction), step, server)
    rates = {type(p).__name__: lr for p in parts if (lr := getattr(p, "lr", None)) is not None}
    if len(set(rates.values())) > 1:
        said = ", ".join(f"{name}(lr={lr!r})" for name, lr in rates.items())
        raise ArgumentError(f"Parts of one method must have the same lr, got {said}.")
    knows = [type(p).__name__ for p in parts if p is not step and hasattr(p, "lr")]
    if knows and not isinstance(step, Constant):
        why = "it divides by the client's step size, which must be a constant; use Constant"
        raise cannot_use(type(step).__name__, knows[0], why)


def _check_halves(direction: Direction, step: Step, server: Server) -> None:
    """Check that the client's and the server's half of a method belong together."""
    directions, rule = split_direction(direction), type(server).__name__
    kinds = set[str]().union(*(_kinds(p) for p in directions))
    for part in directions:
        if part.goes_with and not set(part.goes_with) & _kinds(server):
            why = f"it is defined with the server rule {' or '.join(part.goes_with)}; use that"
            raise cannot_use(type(part).__name__, rule, why)
    if server.goes_with and not set(server.goes_with) & kinds:
        why = f"it is defined with the direction {' or '.join(server.goes_with)}; use that"
        raise cannot_use(rule, type(directions[0]).__name__, why)
    for name in ("mu", "rates", "penalty", "alpha"):
        wanted = getattr(server, name, None)
        for other in (*directions, step):
            given = getattr(other, name, None)
            if wanted is not None and given is not None and given != wanted:
                said = f"{type(other).__name__}({name}={given!r}) and {rule}({name}={wanted!r})"
                raise ArgumentError(f"Parts of one method must have the same {name}, got {said}.")
    half = getattr(server, "direction", None)
    if half is not None and not any(_alike(p, half) for p in directions):
        said = f"{half!r} on the server and {direction!r} on the clients"
        raise ArgumentError(f"Parts of one method must have the same settings, got {said}.")
    if getattr(server, "silent", False) != any(getattr(p, "copy", None) for p in directions):
        raise ArgumentError(
            "FedCanon II needs both halves, Canon(copy=True) and Proximal(silent=True): "
            "clients that keep x are sent none, and others must be sent it."
        )
    if "Scaffnew" in kinds and not _alike(server, Average()):
        why = "its controls count on plain averaging; use Average()"
        raise cannot_use("Scaffnew", repr(server), why)


def _kinds(part: object) -> set[str]:
    """Return the names of a part's class and of those it comes from."""
    return {cls.__name__ for cls in type(part).__mro__}


def _alike(part: object, other: Any) -> bool:
    """Whether a part is of the other's kind and has the same settings."""
    same = [getattr(part, f.name, None) == getattr(other, f.name) for f in fields(other)]
    return isinstance(part, type(other)) and all(same)
