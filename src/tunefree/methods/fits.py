"""Which parts fit together: at construction, a sentence for those that do not."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..clients import Constant, Step
from ..core.errors import ArgumentError
from ..server import Average

if TYPE_CHECKING:
    from .method import Method

STANDARD = ("delta", "delta_sq")  # means that exist whatever the parts


def check_fit(method: "Method") -> None:
    """Refuse parts that cannot work together, with a sentence that says why."""
    step = type(method.step).__name__
    if method.clip is not None and method.step.exact:
        raise ArgumentError(
            f"Cannot use clip={method.clip!r} with {step}. This is because its line search "
            "needs the gradient of the function it evaluates; leave clip out, or use a "
            "constant step."
        )
    maps = [n for n in ("grad_at", "project") if n in method.direction.sets]
    if maps and method.step.exact:
        raise ArgumentError(
            f"Cannot use {step} with {type(method.direction).__name__}. This is because its line "
            "search needs the gradient of the function it evaluates, and the direction puts "
            "a proximal map into every step; use a constant step."
        )
    if method.step.sets_lr and not method.rates.needs_constant_lr:
        raise ArgumentError(
            f"Cannot use schedule={method.rates.shape!r} with {step}. This is because it sets "
            "its own step size; leave the schedule out, or use a constant step."
        )
    fixed = [
        type(p).__name__
        for p in (method.direction, method.step, method.server)
        if p.needs_constant_lr
    ]
    if fixed and not method.rates.needs_constant_lr:
        raise ArgumentError(
            f"Cannot use schedule={method.rates.shape!r} with {fixed[0]}. This is because it "
            "counts on the same step size in every round; leave the schedule out."
        )
    _check_channels(method, step)
    _check_rates(method, step)
    _check_pair(method)
    if method.direction.prepares and type(method.step).start_round is not Step.start_round:
        raise ArgumentError(
            f"Cannot use {step} with {type(method.direction).__name__}. This is because everyone "
            "works before round 0, when that step has not begun; use the step of the named "
            "method."
        )


def _check_channels(method: "Method", step: str) -> None:
    parts = (method.direction, method.step)
    own = [name for p in parts for name in (*p.uploads, *p.reports)]
    twice = sorted({name for name in own if own.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"Cannot combine {type(method.direction).__name__} with {step}. This is because "
            f"both send the channel {twice[0]!r}; use one of them."
        )
    sent = tuple(dict.fromkeys((*STANDARD, *own)))
    missing = [name for name in method.server.needs if name not in sent]
    if missing:
        raise ArgumentError(
            f"Cannot use {type(method.server).__name__} with {type(method.direction).__name__} and "
            f"{step}. This is because it needs {', '.join(missing)}, and clients send only "
            f"{', '.join(sent)}; use a direction or step that sends it."
        )
    lacking = [(p, n) for p in parts for n in p.reads if n not in method.server.sends]
    if lacking:
        part, name = lacking[0]
        raise ArgumentError(
            f"Cannot use {type(part).__name__} with {type(method.server).__name__}. This is "
            f"because it reads {name}, which that server rule does not send; use the server rule "
            "of the named method."
        )


def _check_rates(method: "Method", step: str) -> None:
    """Parts that divide by the client's step size must mean the same one."""
    rates = {type(p).__name__: lr for p in method.leaves if (lr := _of(p, "lr")) is not None}
    if len(set(rates.values())) > 1:
        said = ", ".join(f"{name}(lr={lr!r})" for name, lr in rates.items())
        raise ArgumentError(f"Parts of one method must have the same lr, got {said}.")
    others = [p for p in method.leaves if p is not method.step]
    knows = [type(p).__name__ for p in others if hasattr(p, "lr")]
    if knows and not isinstance(method.step, Constant):
        raise ArgumentError(
            f"Cannot use {step} with {knows[0]}. This is because it divides by the client's "
            "step size, which must be a constant; use Constant."
        )


def _check_pair(method: "Method") -> None:
    """Halves of one method must belong together and mean the same numbers."""
    server, names = type(method.server).__name__, [type(p).__name__ for p in method.directions]
    kinds = set[str]().union(*(_kinds(p) for p in method.directions))
    for part in method.directions:
        if part.goes_with and not set(part.goes_with) & _kinds(method.server):
            raise ArgumentError(
                f"Cannot use {type(part).__name__} with {server}. This is because it is "
                f"defined with the server rule {' or '.join(part.goes_with)}; use that."
            )
    if method.server.goes_with and not set(method.server.goes_with) & kinds:
        raise ArgumentError(
            f"Cannot use {server} with {names[0]}. This is because it is defined with the "
            f"direction {' or '.join(method.server.goes_with)}; use that."
        )
    for name in ("mu", "rates", "penalty", "alpha"):
        wanted = _of(method.server, name)
        for other in (*method.directions, method.step):
            given = _of(other, name)
            if wanted is not None and given is not None and given != wanted:
                raise ArgumentError(
                    f"Parts of one method must have the same {name}, got "
                    f"{type(other).__name__}({name}={given!r}) and {server}({name}={wanted!r})."
                )
    walk = getattr(method.server, "walk", None)
    if walk is not None and not any(_alike(p, walk) for p in method.directions):
        raise ArgumentError(
            f"Parts of one method must have the same settings, got {walk!r} on the server and "
            f"{method.direction!r} on the clients."
        )
    if getattr(method.server, "silent", False) != any(_of(p, "copy") for p in method.directions):
        raise ArgumentError(
            "FedCanon II needs both halves, Canon(copy=True) and Proximal(silent=True): "
            "clients that keep x are sent none, and others must be sent it."
        )
    if "Scaffnew" in kinds and not _alike(method.server, Average()):
        raise ArgumentError(
            f"Cannot use Scaffnew with {method.server!r}. This is because its controls count on "
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
