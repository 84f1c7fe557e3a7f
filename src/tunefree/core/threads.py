"""Threads of PyTorch on a CPU: how many there are, and how they wait for each other.

Threads share an operation and wait for each other at its end. With GNU's OpenMP, which PyTorch has
on Linux, a waiting thread asks again and again for milliseconds before it sleeps. If another
program uses the core too, it takes that time from the thread that it waits for, and a run with many
small operations is many times slower. While a process has more threads of OpenMP than cores, they
sleep almost at once (GOMP_SPINCOUNT in the manual of libgomp). `WaitLimiter` makes use of that: it
changes how threads wait, not what they compute.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch

if sys.platform == "linux":
    from os import sched_getaffinity
    from resource import RUSAGE_SELF, getrusage

# Times per second that a thread is taken off its core: 20 on idle cores, 110 where another program
# uses each of them.
MOST_SWITCHES = 50.0
MIN_SECONDS = 0.05  # over which they are counted
HOLD_SECONDS = 30.0  # after which threads wait as before, until cores are found busy again


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Use one thread of the CPU for PyTorch's operations inside, if `wanted`.

    For small work, which several threads hardly make faster.
    """
    threads = torch.get_num_threads()
    if not wanted or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class WaitLimiter:
    """Lets PyTorch's threads sleep while they wait, if other programs use the cores."""

    def __init__(self) -> None:
        self._time, self._switches, self._was_busy = 0.0, 0, False
        self._holders: list[Thread] = []

    def update(self) -> None:
        """Count what happened since the last call; to be called in every round.

        Two calls in a row must find the cores busy: in the first round, so is the compiler.
        """
        threads = torch.get_num_threads()
        if sys.platform != "linux" or threads == 1:
            return
        now, switches = time.monotonic(), getrusage(RUSAGE_SELF).ru_nivcsw
        seconds, count = now - self._time, switches - self._switches
        if seconds < MIN_SECONDS:
            return
        self._time, self._switches = now, switches
        was_busy, is_busy = self._was_busy, count > MOST_SWITCHES * threads * seconds
        self._was_busy = is_busy
        if not (is_busy and was_busy) or any(h.is_alive() for h in self._holders):
            return
        cores = len(sched_getaffinity(0))
        self._holders = [
            Thread(target=_hold_threads, args=(threads,), daemon=True)
            for _ in range(cores // threads or 1)
        ]
        for holder in self._holders:
            holder.start()


def _hold_threads(threads: int) -> None:
    """Start the OpenMP threads of this thread of Python, and let them sleep."""
    torch.ones(threads << 16).add_(1)  # large enough to be shared by all
    time.sleep(HOLD_SECONDS)


WAIT_LIMITER = WaitLimiter()  # one for the process, as the threads are
