"""Freed blocks are kept while a run goes on, and given back after it."""

import resource
import subprocess
import sys
import threading

import pytest
import torch

from helpers import run_threads
from tunefree.core import heap

MEGABYTES = 256


PROGRAM = f"""
import resource, torch
from tunefree.core import heap

def faults(times=4):
    # Pages that the kernel had to clear for large tensors that come and go.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.empty({MEGABYTES} << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

outside, before = faults(), resident()
with heap.keep_heap():
    # A small block of somebody else's may take the end of a freed one, which then is too small
    # and the next tensor lies elsewhere: one of several finds its place again.
    inside = min(faults(1) for _ in range(12))
    with heap.keep_heap():
        pass  # the inner one gives nothing back
    within = resident()
print(outside, inside, within - before, resident() - before)
"""


@pytest.mark.skipif(heap._glibc() is None, reason="needs glibc")
def test_blocks_are_kept_within_and_given_back_after():
    """In a process of its own: what others left on the heap would decide where blocks lie."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=120
    )
    outside, inside, within, after = map(int, done.stdout.split())
    if outside < 4 * (MEGABYTES << 20) / (16 * resource.getpagesize()):
        pytest.skip("this system does not count pages, or maps large ones")
    assert within > MEGABYTES << 19
    assert inside < outside / 4 / 2
    assert after < MEGABYTES << 19


def test_the_setting_is_put_back_after_an_error_and_once_by_all_threads(monkeypatch):
    told = []
    monkeypatch.setattr(heap, "_set_malloc", lambda maps, trim: told.append(maps))
    both = threading.Barrier(2)

    def work():
        with heap.keep_heap():
            both.wait(10)
            both.wait(10)

    run_threads(work, work)
    assert told == [0, 65536]
    with pytest.raises(ZeroDivisionError), heap.keep_heap():
        raise ZeroDivisionError
    assert told == [0, 65536, 0, 65536]


def test_elsewhere_nothing_is_done(monkeypatch):
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with heap.keep_heap():
        assert torch.ones(3).sum() == 3
