"""What a simulation is made of, and how its clients compute: engine, and clients at once."""

from dataclasses import dataclass, replace

import torch

from ..attacks import Attack
from ..core.plan import Plan
from ..core.types import Vector
from ..data.batches import BatchPlan
from ..data.federation import Federation
from ..faults import Faults
from ..methods import Method
from ..models.augment import CropFlip
from ..models.engine import EngineName, StepKind, select_engine
from ..models.losses import Losses
from ..models.problem import Problem
from ..server.aggregate import Aggregation, weighted_mean
from .batches import BatchSource
from .chunk import FEW, Chunks, fitting, in_cache, in_memory
from .ranks import Ranks

COMPILE_STEPS, COMPILE_FLOPS = 20_000, 1e13  # above either, compiling on a CPU pays for itself
# Bytes that one client's step keeps for its backward pass: above, clients are faster in turn than
# batched on a CPU, and faster in turn than compiled (both by `python -m benchmarks cpu`).
TURNS, TOO_LARGE = 5 << 18, 8 << 20
GPU_STEPS, GPU_FLOPS = 5_000, 1e14  # the same on a GPU


@dataclass(frozen=True)
class SimulationConfig:
    """What a simulation is made of; model and data are on the device."""

    method: Method
    problem: Problem
    federation: Federation
    batch_plan: BatchPlan
    plan: Plan
    start: Vector  # the initial parameters
    ranks: Ranks
    engine: EngineName = "auto"
    compile: bool | None = None  # None chooses by the amount of work, the same every time
    chunk: int | None = None  # clients at once; None is all, or fewer where that is faster
    augment: CropFlip | None = None
    aggregate: Aggregation = weighted_mean
    faults: Faults | None = None
    attack: Attack | None = None


def choose_engine(config: SimulationConfig, batches: BatchSource) -> tuple[Losses, Chunks]:
    """Return how losses are computed, and for how many clients at once."""
    problem, chunk, compile = config.problem, config.plan.cohort, config.compile
    bytes = problem.activation_bytes(*batches.probe(torch.arange(1)).row(0))
    on_cpu = problem.device.type == "cpu"
    turns = on_cpu and bytes > TURNS
    if compile is None:
        compile = _is_worth_compiling(problem, batches, config.plan) and config.engine != "loop"
        compile = compile and not (on_cpu and bytes > TOO_LARGE)
    if config.chunk is not None:
        chunk = min(config.chunk, chunk)
    elif problem.device.type == "cuda":
        chunk = in_memory(problem, batches, chunk, config.engine != "loop")
    elif compile and turns:
        chunk = fitting(chunk, FEW) if bytes <= TOO_LARGE else 1
    elif compile:
        chunk = in_cache(chunk, problem.start.nbytes)
    everyone = torch.arange(chunk)
    probe = batches.probe(everyone) if on_cpu else batches.order(everyone)
    steps: StepKind = "other"
    if config.method.descent_lr(1.0) is not None:
        steps = "descent"
    elif config.method.is_fusible:
        steps = "fusible"
    losses = select_engine(problem, probe, config.engine, compile, turns, steps)
    if compile and on_cpu and losses.name == "vmap":  # it could not be compiled
        return choose_engine(replace(config, compile=False), batches)
    return losses, Chunks(chunk, losses.release)


def _is_worth_compiling(problem: Problem, batches: BatchSource, plan: Plan) -> bool:
    steps = plan.rounds * plan.steps
    each = 4.0 * problem.parameters + 2.0 * plan.layout.size  # no gradient of frozen weights
    flops = each * batches.width * plan.cohort * steps
    if problem.device.type == "cuda":
        return steps >= GPU_STEPS or flops >= GPU_FLOPS
    return steps >= COMPILE_STEPS or flops >= COMPILE_FLOPS
