"""Help, the version, and words that cannot be read."""

import re
import runpy
import sys

import pytest

import tunefree as tf
from tunefree.training.command import CommandConfig

pytestmark = pytest.mark.usefixtures("place")


def options():
    return {f"--{name.replace('_', '-')}" for name in CommandConfig().to_json()}


HELP = {
    "run": options() | {"--config", "--out", "--resume", "--log", "--dry-run", "--json"},
    "methods": {"--json"},
    "datasets": {"--json", "--data-dir"},
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_every_option(call, command):
    code, out, err = call(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: tunefree {command} [OPTIONS]")
    assert set(re.findall(r"^│ (--[a-z-]+)", out, re.M)) == HELP[command]
    assert max(len(line) for line in out.splitlines()) <= 100
    for name in HELP[command]:  # each with a text of its own
        assert re.search(rf"^│ {name}\b[^│]*  +\S[^│]*│$", out, re.M), name


EXAMPLES = {
    "advise": "tunefree advise --sparse --tuning",
    "compare": "tunefree compare --resume study",
    "report": "tunefree report runs --out report.html",
    "run": "tunefree run --log csv --log tensorboard",
    "tune": "tunefree tune --resume search",
    "watch": "tunefree watch runs",
}


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_has_the_examples(call, command):
    lines = [line.rstrip() for line in call(command, "--help")[1].splitlines()]
    assert lines.index("For example:") < lines.index(EXAMPLES[command])


def test_help_of_the_whole(call):
    code, out, _ = call("--help")
    assert code == 0
    assert out.splitlines()[:3] == [
        "Usage: tunefree COMMAND",
        "",
        "Federated learning with nothing to tune.",
    ]
    for command, words in {
        "run": "Train one model over many clients' data and write a run folder.",
        "methods": "List the methods: paper, traffic, memory, and the settings that must be",
        "datasets": "List the datasets and where their files are; their terms with --json.",
    }.items():
        assert re.search(rf"^│ {command} +{re.escape(words)}", out, re.M)
    assert call()[1] == out


def test_lines_of_the_help_of_run(call):
    lines = [re.sub(r" +", " ", line) for line in call("run", "--help")[1].splitlines()]
    for line in (
        "Train one model over many clients' data and write a run folder. ",
        "tunefree run --resume runs/digits-auto-1",
        "│ --data STR Dataset name (tunefree datasets lists them), or FILE.py:NAME of │",
        "│ your own. [default: digits] │",
        "│ --rounds INT Communication rounds T, >= 1. [default: 100] │",
        '│ --loss STR "cross_entropy", "bce" (a logit for each 0/1 target), "mse", │',
        "│ target) -> loss of each sample (FILE.py:NAME on the command line). │",
        "│ --out PATH Run folder; by default the next free runs/DATA-METHOD-NUMBER. │",
    ):
        assert line in lines


def test_version(call):
    assert call("--version")[:2] == (0, f"{tf.__version__}\n")


UNREADABLE = {
    "option": (["run", "--cvs"], "Unknown option: --cvs. Did you mean --csv?"),
    "number": (["run", "--rounds", "x"], 'Invalid value for --rounds: unable to convert "x"'),
    "choice": (["run", "--dtype", "float16"], 'Invalid value "float16" for --dtype. Choose from:'),
    "value": (["run", "--rounds"], "--rounds requires an argument."),
    "file": (["run", "rows.csv"], "No option takes 'rows.csv'; a value follows its option, as in"),
    "command": (["rnu"], 'Unknown command "rnu". Did you mean "run"?'),
}


@pytest.mark.parametrize(("words", "sentence"), UNREADABLE.values(), ids=UNREADABLE)
def test_words_that_cannot_be_read(call, words, sentence, place):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert list(place.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens:UserWarning")
def test_as_a_module(monkeypatch, capsys):
    """As in `python -m tunefree --version`."""
    monkeypatch.setattr(sys, "argv", ["tunefree", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("tunefree", run_name="__main__", alter_sys=True)
    assert capsys.readouterr().out.strip() == tf.__version__
