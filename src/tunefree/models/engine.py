"""Choice of the engine that evaluates a problem."""

import logging
from typing import Literal

from ..core.errors import ArgumentError, first_line, unknown_name
from .batched import VmapEngine
from .compiled.compiler import is_in_place_safe
from .enabled import VARIABLE, are_engines_enabled
from .loop import LoopEngine
from .losses import Batch, DeferredBatch, Losses
from .problem import Problem

log = logging.getLogger("tunefree")

EngineName = Literal["auto", "vmap", "loop"]
StepKind = Literal["descent", "fusible", "other"]


def select_engine(
    problem: Problem,
    probe: Batch | DeferredBatch,
    engine: EngineName,
    compile: bool,
    prefer_loop: bool = False,
    steps: StepKind = "other",
) -> Losses:
    """Return the fastest engine that can evaluate this problem; log a warning if it falls back.

    Args:
        problem: Model and loss.
        probe: A batch as training uses it; the compiler specialises on its shape.
        engine: "vmap" or "loop" for that engine; "auto" is vmap where the model can be batched.
        compile: Whether to compile where that works. Ignored if TUNEFREE_ENGINES is "plain".
        prefer_loop: Whether "auto" takes the loop rather than vmap without a compiler.
        steps: What is compiled: whole steps of plain gradient descent ("descent"), whole steps of
            the method when they are first taken ("fusible"), or gradients ("other").

    Raises:
        ArgumentError: The name is unknown, or "vmap" cannot batch the model.
    """
    if engine not in ("auto", "vmap", "loop"):
        raise unknown_name("engine", engine, ("auto", "vmap", "loop"))
    enabled = are_engines_enabled()
    if engine == "loop" or (engine == "auto" and prefer_loop and not compile):
        return LoopEngine(problem)
    m = len(probe.code if isinstance(probe, DeferredBatch) else probe.mask)
    y = problem.start.expand(m, -1).contiguous()
    try:
        VmapEngine(problem).value_and_grad(y, probe)
    except Exception as error:  # any operation vmap cannot batch ends here
        reason = _shorten(first_line(error))
        if "data-dependent control flow" in str(error):  # of 700 characters
            reason = "its forward branches on the values of a tensor, or calls item()"
        if engine == "vmap":
            raise ArgumentError(
                f"fit(engine='vmap') cannot batch this model ({reason}); use engine='loop'."
            ) from error
        said = "This model cannot be batched over clients (%s); clients run in turn."
        log.warning(said, reason)
        return LoopEngine(problem)
    if compile and not enabled:
        log.info("%s=plain: running without compilation.", VARIABLE)
    elif compile:
        try:
            fast = VmapEngine(problem, compile=True)
            if steps == "descent" and is_in_place_safe(problem.device):
                fast.compile_descent(probe)
            elif steps == "fusible" and is_in_place_safe(problem.device):
                fast.enable_fusing()
            else:
                fast.value_and_grad(y, probe)
            if problem.device.type == "cpu":  # on a GPU compiling takes long: at first use instead
                fast.value(y, probe)
            return fast
        except Exception as error:  # no C++ compiler, or an operation it cannot lower
            reason = _shorten(first_line(error))
            log.warning("Compilation is not available here (%s); running without it.", reason)
    return VmapEngine(problem)


def _shorten(reason: str) -> str:
    """Return the beginning of a reason; PyTorch's own may fill the screen."""
    return reason if len(reason) <= 160 else reason[:160].rsplit(" ", 1)[0] + " ..."
