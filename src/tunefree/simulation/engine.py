"""What a simulation is made of, and how its clients compute: engine, and clients at once."""

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ..attacks import Attack
from ..core.errors import first_line
from ..core.plan import Plan
from ..core.ranks import Ranks
from ..core.types import Vector
from ..data.batches import BatchPlan
from ..data.federation import Federation
from ..faults import Faults
from ..methods import Method
from ..models.augment import CropFlip
from ..models.batched import VmapEngine
from ..models.engine import EngineName, StepKind, select_engine
from ..models.losses import Losses
from ..models.problem import Problem
from ..server.aggregate import Aggregation, weighted_mean
from .batches import BatchSource

log = logging.getLogger("tunefree")

T = TypeVar("T")

CACHE = 5 << 19  # bytes of client rows that stay in a CPU's cache; larger chunks were slower
FEW = 4  # clients compiled into one call, however large the model is
ROWS = 12  # vectors of d numbers held for a client: its point, gradient, memory, ...
PART = 0.8  # share of a GPU's free memory that clients may fill
COMPILE_STEPS, COMPILE_FLOPS = 20_000, 1e13  # above either, compiling on a CPU pays for itself
# Bytes that one client's step keeps for its backward pass: above, clients are faster in turn than
# batched on a CPU, and faster in turn than compiled (both by `python -m benchmarks cpu`).
TURNS, TOO_LARGE = 5 << 18, 8 << 20
# Bytes of a client's parameters above which clients are faster in turn than batched on a CPU: one
# client's tensors and gradient stay in the cache, those of all clients do not.
WIDE = 3 << 19
GPU_STEPS, GPU_FLOPS = 5_000, 1e14  # the same on a GPU
# Floating-point operations of a cohort's local step, and bytes kept for its backward pass, up to
# which it takes one thread of a CPU: two were hardly faster with 4 million operations, clearly with
# 15 million, and many times slower on cores that other programs use.
SMALL_FLOPS, SMALL_BYTES = 5e6, 1 << 20


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


