"""Which engine runs a problem: the fastest that can."""

import logging
from typing import Literal

from ..core.errors import ArgumentError, first_line, unknown_name
from .batched import Vmapped
from .compiler import in_place
from .losses import Batch, DeferredBatch, Losses
from .problem import Problem
from .turns import Looped

log = logging.getLogger("tunefree")

EngineName = Literal["auto", "vmap", "loop"]


def choose(
    problem: Problem,
    probe: Batch | DeferredBatch,
    engine: EngineName,
    compile: bool,
    turns: bool = False,
    descends: bool = False,
) -> Losses:
    """Return the fastest engine that can run this problem, and say so when it had to fall back.

    Args:
        problem: What is differentiated.
        probe: A batch in the form that training uses (also what a compiler specialises on).
        engine: "vmap" or "loop" insist; "auto" prefers vmap, unless told otherwise.
        compile: Whether to compile where that works.
        turns: Whether clients in turn are faster than batched ones that are not compiled.
        descends: Whether training is plain descent, so that whole steps are to be compiled.
    """
    if engine not in ("auto", "vmap", "loop"):
        raise unknown_name("engine", engine, ("auto", "vmap", "loop"))
    if engine == "loop" or (engine == "auto" and turns and not compile):
        return Looped(problem)
    m = len(probe.code if isinstance(probe, DeferredBatch) else probe.mask)
    y = problem.start.expand(m, -1).contiguous()
    try:
        Vmapped(problem).value_and_grad(y, probe)
    except Exception as error:  # any operation vmap cannot batch ends here
        reason = first_line(error)
        if engine == "vmap":
            raise ArgumentError(
                f"fit(engine='vmap') cannot batch this model: {reason} Use engine='loop'."
            ) from error
        log.warning("This model cannot be batched over clients (%s); clients run in turn.", reason)
        return Looped(problem)
    if compile:
        try:
            fast = Vmapped(problem, compile=True)
            if descends and in_place(problem.device):
                fast.compile_descent(probe)
            else:
                fast.value_and_grad(y, probe)
            if problem.device.type == "cpu":  # a GPU's compiler takes long; when first used, then
                fast.value(y, probe)
            return fast
        except Exception as error:  # no C++ compiler, or an operation it cannot lower
            reason = first_line(error)
            log.warning("Compilation is not available here (%s); running without it.", reason)
    return Vmapped(problem)
