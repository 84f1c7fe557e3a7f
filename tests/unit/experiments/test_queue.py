"""The queue of paper-size runs: cut at any time it goes on, and nothing is trained twice."""

import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import load, run
from experiments.backlog import Backlog
from experiments.carry import collect
from experiments.kept import Kept, make_line, make_run, needed_columns, read_lines
from experiments.queue import main
from experiments.runner import digest_code
from experiments.runs import run_path
from experiments.schedule import Costs, Entry, Item, list_items, read_entries
from experiments.session import choose, save_often, train_in_worker
from experiments.source import ExperimentSource

from helpers import start_process
from tunefree.core.errors import ArgumentError

from .papers import write

ROOT = Path(__file__).parents[3]
SHORT = """
title = "Accuracy on digits"
show = ["best", "last", "bytes_up sum", "rounds to 0.2"]
curves = ["test_accuracy", "train_loss"]
[scale.paper]
rounds = 6
seeds = 2
tune_rounds = 3
[[task]]
name = "T1"
data = "digits"
rows = 300
split = "dirichlet:1"
clients = 4
model = "mlp"
model_args = { hidden = [8] }
steps = 3
batch = 16
eval_every = 2
[[method]]
name = "FedAvg"
method = "fedavg"
grid = { lr = [1e-6, 0.3] }
[[method]]
name = "Auto"
method = "auto"
"""
LONG = SHORT.replace("rounds = 6\nseeds = 2", "rounds = ROUNDS\nseeds = 1\nMORE")
LONG = LONG.replace("MORE", "compile = false\ncheckpoint_every = 20")
LONG = LONG.replace('grid = { lr = [1e-6, 0.3] }\n[[method]]\nname = "Auto"\nmethod = "auto"\n', "")
QUEUE = """
[[take]]
experiment = "PX-table1"
seeds = 1
"""


def write_papers(folder, rounds=0):
    """Write the paper PX; with `rounds` also a second table, of one run that takes long."""
    write(folder, SHORT, "")
    if rounds:
        write(folder, LONG.replace("ROUNDS", str(rounds)), "", what="table2")
    (folder / "queue.toml").write_text(QUEUE)
    return folder


def begin(folder, *words):
    """Start a session in a process of its own, as on another machine."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    place = {"PYTHONPATH": path, "TUNEFREE_EXPERIMENTS": str(folder / "experiments")}
    command = [sys.executable, "-m", "experiments.queue", *map(str, words)]
    command += ["--work", str(folder / "work"), "--out", str(folder / "out"), "--device", "cpu"]
    return start_process(command, 300, cwd=folder, env={**os.environ, **place}, stderr=None)


def session(folder, *words):
    with begin(folder, *words) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def nothing_to_do(folder, monkeypatch, capsys):
    """Whether a session finds nothing to train. It starts no process, so this one will do."""
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(folder / "experiments"))
    place = ["--work", str(folder / "work"), "--out", str(folder / "out"), "--device", "cpu"]
    assert main(["--minutes", "5", *place]) == 0
    return "0 runs done" in capsys.readouterr().out


def runs_of(folder):
    return {path.stem: path for path in (folder / "work" / "runs").glob("*.json")}


def history(path):
    return [
        {k: v for k, v in row.items() if k != "seconds"}
        for row in json.loads(path.read_text())["history"]
    ]


def backlog(folder):
    return Backlog(folder / "experiments", folder / "work")


def count_states(queue):
    found = [queue.state(item) for item in queue.items]
    return {state: found.count(state) for state in dict.fromkeys(found)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with PX-table1, all of it trained by the queue, with PyTorch and NumPy alone."""
    folder = tmp_path_factory.mktemp("queue")
    write_papers(folder / "experiments")
    assert count_states(backlog(folder)) == {"open": 4, "waiting": 2}
    (folder / "bare").mkdir()
    (folder / "bare" / "sitecustomize.py").write_text(
        "import sys\nsys.modules |= dict.fromkeys(['safetensors', 'rich', 'cyclopts', 'pooch'])\n"
    )
    known = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "bare"), known]))
        said = session(folder, "--minutes", 5, "--jobs", 2, "--list")
    return folder, said


