"""What the terminal shows of a study."""

import io

import pytest
from rich.console import Console

from helpers import labelled
from tunefree.core.errors import ArgumentError
from tunefree.study import FailedRun, pool
from tunefree.study.candidates import parse_candidates
from tunefree.study.comparison import run_comparison
from tunefree.study.progress import TerminalProgress
from tunefree.study.source import PythonStudy
from tunefree.study.tasks import RunTask
from unit.study.test_comparison import SMALL, model


def watched(terminal, methods=("fedavg", "auto:nope"), out=None, **settings):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, highlight=False, no_color=True)
    watch = TerminalProgress(console)
    update = watch._bar.update  # drawn at once, not when its clock says so
    watch._bar.update = lambda *args, **more: update(*args, **more | {"refresh": True})
    study = PythonStudy.create("compare", model, labelled(), SMALL | settings, 2, out)
    run_comparison(study, parse_candidates(methods), watch)
    return watch, file.getvalue()


def test_bars(tmp_path):
    watch, said = watched(True, ["fedavg", "auto"], tmp_path)
    for words in ("runs", "4 of 4", "round 3/3", "fedavg, seed 0", "auto, seed 1", "accuracy "):
        assert words in said
    (every,) = watch._bar.tasks  # those of single runs are gone
    assert (every.completed, every.total) == (12, 12)
    watch, said = watched(True, ["fedavg", "auto"], tmp_path)
    assert "4 of 4 runs were there already." in said
    assert watch._bar.tasks[0].total == 0


def test_rounds_that_are_not_played_leave_the_total():
    watch, _ = watched(True, {"wild": "fedavg:lr=1e308", "sound": "fedavg"})
    (every,) = watch._bar.tasks
    assert every.completed == every.total < 12


def test_a_line_for_each_run_elsewhere():
    _, said = watched(False, {"[b]wild": "fedavg:lr=1e308", "sound": "fedavg"})
    lines = said.splitlines()
    assert [line for line in lines if "sound, seed 1: finished, test accuracy 0." in line]
    assert [line for line in lines if line.startswith("[b]wild, seed 0: diverged")]
    assert [line for line in lines if line.startswith("[b]wild, seed 0: Diverged in round")]
    assert "round 1/" not in said


def test_a_failure_is_a_line():
    file = io.StringIO()
    with TerminalProgress(Console(file=file, width=200)) as watch:
        task = RunTask("a", 0, 3)
        watch.on_plan([task])
        watch.on_end(task, FailedRun(0, "It broke [here]."), trained=False)
    assert file.getvalue() == "a, seed 0: It broke [here].\n"


def test_torchrun_is_refused(monkeypatch):
    from tunefree.core.ranks import Ranks

    monkeypatch.setattr(pool, "init_ranks", lambda: Ranks(0, 2))
    with pytest.raises(ArgumentError, match="leave torchrun out"):
        watched(False, ["fedavg"])
