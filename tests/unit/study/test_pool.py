"""The process pool: results, messages, processes that die, and the request to stop."""

import os
import time

import pytest

from tunefree.study.pool import ProcessPool

LIMIT = 120  # seconds until a task gives up; processes take a while to start


def double(task, worker):
    worker.send(f"doing {task}")
    return 2 * task


def fail(task, worker):
    if task == 1:
        raise ValueError("not this one")
    return task


def die(task, worker):
    os._exit(3)


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


def test_an_error_is_the_result():
    with ProcessPool(fail, 1) as pool:
        found = dict(pool.run([0, 1, 2], ignore))
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], ValueError)


def test_a_process_that_dies():
    with ProcessPool(die, 1) as pool:
        ((task, result),) = pool.run([7], ignore)
    assert task == 7
    assert isinstance(result, BaseException)


def test_close_asks_tasks_to_stop():
    began = time.monotonic()

    def interrupt(task, message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ProcessPool(wait_for_stop, 1) as pool:
        for _ in pool.run([0], interrupt):
            pass
    assert time.monotonic() - began < LIMIT