def test_all_runs_are_trained_grids_first_and_need_torch_and_numpy_alone(trained):
    folder, said = trained
    lines = [line for line in said.splitlines() if line.startswith("done: ")]
    assert len(lines) == 6
    assert sum("grid" in line for line in lines) == 2
    assert re.search(r"6 runs done in [\d.]+ min; 6 are not kept yet.", said)
    assert count_states(backlog(folder)) == {"done": 6}
    assert sorted(runs_of(folder)) == sorted(
        line["key"] for line in read_lines(folder / "out" / "runs.jsonl")
    )


def test_nothing_is_trained_twice(trained, monkeypatch, capsys):
    folder, _ = trained
    before = {path: path.stat().st_mtime_ns for path in runs_of(folder).values()}
    assert nothing_to_do(folder, monkeypatch, capsys)
    assert before == {path: path.stat().st_mtime_ns for path in runs_of(folder).values()}


def agree(got, expected):
    """Require equality, of real numbers to the digits that are kept."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            agree(got[name], value)
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            agree(a, b)
    else:
        assert got == (pytest.approx(expected, rel=1e-5) if type(expected) is float else expected)


def test_what_came_home_gives_the_tables_elsewhere(trained, tmp_path, monkeypatch, capsys):
    folder, _ = trained
    here = run(
        load(folder / "experiments" / "PX" / "table1.toml").path,
        scale="paper", out=folder / "work", jobs=0, device="cpu", progress=False,
    )  # fmt: skip
    write_papers(tmp_path / "experiments")
    assert collect(backlog(tmp_path), [folder / "out"]) == "6 new runs, 6 kept in all."
    kept = tmp_path / "experiments" / "PX" / "results" / "table1-paper.jsonl"
    assert kept.stat().st_size < 6 * 5000
    path = tmp_path / "experiments" / "PX" / "table1.toml"
    there = run(
        path, scale="paper", out=tmp_path / "out", jobs=0, device="cpu", progress=False, keep=True
    )
    agree(there.record["rows"], here.record["rows"])
    assert [row["chosen"] for row in there.record["rows"]] == [{"lr": 0.3}, None]
    assert [row["status"] for row in there.record["rows"]] == [["finished"] * 2] * 2
    assert there.record["rows"][0]["curves"]["train_loss"]["x"] == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "out" / "runs").exists()
    assert count_states(backlog(tmp_path)) == {"done": 6}
    assert nothing_to_do(tmp_path, monkeypatch, capsys)
    assert collect(backlog(tmp_path), [folder / "out"]) == "0 new runs, 6 kept in all."


def test_training_oneself_does_not_take_kept_runs(trained, tmp_path):
    folder, _ = trained
    write_papers(tmp_path / "experiments")
    collect(backlog(tmp_path), [folder / "out"])
    path = tmp_path / "experiments" / "PX" / "table1.toml"
    found = run(
        path, scale="paper", out=tmp_path / "out", jobs=1, device="cpu", progress=False,
        methods=["Auto"], seeds=1,
    )  # fmt: skip
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 1
    assert found.record["rows"][0]["status"] == ["finished"]


def test_withdrawn_runs_are_trained_again(trained, tmp_path, monkeypatch, capsys):
    folder, _ = trained
    shutil.copytree(folder, tmp_path / "b")
    other = tmp_path / "b"
    collect(backlog(other), [])
    toml = other / "experiments" / "queue.toml"
    toml.write_text(f'{QUEUE}\n[[withdrawn]]\nwhy = "Wrong."\nmethods = ["auto"]\n')
    assert count_states(backlog(other)) == {"done": 4, "open": 2}
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(other / "experiments"))
    assert main(["--list", "--work", str(other / "work")]) == 0
    said = capsys.readouterr().out
    assert said.count("Withdrawn: PX-table1, T1: Auto, seed ") == 2
    assert said.count("Wrong.") == 2

    # Withdrawn by the code that made them; what other code makes replaces them.
    toml.write_text(f'{QUEUE}\n[[withdrawn]]\nwhy = "Wrong."\ncode = ["before"]\n')
    kept = other / "experiments" / "PX" / "results" / "table1-paper.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {line["made"]["code"] for line in lines} == {digest_code()}
    for line in lines:
        line["made"]["code"] = "before"
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.move(other / "work", other / "elsewhere")
    queue = backlog(other)
    assert count_states(queue) == {"open": 4, "waiting": 2}
    assert len(queue.list_withdrawn()) == 6
    shutil.move(other / "elsewhere", other / "work")
    queue = backlog(other)
    assert count_states(queue) == {"done": 6}
    assert collect(queue, []) == "6 new runs, 6 kept in all."
    assert queue.list_withdrawn() == []
    assert '"before"' not in kept.read_text()


@pytest.mark.parametrize("table", ['why = "Wrong."', 'keys = ["a"]', 'why = "Wrong."\nkey = ["a"]'])
def test_a_withdrawal_needs_a_reason_and_a_condition(tmp_path, table):
    write_papers(tmp_path)
    (tmp_path / "queue.toml").write_text(f"[[withdrawn]]\n{table}\n")
    with pytest.raises(ArgumentError, match="must have a why and some of experiments, methods"):
        Kept.at(tmp_path)


def test_runs_of_other_settings_are_stale(trained, tmp_path, monkeypatch, capsys):
    folder, _ = trained
    path = write_papers(tmp_path / "experiments") / "PX" / "table1.toml"
    collect(backlog(tmp_path), [folder / "out"])
    path.write_text(SHORT.replace("batch = 16", "batch = 8"))
    queue = backlog(tmp_path)
    assert count_states(queue) == {"open": 4, "waiting": 2}
    assert len(queue.list_stale()) == 6
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(tmp_path / "experiments"))
    assert main(["--list", "--work", str(tmp_path / "work")]) == 0
    assert "do not count: 6 of PX-table1." in capsys.readouterr().out
    assert collect(queue, []) == "0 new runs, 6 kept in all."  # nothing is lost unasked
    assert collect(queue, [], drop_stale=True) == "0 new runs, 0 kept in all."


def test_a_run_without_a_column_that_is_needed_is_open(trained, tmp_path):
    folder, _ = trained
    path = write_papers(tmp_path / "experiments") / "PX" / "table1.toml"
    collect(backlog(tmp_path), [folder / "out"])
    path.write_text(SHORT.replace('"train_loss"]', '"train_loss", "lr"]'))
    assert count_states(backlog(tmp_path)) == {"open": 4, "waiting": 2}
    shutil.copytree(folder / "work", tmp_path / "work")  # where the whole histories are
    assert count_states(backlog(tmp_path)) == {"done": 6}


def test_lines_that_are_damaged_are_left_out(trained, tmp_path):
    folder, _ = trained
    whole = (folder / "out" / "runs.jsonl").read_text()
    first = json.loads(whole.splitlines()[0])
    first["words"]["batch"] = 99  # no longer what its key says
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(first) + "\n" + whole[: len(whole) - 20])
    assert len(read_lines(path)) == 5


def test_a_line_has_what_the_table_needs(trained):
    folder, _ = trained
    found = load(folder / "experiments" / "PX" / "table1.toml").at("paper")
    columns = needed_columns(found)
    assert columns == ["bytes_up", "test_accuracy", "train_loss"]
    queue = backlog(folder)
    item = next(i for i in queue.items if not i.grid)
    whole = json.loads(runs_of(folder)[item.key].read_text())
    line = queue.kept.lines[item.key]
    assert line["history"]["bytes_up"] == whole["history"][0]["bytes_up"]  # the same every round
    assert len(line["history"]["train_loss"]) == 6
    got = make_run(line)
    assert got.status == "finished"
    assert [r["round"] for r in got.history] == list(range(6))
    assert got.history[-1]["lr"] == pytest.approx(whole["history"][-1]["lr"], rel=1e-5)
    assert "lr" not in got.history[0]
    for name in ("seconds", "gradients"):
        total = sum(row[name] for row in whole["history"])
        assert sum(row.get(name, 0) for row in got.history) == pytest.approx(total, rel=1e-5)
    assert make_line("PX-table1", item.spec, got, columns)["history"] == line["history"]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The long run, trained without interruption."""
    folder = tmp_path_factory.mktemp("uncut")
    write_papers(folder / "experiments", 600)
    (item,) = (i for i in backlog(folder).items if i.entry.experiment == "PX-table2")
    source = ExperimentSource("cpu")
    assert train_in_worker(item.spec, Patient(), source, folder / "work") == ("done", "")
    return run_path(folder / "work", item.spec)


