"""Settings for all tests."""

import signal
from contextlib import suppress

import pytest

from tunefree.models import batched

# Folders whose runs are so short that recording graphs of steps takes longer than the runs, except
# for the tests that are about recorded steps. Recorded steps have the same bits.
SHORT = ("tests/oracle/", "tests/every/", "tests/unit/", "tests/trust/")
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
    """Record no graphs of steps in short runs."""
    name = request.node.nodeid
    if name.startswith(SHORT) and not any(part in name for part in RECORDED):
        monkeypatch.setattr(batched, "TRACE_AFTER", 10**9)
