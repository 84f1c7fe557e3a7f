"""The notebooks run from top to bottom, and what they show can be shown."""

import ast
import csv
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = {path.name: path for path in sorted(FOLDER.glob("*.ipynb"))}


def play(path, names):
    """Run the code cells in one namespace; return what each one's last expression shows."""
    shown = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"]), f"{path.name}, cell {number}").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            html = getattr(value, "_repr_html_", None)
            shown.append(html() if html else repr(value))
    return shown


def test_there_are_notebooks():
    assert "first-steps.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_without_outputs(name):
    notebook = json.loads(NOTEBOOKS[name].read_text())
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_first_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    data, run, predictions, both, comparison, loaded = play(NOTEBOOKS["first-steps.ipynb"], names)[
        :6
    ]
    assert data.startswith("Federation('hospitals', 20 clients, ")
    assert names["run"].status == "finished"
    assert names["run"].summary["test_accuracy"] > 0.85
    assert "finished" in run
    labels = names["run"].predict(names["x"][:3])
    assert repr(labels) in predictions
    assert loaded == repr(labels)  # plain PyTorch says the same
    accuracy = ast.literal_eval(both)
    assert accuracy[names["largest"]] + 0.1 < accuracy["together"]
    found = names["comparison"]
    assert len(found.seeds) == 5
    verdicts = {row["label"]: row["verdict"] for row in found.table()}
    assert list(verdicts) == ["auto", "fedavg", "fedavg:tuned", "scaffold"]
    assert verdicts["auto"] in ("best", "not told apart")  # as the text says
    for method in verdicts:
        assert method in comparison
    with (tmp_path / "first-steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 40
    assert "auto wire=" in capsys.readouterr().out


def test_it_installs_from_the_clone():
    text = NOTEBOOKS["first-steps.ipynb"].read_text()
    assert "pip install -e ." in text
    assert "pip install tunefree" not in text
