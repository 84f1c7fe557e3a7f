"""How many clients train at once."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from ..models.batched import VmapEngine
from ..models.problem import Problem
from .batches import BatchSource

log = logging.getLogger("tunefree")

T = TypeVar("T")

CACHE = 5 << 19  # bytes of client rows that stay in a CPU's cache; larger chunks were slower
FEW = 4  # clients compiled into one call, however large the model is
ROWS = 12  # vectors of d numbers held for a client: its point, gradient, memory, ...
PART = 0.8  # share of a GPU's free memory that clients may fill


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


def in_cache(cohort: int, row: int) -> int:
    """Return how many clients with rows of `row` bytes fit into the cache together.

    At least `FEW` if there are as many: several clients take a thread each, while the threads share
    the products of a single one, which is slower.

    >>> in_cache(20, 1 << 30), in_cache(20, 1)
    (4, 20)
    """
    return fitting(cohort, max(FEW, CACHE // row))


def fitting(cohort: int, most: int) -> int:
    """Return a chunk size up to `most`: a divisor of the cohort above most / 2, else `most`.

    Without a divisor, the last chunk is smaller and is not compiled.

    >>> [fitting(c, 4) for c in (1, 6, 10, 19, 20)]
    [1, 3, 4, 4, 4]
    """
    most = min(most, cohort)
    return max((c for c in range(most // 2 + 1, most + 1) if cohort % c == 0), default=most)


def in_memory(problem: Problem, batches: BatchSource, cohort: int, batched: bool) -> int:
    """Return the chunk size for which clients fit into the GPU's free memory, in even chunks.

    If they are `batched` in one call, each needs memory for its activations.
    """
    each = ROWS * problem.start.nbytes
    if batched:
        with suppress(Exception):  # if it cannot be batched, choose() says so
            each += max(0, _peak(problem, batches, 2) - _peak(problem, batches, 1))
    return evenly(cohort, max(1, int(PART * free(problem.device)) // each))


def evenly(cohort: int, most: int) -> int:
    """Return the smallest chunk size with the fewest chunks of at most `most` clients.

    >>> evenly(50, 30)
    25
    """
    chunks = -(-cohort // most)
    return -(-cohort // chunks)


def free(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a GPU."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _peak(problem: Problem, batches: BatchSource, m: int) -> int:
    """Return the peak memory in bytes of a batched step of m clients."""
    y = problem.start.expand(m, -1).contiguous()
    batch = batches.probe(torch.arange(m) % batches.fed.clients)
    before = torch.cuda.memory_allocated(problem.device)
    torch.cuda.reset_peak_memory_stats(problem.device)
    VmapEngine(problem).value_and_grad(y, batch)
    return torch.cuda.max_memory_allocated(problem.device) - before
