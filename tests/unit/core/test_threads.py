"""Threads that wait for each other sleep while other programs use the cores."""

import sys
from types import SimpleNamespace

import pytest
import torch

from tunefree.core import threads
from tunefree.core.threads import WaitLimiter, one_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only GNU's OpenMP waits so")


@pytest.fixture
def clock(monkeypatch):
    """A process with two threads on four cores, whose time and counts are set by the test."""
    now = SimpleNamespace(seconds=100.0, ru_nivcsw=5000, started=[])
    monkeypatch.setattr(threads.time, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(threads, "getrusage", lambda who: now)
    monkeypatch.setattr(threads, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(threads, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(threads, "_hold_threads", now.started.append)
    return now


def advance(limiter, clock, seconds, switches):
    """Let time pass, and return how many holders were started."""
    before = len(clock.started)
    clock.seconds += seconds
    clock.ru_nivcsw += switches
    limiter.update()
    for holder in limiter._holders:
        holder.join(10)
    return len(clock.started) - before


def test_threads_sleep_where_they_are_taken_off_their_cores(clock):
    limiter = WaitLimiter()
    assert advance(limiter, clock, 0, 0) == 0  # all the time since the machine started
    assert advance(limiter, clock, 1, 101) == 0  # as while something is compiled
    assert advance(limiter, clock, 1, 99) == 0
    assert advance(limiter, clock, 1, 101) == 0
    assert advance(limiter, clock, 1, 101) == 2  # 2 + 2 x 2 threads are more than 4 cores
    assert clock.started == [2, 2]
    assert advance(limiter, clock, 0.01, 10**6) == 0  # too short
    assert advance(limiter, clock, 1, 101) == 2


def test_nothing_is_started_twice(clock):
    limiter = WaitLimiter()
    limiter._holders = [SimpleNamespace(is_alive=lambda: True, join=lambda limit: None)]
    limiter.update()
    assert [advance(limiter, clock, 1, 10**6) for _ in range(3)] == [0, 0, 0]


def test_one_thread_waits_for_nobody(clock, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    limiter = WaitLimiter()
    limiter.update()
    assert [advance(limiter, clock, 1, 10**6) for _ in range(3)] == [0, 0, 0]


def test_holders_have_threads_of_their_own(monkeypatch):
    monkeypatch.setattr(threads, "HOLD_SECONDS", 0.0)
    threads._hold_threads(2)


def test_one_thread_is_set_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
