"""What CONTRIBUTING.md says about new methods, done as it says: its code blocks are the files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
METHOD, ORACLE, PACKAGE = PYTHON
ENTRY_POINTS = re.search(r"^```toml\n(.*?)^```", TEXT, re.S | re.M)[1]
COMMANDS = re.findall(r"^    (tunefree .*)$", TEXT, re.M)


def run(*words, path, cwd):
    """Run Python in a process of its own, with `path` in front of what is installed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and of two folders of tests, with the files of CONTRIBUTING.md."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("src/tunefree", "tests/oracle", "tests/every"):
        clean = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=clean)
    shutil.copy(ROOT / "tests/helpers.py", root / "tests")
    (root / "src/tunefree/methods/fednesterov.py").write_text(METHOD)
    (root / "tests/oracle/test_fednesterov.py").write_text(ORACLE)
    return root


def test_a_method_file_shows_everywhere(copy):
    """Catalogue, grid, ledger, command line and documentation page, from one new file."""
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pages
import tunefree as tf
from tunefree.simulation.dry_run import count_units
from tunefree.study.tuning import default_grid
found = count_units(tf.methods.get("fednesterov"))
print(json.dumps({
    "file": tf.__file__,
    "named": "fednesterov" in tf.methods.names(),
    "grid": default_grid("fednesterov"),
    "units": {name: str(value) for name, value in found.items()},
    "page": pages.virtual()["methods/fednesterov.md"],
    "reference": pages.virtual()["reference/methods.md"],
    "families": pages.groups(),
}))
"""
    out = run("-c", code, str(ROOT / "tools/docs"), path=[copy / "src"], cwd=copy)
    said = json.loads(out)
    assert said["file"].startswith(str(copy))
    assert said["named"]
    assert said["grid"] == {"lr": [0.01, 0.0316, 0.1, 0.316, 1.0]}
    assert said["units"] == {"up": "d", "down": "d", "before": "0", "client": "0", "server": "d"}
    assert "fednesterov" in said["families"]["Averaging and adaptive servers"]
    page = said["page"]
    assert page.startswith("# fednesterov\n\nFedAvg with Nesterov's momentum on the server;")
    assert "v <- momentum v + delta" in page[: page.index("| what | is |")]
    assert "| left to choose | `lr` |" in page
    assert re.search(r"\| `momentum` \| .* \| `0.9` \| Share of v that is kept", page)
    assert "[`Nesterov`][tunefree.methods.fednesterov.Nesterov]" in page
    assert "::: tunefree.methods.fednesterov.Nesterov\n" in said["reference"]


def test_a_method_file_is_tested_by_being_there(copy):
    """Its oracle, the contract, its parts and the ledger; no list names it."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", copy]
    words += ["tests/oracle/test_fednesterov.py", "tests/every", "-k", "nesterov", "-rA"]
    said = run(*map(str, words), path=[copy / "src", copy / "tests", ROOT / "tests"], cwd=copy)
    passed = re.findall(r"^PASSED (\S+)", said, re.M)
    assert not re.search(r"^(FAILED|ERROR)", said, re.M)
    for name in (
        "test_fednesterov.py::test_fednesterov[softmax]",
        "test_ledger.py::test_the_ledger_counts_what_parts_declare[fednesterov]",
        "test_methods.py::test_contract[fednesterov-check_rules_are_pure]",
        "test_methods.py::test_contract[fednesterov-check_crashed_and_resumed]",
        "test_parts.py::test_servers_are_pure[methods.Nesterov]",
        "test_public.py::test_methods_have_one_line_that_says_what_they_are[fednesterov]",
    ):
        assert any(line.endswith(name) for line in passed), name


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Another package, as pip leaves it: a module, and a dist-info with its entry points."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "fedmine.py").write_text(PACKAGE)
    info = folder / "fedmine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedmine\nVersion: 1.0\n")
    points = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", ENTRY_POINTS)
    (info / "entry_points.txt").write_text(points.replace('"', ""))
    return folder


def test_another_packages_names_are_on_the_command_line(installed, tmp_path):
    about, train = (command.split()[1:] for command in COMMANDS)
    code = """
import json, sys
from tunefree.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
"""
    commands = json.dumps([["methods"], about, [*train, "--out", "run"]])
    said = run("-c", code, commands, path=[installed, ROOT / "src"], cwd=tmp_path)
    assert re.search(r"fedmine\W+Our report\W+lr\W+d\W+d\W+0\W+0\W+any", said)
    assert "FedAvg with half of a server step" in said
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["method"]["server"] == {"part": "Average", "server_lr": 0.5}
    history = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert len(history) == 3
