"""The progress bar of `fit`: in a terminal, in a notebook, nowhere else."""

import io
import os
import re
import sys
import types

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

import tunefree as tf
from helpers import labelled, linear, start_process
from tunefree.core.errors import Interrupted
from tunefree.report import terminal

SMALL = {"rounds": 4, "cohort": 2, "steps": 1, "batch": 4, "device": "cpu", "dtype": torch.float64}


def fit(**more):
    return tf.fit(linear(), labelled(), "fedavg", **SMALL | more)


@pytest.fixture
def screen(monkeypatch):
    """What a terminal of 100 columns is sent."""
    out = io.StringIO()
    make = terminal.Console

    def console(**more):
        return make(**more | {"stderr": False, "file": out, "force_terminal": True, "width": 100})

    monkeypatch.setattr(terminal, "Console", console)
    return out


def test_a_bar_in_a_terminal(screen, capsys):
    fit()
    text = re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())  # without colours
    assert re.search(
        r"4/4 .*━+.* loss \d\.\d{4}  accuracy \d\.\d{4}  [\d.]+ k?B  [\d.]+ rounds/s", text
    )
    assert "clients a round" not in text  # that is the command line's
    assert capsys.readouterr() == ("", "")


def test_without_a_test_set_there_is_the_loss_alone(screen):
    x = torch.randn(8, 3).double()
    fed = tf.Federation(x, (x[:, 0] > 0).long(), [0, 1] * 4)
    tf.fit(torch.nn.Linear(3, 2).double(), fed, **SMALL)
    assert " loss " in screen.getvalue()
    assert "accuracy" not in screen.getvalue()


def test_no_bar_if_none_is_wanted(screen):
    fit(progress=False)
    assert screen.getvalue() == ""


def test_no_bar_where_there_is_no_terminal(capsys):
    fit()
    assert capsys.readouterr() == ("", "")
    assert terminal.make_bar(3) is None


def test_no_bar_without_rich(monkeypatch):
    monkeypatch.delitem(sys.modules, "tunefree.report.terminal")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert fit().status == "finished"


def test_a_bar_inside_another(screen):
    """The other one is a user's own; where rich cannot draw two at once, one is drawn."""
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)):
        assert fit().status == "finished"


def test_an_error_ends_the_bar(screen):
    def fail(event):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fit(callbacks=[fail])
    assert fit().status == "finished"
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


def test_a_resumed_run_goes_on_where_it_was(screen, tmp_path):
    def stop(event):
        if event.round == 1:
            event.request_stop()

    with pytest.raises(Interrupted):
        fit(out=tmp_path / "a", callbacks=[stop])
    screen.truncate(0)
    fit(out=tmp_path / "a")
    assert "4/4" in screen.getvalue()


@pytest.fixture
def cell(monkeypatch):
    """What a notebook's cell shows: the contents of each display, one after the other."""
    shown = []

    class Handle:
        def __init__(self, content):
            shown.append([content])
            self.update = shown[-1].append

    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda content, display_id: Handle(content)
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_bar_in_a_notebook(cell, capsys):
    fit()
    (bar,) = cell
    assert bar[0].startswith('<progress value="1" max="4"></progress> round 1/4  loss ')
    assert bar[-1].startswith('<progress value="4" max="4"></progress> round 4/4  loss ')
    assert capsys.readouterr() == ("", "")
    fit(progress=False)
    assert len(cell) == 1


def test_one_bar_for_a_comparison_in_a_notebook(cell, capsys):
    def model(seed):
        return torch.nn.Linear(3, 2).double()

    tf.compare(model, labelled(), {"<b>": "fedavg", "auto": "auto"}, seeds=2, **SMALL)
    (bar,) = cell
    assert bar[0].startswith(
        '<progress value="1" max="16"></progress> 0 of 4 runs  &lt;b&gt;, seed 0'
    )
    assert bar[-1] == '<progress value="16" max="16"></progress> 4 of 4 runs'
    assert capsys.readouterr() == ("", "")


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert not terminal.is_in_notebook()


SCRIPT = """
import torch, tunefree as tf
x = torch.randn(8, 3)
fed = tf.Federation(x, (x[:, 0] > 0).long(), [0, 1] * 4)
tf.fit(torch.nn.Linear(3, 2), fed, "fedavg", rounds=3, steps=1, device="cpu")
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_script_in_a_real_terminal(tmp_path):
    master, slave = os.openpty()
    words = [sys.executable, "-c", SCRIPT]
    quiet = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    with start_process(words, env=quiet | {"TERM": "xterm"}, stderr=slave) as process:
        out, _ = process.communicate(timeout=120)
    os.close(slave)
    text = os.read(master, 100_000).decode()
    os.close(master)
    assert (process.returncode, out) == (0, "")
    assert "3/3" in text