class Chunks:
    """Splits clients into chunks of `size`, and into smaller ones after a GPU ran out of memory.

    `release` frees what the engine holds between calls.
    """

    def __init__(self, size: int, release: Callable[[], None]) -> None:
        self.size, self._release = size, release

    def each(
        self, ids: Tensor, work: Callable[[Tensor, Tensor | None], T]
    ) -> Iterator[tuple[Tensor, T]]:
        """Yield each chunk of these clients and the result of `work(chunk, next chunk)`.

        `work` must not change any state before it returns: if memory runs out, it is repeated in
        smaller chunks.
        """
        todo = self._cut(ids)
        while todo:
            part = todo.popleft()
            try:
                done = work(part, todo[0] if todo else None)
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
            else:
                yield part, done
                continue
            self.size = -(-len(part) // 2)
            self._release()
            torch.cuda.empty_cache()
            said = "The GPU's memory does not hold %d clients at once; going on with %d."
            log.warning(said, len(part), self.size)
            todo = self._cut(torch.cat([part, *todo]))

    def _cut(self, ids: Tensor) -> deque[Tensor]:
        return deque(torch.split(ids, self.size) if len(ids) else ())


def choose_engine(config: SimulationConfig, batches: BatchSource) -> tuple[Losses, Chunks]:
    """Return how losses are computed, and for how many clients at once."""
    problem, chunk, compile = config.problem, config.plan.cohort, config.compile
    bytes = batches.activation_bytes
    on_cpu = problem.device.type == "cpu"
    turns = on_cpu and bytes > TURNS
    if compile is None:
        compile = _is_worth_compiling(problem, batches, config.plan) and config.engine != "loop"
        compile = compile and not (on_cpu and bytes > TOO_LARGE)
    if config.chunk is not None:
        chunk = min(config.chunk, chunk)
    elif problem.device.type == "cuda":
        chunk = fit_gpu_memory(problem, batches, chunk, config.engine != "loop")
    elif compile and turns:
        chunk = find_divisor(chunk, FEW) if bytes <= TOO_LARGE else 1
    elif compile:
        chunk = fit_cache(chunk, problem.start.nbytes)
    everyone = torch.arange(chunk)
    probe = batches.probe(everyone) if on_cpu else batches.order(everyone)
    steps: StepKind = "other"
    if config.method.descent_lr(1.0) is not None:
        steps = "descent"
    elif config.method.is_fusible:
        steps = "fusible"
    in_turn = turns or (on_cpu and problem.start.nbytes > WIDE)
    losses = select_engine(problem, probe, config.engine, compile, in_turn, steps)
    if compile and on_cpu and losses.name == "vmap":  # it could not be compiled
        return choose_engine(replace(config, compile=False), batches)
    return losses, Chunks(chunk, losses.release)


def _is_worth_compiling(problem: Problem, batches: BatchSource, plan: Plan) -> bool:
    steps = plan.rounds * plan.steps
    flops = _step_flops(problem, batches, plan) * steps
    if problem.device.type == "cuda":
        return steps >= GPU_STEPS or flops >= GPU_FLOPS
    return steps >= COMPILE_STEPS or flops >= COMPILE_FLOPS


def _step_flops(problem: Problem, batches: BatchSource, plan: Plan) -> float:
    """Return the operations of a local step of the cohort, as of a network of dense layers."""
    each = 4.0 * problem.parameters + 2.0 * plan.layout.size  # no gradient of frozen weights
    return each * batches.width * plan.cohort


def is_small(config: SimulationConfig, batches: BatchSource) -> bool:
    """Return whether local steps are so small that one thread of a CPU suffices."""
    problem, plan = config.problem, config.plan
    if problem.device.type != "cpu" or _step_flops(problem, batches, plan) > SMALL_FLOPS:
        return False
    return batches.activation_bytes * plan.cohort <= SMALL_BYTES


def fit_cache(cohort: int, row: int) -> int:
    """Return the chunk size for which clients with rows of `row` bytes fit into a CPU's cache.

    At least `FEW` if there are as many: several clients take a thread each, while the threads share
    the products of a single one, which is slower.

    >>> fit_cache(20, 1 << 30), fit_cache(20, 1)
    (4, 20)
    """
    return find_divisor(cohort, max(FEW, CACHE // row))


def find_divisor(cohort: int, most: int) -> int:
    """Return a chunk size up to `most`: a divisor of the cohort above most / 2, else `most`.

    Without a divisor, the last chunk is smaller and is not compiled.

    >>> [find_divisor(c, 4) for c in (1, 6, 10, 19, 20)]
    [1, 3, 4, 4, 4]
    """
    most = min(most, cohort)
    return max((c for c in range(most // 2 + 1, most + 1) if cohort % c == 0), default=most)


def fit_gpu_memory(problem: Problem, batches: BatchSource, cohort: int, batched: bool) -> int:
    """Return the chunk size for which clients fit into the GPU's free memory, in even chunks.

    If they are `batched` in one call, each needs memory for its activations, which is measured with
    two clients. If these do not fit, it is 1.
    """
    each = ROWS * problem.start.nbytes
    if batched:
        try:
            each += max(0, _measure_peak(problem, batches, 2) - _measure_peak(problem, batches, 1))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 1
        except Exception as error:  # the model cannot be batched, as `select_engine` will report
            log.debug("Activations are not counted: %s.", first_line(error))
    return balance_chunks(cohort, max(1, int(PART * _measure_free(problem.device)) // each))


def balance_chunks(cohort: int, most: int) -> int:
    """Return the smallest chunk size with the fewest chunks of at most `most` clients.

    >>> balance_chunks(50, 30)
    25
    """
    chunks = -(-cohort // most)
    return -(-cohort // chunks)


def _measure_free(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a GPU."""
    gc.collect()  # earlier runs of this process may hold memory in reference cycles
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _measure_peak(problem: Problem, batches: BatchSource, m: int) -> int:
    """Return the peak memory in bytes of a batched step of m clients."""
    y = problem.start.expand(m, -1).contiguous()
    batch = batches.probe(torch.arange(m) % batches.fed.clients)
    before = torch.cuda.memory_allocated(problem.device)
    torch.cuda.reset_peak_memory_stats(problem.device)
    VmapEngine(problem).value_and_grad(y, batch)
    return torch.cuda.max_memory_allocated(problem.device) - before