def long_run(folder):
    (item,) = (i for i in backlog(folder).items if i.entry.experiment == "PX-table2")
    return folder / "work" / "live" / item.key


def wait_for(path, process, condition=lambda: True):
    for _ in range(6000):
        if path.exists() and condition():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


def test_a_session_that_is_killed_or_stopped_goes_on(uncut, tmp_path):
    """Killed, then stopped by another signal, then left alone."""
    write_papers(tmp_path / "experiments", 600)
    live = long_run(tmp_path)

    def rounds():
        return json.loads((live / "checkpoint.json").read_text())[0]["rounds"]

    with begin(tmp_path, "--minutes", 5) as process:
        wait_for(live / "checkpoint.json", process)
        process.kill()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert said.count("done: ") == 6  # the first table, which comes first
    assert count_states(backlog(tmp_path)) == {"done": 6, "cut": 1}
    before = {path: path.stat().st_mtime_ns for path in runs_of(tmp_path).values()}
    reached = rounds()
    assert 20 <= reached < 600
    assert len(read_lines(tmp_path / "out" / "runs.jsonl")) == 6

    with begin(tmp_path, "--minutes", 5) as process:
        wait_for(live / "checkpoint.json", process, lambda: rounds() > reached)
        process.terminate()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "starts again" not in said
    assert said.count("done: ") == 0
    assert "cut: PX-table2, T1: FedAvg, seed 0" in said
    assert (tmp_path / "out" / "cut.tar").exists()
    assert count_states(backlog(tmp_path)) == {"done": 6, "cut": 1}
    assert reached < rounds() < 600
    assert len(read_lines(tmp_path / "out" / "runs.jsonl")) == 6

    said = session(tmp_path, "--minutes", 5)
    assert said.count("done: ") == 1
    assert "starts again" not in said
    after = runs_of(tmp_path)
    assert len(after) == 7
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert history(after[live.name]) == history(uncut)  # as if it had not been cut
    assert not live.exists()
    assert len(read_lines(tmp_path / "out" / "runs.jsonl")) == 7


