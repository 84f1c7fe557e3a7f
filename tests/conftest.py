"""Settings for all tests."""

import gc
import os
import signal
import sys
from contextlib import suppress

import pytest

# Folders whose runs are so short that recording graphs of steps takes longer than the runs, except
# for the tests that are about recorded steps, and for those whose runs have hundreds of steps.
# Recorded steps have the same bits.
SHORT = ("tests/oracle/", "tests/every/", "tests/unit/", "tests/trust/")
RECORDED = ("unit/models/", "trust/test_long", "methods/test_fixed_points.py")
RECORDED += ("unit/test_estimators.py",)
RECORDED += ("test_identities.py::test_toy", "test_invariants.py::test_solvers_do_not_count_steps")
RECORDED += ("::test_minibatches[least_squares-uniform", "::test_minibatches[softmax-uniform")
RECORDED += ("test_proposed.py::test_named_methods[wlod-exact",)


def pytest_configure():
    """Set the terminal's width, and let Ctrl-C work in tests and in their child processes.

    The command line's consoles read the width when they are imported, whichever test is first. A
    suite that is started in the background (`nohup make test &`, many CI runners) inherits an
    ignored SIGINT, and so would every process that it starts.
    """
    os.environ["COLUMNS"] = "100"
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave what is collected out of garbage collection: ten thousand tests, and all modules.

    Looking through them again and again is a third of the time that collecting takes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Record no graphs of steps in short runs.

    This is a hook, as a fixture of every test would take as long as the shortest of them.
    """
    module, name = sys.modules.get("tunefree.models.batched"), item.nodeid
    if module is None or not name.startswith(SHORT) or any(part in name for part in RECORDED):
        return (yield)
    before, module.TRACE_AFTER = module.TRACE_AFTER, 10**9
    try:
        return (yield)
    finally:
        module.TRACE_AFTER = before


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Change to an empty folder, on a narrow terminal without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def wide(monkeypatch):
    """Let errors of the command line have lines of any length.

    Not by $COLUMNS: cyclopts reads it once, for all later tests of the process.
    """
    from rich.console import Console

    from tunefree import cli

    monkeypatch.setattr(cli.app, "_error_console", Console(stderr=True, width=500))


@pytest.fixture
def call(capsys):
    """Run a command in this process: (exit code, standard output, standard error)."""
    from tunefree import cli

    def run(*words, app=cli.app):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(word) for word in words], app=app)
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run
