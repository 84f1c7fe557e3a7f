"""The process pool: results, messages, processes that die, and the request to stop."""

import os
import time

import pytest

from tunefree.study.pool import ProcessPool

LIMIT = 120  # seconds until a task gives up; processes take a while to start


def double(task, worker):
    """Twice the number; 0 is an error, and a negative number ends the process."""
    worker.send(f"doing {task}")
    if task == 0:
        raise ValueError("not this one")
    if task < 0:
        os._exit(3)
    return 2 * task


def wait_for_stop(task, worker):
    worker.send("started")
    until = time.monotonic() + LIMIT
    while not worker.stop_requested and time.monotonic() < until:
        time.sleep(0.01)
    return worker.stop_requested


def ignore(task, message):
    pass


def test_results_and_messages():
    messages = []
    with ProcessPool(double, 2) as pool:
        found = dict(pool.run([1, 2, 3], lambda *said: messages.append(said)))
        again = dict(pool.run([4], lambda *said: messages.append(said)))  # the same processes
    assert found == {1: 2, 2: 4, 3: 6}
    assert again == {4: 8}
    assert set(messages) <= {(i, f"doing {i}") for i in (1, 2, 3, 4)}


def test_an_error_is_the_result_and_so_is_the_death_of_a_process():
    with ProcessPool(double, 1) as pool:
        found = dict(pool.run([1, 0, 2], ignore))
        ((task, result),) = pool.run([-7], ignore)
    assert (found[1], found[2]) == (2, 4)
    assert isinstance(found[0], ValueError)
    assert task == -7
    assert isinstance(result, BaseException)


def test_close_asks_tasks_to_stop():
    began = time.monotonic()

    def interrupt(task, message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ProcessPool(wait_for_stop, 1) as pool:
        for _ in pool.run([0], interrupt):
            pass
    assert time.monotonic() - began < LIMIT
