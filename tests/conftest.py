"""Settings for all tests."""

import signal
from contextlib import suppress


def pytest_configure():
    """Let Ctrl-C work in tests and in their child processes.

    A suite that is started in the background (`nohup make test &`, many CI runners) inherits an
    ignored SIGINT, and so would every process that it starts.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)
