"""Settings for all tests."""

import signal
from contextlib import suppress

import pytest

from tunefree.models import batched

# Tests with recorded graphs, as longer runs have them; elsewhere recording would take longer than
# the runs. Recorded steps have the same bits.
RECORDED = ("oracle/test_methods.py::test_minibatches", "unit/models/", "trust/test_long")


def pytest_configure():
    """Let Ctrl-C work in tests and in their child processes.

    A suite that is started in the background (`nohup make test &`, many CI runners) inherits an
    ignored SIGINT, and so would every process that it starts.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_recording(request, monkeypatch):
    """Record no graphs of steps, except in the tests that are about them."""
    if not any(name in request.node.nodeid for name in RECORDED):
        monkeypatch.setattr(batched, "TRACE_AFTER", 10**9)
