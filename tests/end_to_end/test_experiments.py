"""python -m experiments, and the pages that show what it found."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
from experiments import load, render
from experiments.__main__ import app, format_minutes
from experiments.index import MARKS
from experiments.record import record_path, save

from unit.experiments.papers import SPEC, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    write(tmp_path / "experiments")
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(tmp_path / "experiments"))
    monkeypatch.chdir(tmp_path)
    return partial(call, app=app)


def test_list_run_and_keep(call, tmp_path):
    for words in ((), ("LIST",), ("list",)):
        code, out, _ = call(*words)
        assert code == 0
        assert "PX-table1" in out
        assert "Accuracy on digits" in out
    code, out, _ = call("PX-table1", "--dry-run")
    assert code == 0
    assert "7 runs, 18 rounds in all." in out
    assert not (tmp_path / "runs").exists()
    code, out, err = call("px-table1", "--jobs", "2", "--device", "cpu", "--keep")
    assert code == 0, err
    for words in ("0.8000 ± 0.0100", "Of 1 claim", "Assumed:", "Smaller than the paper:"):
        assert words in out
    folder = tmp_path / "runs" / "experiments" / "PX-table1-small"
    assert f"Page: {folder.relative_to(tmp_path)}/PX-table1-small.html" in err
    kept = tmp_path / "experiments" / "PX" / "results" / "table1-small.json"
    code, out, err = call("PX-table1", "--device", "cpu", "--json")
    assert json.loads(out)["rows"] == json.loads(kept.read_text())["rows"]
    assert "7 of 7 runs were there already." in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["PX-table9"], "Unknown experiment 'PX-table9'. Did you mean 'PX-table1'?"),
        (["PX-table1", "--tasks", "T9"], "Unknown task 'T9'. Known: T1."),
        (["PX-table1", "--methods", "Audo"], "Unknown method 'Audo'. Did you mean"),
        (["PX-table1", "--out", "experiments/PX/table1.toml"], "must be a folder that can be"),
        (["PX-table1", "--rounds", "0"], "run(rounds=...) must be an int >= 1"),
        (["PX-table1", "--jobs", "-1"], "run(jobs=...) must be an int >= 0"),
    ],
)
def test_errors_are_sentences(call, words, sentence):
    code, _, err = call(*words)
    assert code == 2
    assert sentence in " ".join(err.split())


def test_the_duration_of_one_process_is_not_that_of_two_cores(tmp_path):
    spec = load(write(tmp_path))
    for jobs, minutes in ((2, "10.0"), (1, "3")):
        save({"wall": 600.0, "jobs": jobs, "narrowed": "", "rows": []}, record_path(spec, "small"))
        assert format_minutes(spec, "small", 3.0) == minutes
    assert format_minutes(spec, "small", None) == "10.0"


NEEDS_PLOTS = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="figures need matplotlib"
)


def test_the_pages_are_up_to_date():
    assert render.stale_pages(render.load_records(render.HERE)) == []


def test_the_readme_says_what_the_results_say():
    readme = render.read_readme()
    assert all(mark in readme for mark in MARKS)
    assert "claims hold" in readme
    assert not render.is_readme_stale(render.load_records(render.HERE))


@NEEDS_PLOTS
@pytest.mark.parametrize("paper", ["P2", "P3"])
def test_a_figure_is_up_to_date(paper):
    found = render.load_records(render.HERE)[paper]
    assert render.stale_figures({paper: found[:1]}) == []


@NEEDS_PLOTS
@pytest.mark.slow
def test_every_figure_is_up_to_date():
    assert render.main(["--check"]) == 0


def record(folder):
    row = {"task": "T1", "base": "", "set": {}}
    row |= {"status": ["finished"] * 2, "notes": [], "seconds": [1, 1]}
    search = {"runs": 3, "rounds": 2, "lost": 1, "gradients": 9, "seconds": 1.0}
    curve = {"x": [1, 2], "mean": [0.1, 0.2], "low": [0.1, 0.1], "high": [0.1, 0.3]}
    rows = [
        {**row, "label": label, "values": {"best": last, "last": last}, "curves": {"a": curve}}
        for label, last in (("FedAvg", [0.5, 0.6]), ("Auto", [0.7, 0.8]))
    ]
    rows[0] |= {"method": "fedavg", "chosen": {"lr": 0.3}, "search": search}
    rows[1] |= {"method": "auto", "chosen": None, "search": None}
    machine = {"cpu": "A CPU", "cores": 2, "threads": 1, "memory": None, "gpu": None}
    versions = {"tunefree": "1", "torch": "2", "triton": None}
    facts = {"name": "PX-table1", "scale": "small", "command": "python -m experiments PX-table1"}
    facts |= {
        "narrowed": "",
        "date": "2026-01-01",
        "seconds": 60,
        "seeds": [0, 1],
        "tune_by": "test",
    }
    words = load(write(folder)).at("small").of("T1").words
    tasks = [{"name": "T1", "label": "T1", "words": words, "skipped": ""}]
    return {**facts, "machine": machine, "versions": versions, "x": "round", "tasks": tasks} | {
        "rows": rows
    }


@NEEDS_PLOTS
def test_the_pages_follow_results_and_specifications(tmp_path, monkeypatch, capsys):
    home, docs = tmp_path / "experiments", tmp_path / "docs"
    path = write(home)
    monkeypatch.setattr(render, "HERE", home)
    monkeypatch.setattr(render, "DOCS", docs)
    assert render.main([]) == 0
    assert "No results are kept yet." in (docs / "P0.md").read_text()
    save(record(tmp_path / "elsewhere"), home / "PX" / "results" / "table1-small.json")
    assert render.main(["--check"]) == 1
    assert "PX.md" in capsys.readouterr().err
    assert render.main([]) == 0
    page = (docs / "PX.md").read_text()
    assert "| FedAvg | 0.9000 | 0.5500 ± 0.0707 | −0.3500 |" in page
    assert "| holds | Auto beats FedAvg | last | Auto against FedAvg |" in page
    assert "](PX-table1-small.svg)" in page
    assert (docs / "PX-table1-small.svg").read_text().startswith("<?xml")
    assert render.main(["--check"]) == 0
    (docs / "PX-table1-small.svg").write_text(
        (docs / "PX-table1-small.svg").read_text().replace("FedAvg", "FedBvg")
    )
    assert render.main(["--check"]) == 1
    assert "Out of date: PX-table1-small.svg;" in capsys.readouterr().err
    (docs / "PX-table1-small.svg").unlink()
    assert render.main(["--check"]) == 1
    assert render.main([]) == 0
    assert "Of 1 claim 1 holds." in (docs / "index.md").read_text()
    path.write_text(SPEC.replace("Auto beats FedAvg", "Auto wins"))
    assert render.main(["--check"]) == 1
    assert load(path).at("small").claims[0].says == "Auto wins"
    assert render.main(["--nope"]) == 2