class Patient:
    """A worker that is asked to stop after some rounds."""

    def __init__(self, last=10**9):
        self.last, self.rounds, self.said = last, -1, []

    @property
    def stop_requested(self):
        self.rounds += 1  # the first time before the run
        return self.rounds >= self.last

    def send(self, message):
        self.said.append(message)


def until_cut(folder):
    """Train the long run for as many minutes as it needs to begin."""
    for minutes in (0.15, 0.3, 0.6, 1.2, 2.4):
        said = session(folder, "--minutes", minutes, "--only", "PX-table2")
        assert float(re.search(r"done in ([\d.]+) min;", said)[1]) < minutes + 0.1
        if "cut: " in said:
            break
    return said


def test_the_time_limit_is_kept_and_checkpoints_travel(tmp_path):
    """A run that cannot end is cut twice, the second time on another machine."""
    one, two = tmp_path / "one", tmp_path / "two"
    write_papers(one / "experiments", 10**6)
    (one / "experiments" / "queue.toml").write_text(f"{QUEUE}[cost]\nstart = 1\n")
    said = until_cut(one)
    assert "Stopping; runs that are asked to end: 1." in said
    assert "cut: PX-table2, T1: FedAvg, seed 0" in said
    rounds = json.loads((long_run(one) / "checkpoint.json").read_text())[0]["rounds"]
    assert rounds >= 1
    assert read_lines(one / "out" / "runs.jsonl") == []

    write_papers(two / "experiments", 10**6)
    collect(backlog(two), [one / "out"])
    assert count_states(backlog(two)) == {"open": 4, "waiting": 2, "cut": 1}
    (item,) = (i for i in backlog(two).items if i.entry.experiment == "PX-table2")
    worker, source = Patient(30), ExperimentSource("cpu")
    assert train_in_worker(item.spec, worker, source, two / "work") == ("cut", "")
    assert worker.said == []
    more = json.loads((long_run(two) / "checkpoint.json").read_text())[0]["rounds"]
    assert more == rounds + 30
    found = (long_run(two) / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in found] == list(range(len(found)))


