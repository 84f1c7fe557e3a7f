"""How many clients train at once."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from ..models.batched import Vmapped
from ..models.problem import Problem
from .feed import BatchSource

log = logging.getLogger("tunefree")

T = TypeVar("T")

CACHE = 5 << 19  # bytes of client rows that a CPU keeps close; larger chunks were slower
FEW = 4  # clients that are compiled into one call however large they are
ROWS = 12  # rows of d numbers that rules hold for a client: its point, gradient, memory, ...
PART = 0.8  # of the free memory of a GPU that clients may fill


class Chunks:
    """Cuts clients into chunks; where a GPU's memory ends, into smaller ones from then on.

    Args:
        size: Clients in a chunk.
        release: Gives back what is held between calls.
    """

    def __init__(self, size: int, release: Callable[[], None]) -> None:
        self.size, self._release = size, release

    def each(
        self, ids: Tensor, work: Callable[[Tensor, Tensor | None], T]
    ) -> Iterator[tuple[Tensor, T]]:
        """Yield chunks of these clients with their work, which is told who comes next.

        Work leaves no trace before it returns: it may be cut short and done in smaller chunks.
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
            log.warning(
                "The GPU's memory does not hold %d clients at once; going on with %d.",
                len(part),
                self.size,
            )
            todo = self._cut(torch.cat([part, *todo]))

    def _cut(self, ids: Tensor) -> deque[Tensor]:
        return deque(torch.split(ids, self.size) if len(ids) else ())


def in_cache(cohort: int, row: int) -> int:
    """Return how many clients whose rows, of so many bytes, stay in the cache run at once.

    Up to `FEW` in any case: one alone is slower (several take a thread each, one's products are
    shared by the threads).

    >>> in_cache(20, 1 << 30), in_cache(20, 1)
    (4, 20)
    """
    return fitting(cohort, max(FEW, CACHE // row))


def fitting(cohort: int, most: int) -> int:
    """Return a size of chunks up to `most`: a divisor above half of it, else that many.

    What is then left over is a smaller chunk, which is not compiled.

    >>> [fitting(c, 4) for c in (1, 6, 10, 19, 20)]
    [1, 3, 4, 4, 4]
    """
    most = min(most, cohort)
    return max((c for c in range(most // 2 + 1, most + 1) if cohort % c == 0), default=most)


def in_memory(problem: Problem, feed: BatchSource, cohort: int, batched: bool) -> int:
    """Return how many clients of the cohort fit into the GPU's free memory, in even chunks.

    Args:
        problem: Model and loss, on the GPU.
        feed: Where a batch comes from.
        cohort: Clients that take part.
        batched: Whether clients run in one call, so that each needs room for its activations.
    """
    each = ROWS * problem.start.nbytes
    if batched:
        with suppress(Exception):  # where it cannot be batched after all, choose() says so
            each += max(0, _peak(problem, feed, 2) - _peak(problem, feed, 1))
    return evenly(cohort, max(1, int(PART * free(problem.device)) // each))


def evenly(cohort: int, most: int) -> int:
    """Return the chunk size that takes the fewest chunks of at most so many, as equal as can be.

    >>> evenly(50, 30)
    25
    """
    chunks = -(-cohort // most)
    return -(-cohort // chunks)


def free(device: torch.device) -> int:
    """Return the bytes that can still be taken on a GPU."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _peak(problem: Problem, feed: BatchSource, m: int) -> int:
    """Return the bytes that a batched step of m clients takes at its highest."""
    y = problem.start.expand(m, -1).contiguous()
    batch = feed.probe(torch.arange(m) % feed.fed.clients)
    before = torch.cuda.memory_allocated(problem.device)
    torch.cuda.reset_peak_memory_stats(problem.device)
    Vmapped(problem).value_and_grad(y, batch)
    return torch.cuda.max_memory_allocated(problem.device) - before
