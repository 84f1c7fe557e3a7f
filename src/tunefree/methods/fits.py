"""Checks that the parts of a method fit together; an error says why they do not."""

from dataclasses import fields
from typing import Any

from ..clients import Constant, Direction, Schedule, Step
from ..core.errors import ArgumentError
from ..server import Average, Server

STANDARD = ("delta", "delta_sq")  # means that exist whatever the parts


def split_direction(direction: Direction) -> tuple[Direction, ...]:
    """Return the directions that a `Sum` adds, or the direction itself."""
    return tuple(getattr(direction, "parts", (direction,)))


def check_fit(
    direction: Direction, step: Step, server: Server, schedule: Schedule, clip: float | None
) -> None:
    """Raise `ArgumentError` for parts that cannot work together, with the reason."""
    name = type(step).__name__
    if clip is not None and step.exact:
        raise ArgumentError(
            f"Cannot use clip={clip!r} with {name}. This is because its line search "
            "needs the gradient of the function it evaluates; leave clip out, or use a "
            "constant step."
        )
    if step.exact and not {"grad_at", "project"}.isdisjoint(direction.sets):
        raise ArgumentError(
            f"Cannot use {name} with {type(direction).__name__}. This is because its line "
            "search needs the gradient of the function it evaluates, and the direction puts "
            "a proximal map into every step; use a constant step."
        )
    if step.sets_lr and not schedule.is_constant:
        raise ArgumentError(
            f"Cannot use schedule={schedule.shape!r} with {name}. This is because it sets "
            "its own step size; leave the schedule out, or use a constant step."
        )
    fixed = [type(p).__name__ for p in (direction, step, server) if p.needs_constant_lr]
    if fixed and not schedule.is_constant:
        raise ArgumentError(
            f"Cannot use schedule={schedule.shape!r} with {fixed[0]}. This is because it "
            "counts on the same step size in every round; leave the schedule out."
        )
    _check_channels(direction, step, server)
    _check_step_sizes(direction, step, server)
    _check_halves(direction, step, server)
    if direction.prepares and type(step).start_round is not Step.start_round:
        raise ArgumentError(
            f"Cannot use {name} with {type(direction).__name__}. This is because everyone "
            "works before round 0, when that step has not begun; use the step of the named "
            "method."
        )


def _check_channels(direction: Direction, step: Step, server: Server) -> None:
    """Check that what a part reads is sent, and that no channel is sent twice."""
    parts = (direction, step)
    own = [name for p in parts for name in (*p.uploads, *p.reports)]
    twice = sorted({name for name in own if own.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"Cannot combine {type(direction).__name__} with {type(step).__name__}. This is "
            f"because both send the channel {twice[0]!r}; use one of them."
        )
    sent = tuple(dict.fromkeys((*STANDARD, *own)))
    missing = [name for name in server.needs if name not in sent]
    if missing:
        raise ArgumentError(
            f"Cannot use {type(server).__name__} with {type(direction).__name__} and "
            f"{type(step).__name__}. This is because it needs {', '.join(missing)}, and clients "
            f"send only {', '.join(sent)}; use a direction or step that sends it."
        )
    lacking = [(p, n) for p in parts for n in p.reads if n not in server.sends]
    if lacking:
        part, name = lacking[0]
        raise ArgumentError(
            f"Cannot use {type(part).__name__} with {type(server).__name__}. This is "
            f"because it reads {name}, which that server rule does not send; use the server rule "
            "of the named method."
        )


def _check_step_sizes(direction: Direction, step: Step, server: Server) -> None:
    """Check that parts which use the client's step size have the same one."""
    parts = (*split_direction(direction), step, server)
    rates = {type(p).__name__: lr for p in parts if (lr := _of(p, "lr")) is not None}
    if len(set(rates.values())) > 1:
        said = ", ".join(f"{name}(lr={lr!r})" for name, lr in rates.items())
        raise ArgumentError(f"Parts of one method must have the same lr, got {said}.")
    others = [p for p in parts if p is not step]
    knows = [type(p).__name__ for p in others if hasattr(p, "lr")]
    if knows and not isinstance(step, Constant):
        raise ArgumentError(
            f"Cannot use {type(step).__name__} with {knows[0]}. This is because it divides by the "
            "client's step size, which must be a constant; use Constant."
        )


def _check_halves(direction: Direction, step: Step, server: Server) -> None:
    """Check that the client's and the server's half of a method belong together."""
    directions, rule = split_direction(direction), type(server).__name__
    names = [type(p).__name__ for p in directions]
    kinds = set[str]().union(*(_kinds(p) for p in directions))
    for part in directions:
        if part.goes_with and not set(part.goes_with) & _kinds(server):
            raise ArgumentError(
                f"Cannot use {type(part).__name__} with {rule}. This is because it is "
                f"defined with the server rule {' or '.join(part.goes_with)}; use that."
            )
    if server.goes_with and not set(server.goes_with) & kinds:
        raise ArgumentError(
            f"Cannot use {rule} with {names[0]}. This is because it is defined with the "
            f"direction {' or '.join(server.goes_with)}; use that."
        )
    for name in ("mu", "rates", "penalty", "alpha"):
        wanted = _of(server, name)
        for other in (*directions, step):
            given = _of(other, name)
            if wanted is not None and given is not None and given != wanted:
                raise ArgumentError(
                    f"Parts of one method must have the same {name}, got "
                    f"{type(other).__name__}({name}={given!r}) and {rule}({name}={wanted!r})."
                )
    half = getattr(server, "direction", None)
    if half is not None and not any(_alike(p, half) for p in directions):
        raise ArgumentError(
            f"Parts of one method must have the same settings, got {half!r} on the server and "
            f"{direction!r} on the clients."
        )
    if getattr(server, "silent", False) != any(_of(p, "copy") for p in directions):
        raise ArgumentError(
            "FedCanon II needs both halves, Canon(copy=True) and Proximal(silent=True): "
            "clients that keep x are sent none, and others must be sent it."
        )
    if "Scaffnew" in kinds and not _alike(server, Average()):
        raise ArgumentError(
            f"Cannot use Scaffnew with {server!r}. This is because its controls count on "
            "plain averaging; use Average()."
        )


def _kinds(part: object) -> set[str]:
    """Return the names of a part's class and of those it comes from."""
    return {cls.__name__ for cls in type(part).__mro__}


def _alike(part: object, other: Any) -> bool:
    """Whether a part is of the other's kind and has the same settings."""
    same = [getattr(part, f.name, None) == getattr(other, f.name) for f in fields(other)]
    return isinstance(part, type(other)) and all(same)


def _of(part: Any, name: str) -> Any:
    """Return a part's setting, None where it has none or leaves it to the plan."""
    return getattr(part, name, None)