def test_a_run_goes_on_only_with_the_code_that_began_it(tmp_path):
    write_papers(tmp_path / "experiments")
    (item,) = (i for i in backlog(tmp_path).items if i.spec.label == "T1: Auto" and not i.spec.seed)
    spec = save_often(item.spec, Costs())

    def train(name, worker):
        source = ExperimentSource("cpu")
        return train_in_worker(spec, worker, source, tmp_path / name)

    whole, cut = Patient(), Patient(3)
    assert train("whole", whole) == ("done", "")
    assert train("cut", cut) == ("cut", "")
    assert (whole.rounds, cut.rounds) == (6, 3)
    for name in ("same", "other", "damaged"):
        shutil.copytree(tmp_path / "cut", tmp_path / name)
    (tmp_path / "other" / "live" / spec.key / "code").write_text("another")
    (tmp_path / "damaged" / "live" / spec.key / "settings.json").write_text("{}")
    for name, rounds in (("same", 3), ("other", 6), ("damaged", 6)):
        worker = Patient()
        assert train(name, worker) == ("done", "")
        assert worker.rounds == rounds
        assert history(run_path(tmp_path / name, spec)) == history(
            run_path(tmp_path / "whole", spec)
        )
        assert not (tmp_path / name / "live" / spec.key).exists()
        assert bool(worker.said) == (name == "damaged")


def items(experiment, sides, alone=False, seconds=(60,)):
    """Items of an experiment whose runs take so long."""
    found = load("P4-figure2").at("paper")
    entry = Entry(experiment, replace(found, alone=alone), found, sides)
    return [Item(entry, s, f"{experiment}{i}") for i, s in enumerate(seconds)]


class Given(Costs):
    def seconds(self, spec):
        return spec


def test_what_is_started_next():
    small, large = items("small", 4, seconds=[60] * 5), items("large", 2, seconds=[600] * 3)
    timed = items("timed", 4, alone=True, seconds=[60])
    costs = Given()

    def keys(*args):
        return [item.key for item in choose(*args, costs)]

    assert keys([*large, *small], [], 4, 1e4) == ["large0", "large1"]
    assert keys([*small, *large], [], 3, 1e4) == ["small0", "small1", "small2"]
    assert keys([*small[3:], *large], small[:3], 8, 1e4) == ["small3"]
    assert keys(large, small[:2], 8, 1e4) == []
    assert keys([*large, *small], [], 8, 100) == ["small0", "small1", "small2", "small3"]
    assert keys(large, [], 8, 100) == ["large0", "large1"]  # too long for all, but begun
    assert keys([*timed, *small], [], 8, 1e4) == ["timed0"]
    assert keys([*timed, *small], small[:1], 8, 1e4) == []
    assert keys(small, timed, 8, 1e4) == []


def test_estimates():
    spec = next(i for i in list_first("P4-figure2") if "FedAvg" in i.spec.label).spec
    words = spec.words
    assert (words["rounds"], words["steps"], words["eval_every"]) == (600, 10, 20)
    costs = Costs(5.0, 0.5, {"mlp": (2.0, 320)}, {"fedavg": 3.0})
    samples = words["clients"] * words["batch"]
    assert costs.seconds(spec) == pytest.approx(5 + 6000 * 0.002 * samples / 320 * 3 + 30 * 0.5)
    assert Costs(5.0, 0.5).seconds(spec) > 5


def list_first(name):
    entries, _ = read_entries()
    return list_items([e for e in entries if e.experiment == name][-1:], Kept())[0]


def test_a_run_of_another_seed_says_what_a_run_takes(trained):
    folder, _ = trained
    queue = backlog(folder)
    for line in queue.kept.lines.values():
        line["made"] = {"machine": {"gpu": "A GPU"}}
    queue.plan()
    item = next(i for i in queue.items if not i.grid)
    took = [
        line["totals"]["seconds"]
        for line in queue.kept.lines.values()
        if line["label"] == item.spec.label and line["words"]["rounds"] == 6
    ]
    assert queue.costs.seconds(item.spec) == max(took)


def test_the_order_of_this_repository():
    """Every experiment of paper size is in it, those of queue.toml first."""
    entries, facts = read_entries()
    names = [entry.experiment for entry in entries]
    first = [take["experiment"] for take in facts["take"]]
    assert names[: len(first)] == first
    assert 2 <= len(first) < len(entries)
    assert facts["cost"]["step"]["resnet18"]
    paper = {n for n in names if "paper" in load(n).scales}
    assert paper == set(names)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[take]]\nexperiment = "PX-table9"', "there is no experiment 'PX-table9' of paper size"),
        ('[[take]]\nexperiment = "PX-table1"\ntasks = ["T9*"]', "no task of PX-table1 matches"),
        ('[[take]]\nexperiment = "PX-table1"\nmethods = ["A"]', "no method of PX-table1 matches"),
        ("[[take]]\nseeds = 3", "must have an experiment and may have tasks"),
        ("[hold]\nPX-table9 = 'why'", "there is no experiment 'PX-table9'"),
        ("[cost]\nstop = 1", r"\[cost\] has no stop"),
        ("take = [", "queue.toml cannot be read"),
    ],
)
def test_a_wrong_queue_is_refused(tmp_path, text, sentence):
    write_papers(tmp_path)
    (tmp_path / "queue.toml").write_text(text)
    with pytest.raises(ArgumentError, match=sentence):
        Backlog(tmp_path, tmp_path / "work")


def test_hold_and_patterns(tmp_path):
    write_papers(tmp_path / "experiments", 600)
    toml = tmp_path / "experiments" / "queue.toml"
    toml.write_text(
        '[[take]]\nexperiment = "PX-table1"\nmethods = ["Au*"]\n[hold]\nPX-table2 = "Wrong."\n'
    )
    queue = backlog(tmp_path)
    assert count_states(queue) == {"open": 4, "waiting": 2, "on hold": 1}
    assert [item.spec.label for item in queue.items][:2] == ["T1: Auto"] * 2


def test_the_command_line(trained, tmp_path, monkeypatch, capsys):
    folder, _ = trained
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(folder / "experiments"))
    there = ["--work", str(folder / "work")]
    assert main(["--list", "--runs", *there]) == 0
    said = capsys.readouterr().out
    assert said.count("done ") == 7
    assert "T1: FedAvg lr=0.3, grid" in said
    empty = ["--work", str(tmp_path / "work")]
    assert main(["--minutes", "1", "--dry-run", *empty]) == 0
    said = capsys.readouterr().out
    assert "PX-table1, T1: Auto, seed 0" in said
    assert not (tmp_path / "work" / "runs").exists()
    for words, sentence in (
        ([], "Give --list, --minutes or --collect"),
        (["--minutes", "-1"], "queue(minutes=...) must be"),
        (["--minutes", "1", "--jobs", "0"], "queue(jobs=...) must be"),
        (["--collect", str(tmp_path)], "There is no"),
    ):
        assert main([*words, *empty]) == 2
        assert sentence in capsys.readouterr().err
