"""Reproducing: the grid's winner, ours beside the published, and nothing played twice."""

import json
import signal
from dataclasses import replace

import pytest
from experiments import load, run
from experiments.figure import draw_svg, has_curves
from experiments.record import apply_spec
from experiments.record import load as read
from experiments.source import standardise
from experiments.text import cells, remarks, tally

from tunefree.core.errors import ArgumentError, Interrupted
from tunefree.data import load as load_data
from tunefree.study.tasks import ProgressListener

from .papers import SPEC, write


class Counter(ProgressListener):
    def __init__(self):
        self.played, self.kept, self.said = [], 0, []

    def on_end(self, task, outcome, trained):
        if trained:
            self.played.append(f"{task.label} {task.seed}")
        else:
            self.kept += 1

    def on_message(self, text):
        self.said.append(text)


def play(path, out, **more):
    watch = Counter()
    return run(path, out=out, jobs=1, device="cpu", watch=watch, **more), watch


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    path = write(folder)
    return path, folder / "out", *play(path, folder / "out", keep=True)


def test_the_grid_is_searched_once_and_its_winner_played(first):
    _, _, found, watch = first
    record = found.record
    fedavg, auto = record["rows"]
    assert fedavg["chosen"] == {"lr": 0.3}
    assert fedavg["search"]["runs"] == 3
    assert fedavg["search"]["rounds"] == 2
    assert fedavg["search"]["lost"] == 1  # the largest step diverges
    assert auto["search"] is None
    assert len(watch.played) == 3 + 2 + 2
    assert [len(row["values"]["last"]) for row in record["rows"]] == [2, 2]


def test_ours_beside_the_published(first):
    record = first[2].record
    fedavg, auto = cells(record)
    mean = sum(record["rows"][0]["values"]["last"]) / 2
    assert fedavg["last paper"] == "0.8000 ± 0.0100"
    assert fedavg["last ours"].startswith(f"{mean:.4f} ± ")
    assert fedavg["last difference"] == f"−{0.8 - mean:.4f}"
    assert (auto["last paper"], auto["last difference"]) == ("", "")
    assert fedavg["chosen"] == "lr=0.3"
    assert len(record["claims"]) == 1
    assert tally(record).startswith("Of 1 claim 1 ")
    assert "As printed." in remarks(record)
    text = first[2].markdown()
    for line in ("- Nothing is stated.", "- 3 rounds instead of 50.", "- T1: 300 rows."):
        assert line in text


def test_everything_is_written_and_kept(first):
    path, out, found, _ = first
    kept = read(path.parent / "results" / "table1-small.json")
    assert kept == json.loads(json.dumps(found.record))
    assert kept["command"] == "python -m experiments PX-table1 --scale small"
    assert kept["machine"]["cores"] >= 1
    assert kept["versions"]["torch"]
    assert kept["rows"][1]["curves"]["test_accuracy"]["x"] == [1, 2, 3]
    page = (out / "PX-table1-small.html").read_text()
    assert page.index("As printed.") < page.index('<nav id="contents"')
    assert (out / "PX-table1-small.md").read_text() == found.markdown()
    assert has_curves(kept)


def test_the_curves_as_a_figure(first):
    pytest.importorskip("matplotlib")
    record = first[2].record
    drawn = draw_svg(record)
    assert drawn == draw_svg(record)  # the same bytes each time
    for words in ("T1: test accuracy", "Rounds", "FedAvg", "Auto"):
        assert f">{words}</text>" in drawn
    assert "<dc:date>" not in drawn
    assert drawn.count("FillBetween") == 2  # a band for each row


def test_a_second_call_plays_nothing_and_a_third_what_is_missing(first):
    path, out, found, _ = first
    again, watch = play(path, out)
    assert (watch.played, watch.kept) == ([], 7)
    assert again.record["rows"] == found.record["rows"]
    more, watch = play(path, out, seeds=3, methods=["auto"])
    assert watch.played == ["T1: Auto 2"]
    assert "Not the whole experiment: --seeds 3 --methods auto." in remarks(more.record)
    assert more.record["rows"][0]["values"]["last"][:2] == found.record["rows"][1]["values"]["last"]


TWO = SPEC.replace(
    "[[method]]",
    '[[task]]\nname = "T2"\ndata = "digits"\nsplit = "iid"\nclients = 4\nmodel = "linear"\n'
    "steps = 3\n"
    "[[method]]",
    1,
).replace("grid = { lr = [1e-6, 0.3, 1e12] }", "set = { lr = 0.3 }")


def test_keeping_a_part_leaves_the_other_rows_as_they_were(tmp_path):
    path = write(tmp_path, TWO)
    kept_at = path.parent / "results" / "table1-small.json"
    play(path, tmp_path / "whole", keep=True, seeds=1)
    before = read(kept_at)
    kept_at.write_text(kept_at.read_text().replace(before["date"], "2001-01-01"))
    found, watch = play(path, tmp_path / "part", keep=True, tasks=["T1"], methods=["Auto"])
    assert watch.played == ["T1: Auto 0", "T1: Auto 1"]
    now = read(kept_at)
    assert [task["name"] for task in now["tasks"]] == ["T1", "T2"]
    played = [(row["task"], row["label"], len(row["status"])) for row in now["rows"]]
    assert played == [
        ("T1", "FedAvg", 1),
        ("T1", "Auto", 2),
        ("T2", "FedAvg", 1),
        ("T2", "Auto", 1),
    ]
    assert now["rows"][1] == json.loads(json.dumps(found.record["rows"][0]))
    made = {k: v for k, v in before.items() if k in ("command", "narrowed", "machine", "versions")}
    for old, new in zip(before["rows"], now["rows"], strict=True):
        if "made" in new:
            words = next(t["words"] for t in before["tasks"] if t["name"] == old["task"])
            assert new == {**old, "made": {**made, "date": "2001-01-01", "words": words}}
    assert ["made" in row for row in now["rows"]] == [True, False, True, True]
    said = [line for line in remarks(now) if line.startswith("Of an earlier call")]
    assert len(said) == 1
    command = "python -m experiments PX-table1 --scale small --seeds 1"
    assert f"{command}, with 1 seed (T1: FedAvg; T2): " in said[0]
    assert said[0].endswith("; 2001-01-01.")
    pairs = {claim["task"]: claim["pairs"][0] for claim in now["claims"]}
    assert {task: pair["seeds"] for task, pair in pairs.items()} == {"T1": 1, "T2": 1}
    again, watch = play(path, tmp_path / "nothing", keep=True, tasks=["T1"], methods=["FedAvg"])
    assert len(watch.played) == 2
    third = read(kept_at)
    assert third["rows"][2:] == now["rows"][2:]  # who is kept twice says when it was played
    assert third["rows"][0] == json.loads(json.dumps(again.record["rows"][0]))


def test_keeping_without_runs_leaves_what_was_kept(tmp_path):
    path = write(tmp_path, TWO)
    kept_at = path.parent / "results" / "table1-small.json"
    play(path, tmp_path / "whole", keep=True)
    before = read(kept_at)
    run(path, out=tmp_path / "empty", jobs=0, device="cpu", keep=True, watch=Counter())
    now = read(kept_at)
    assert [{k: v for k, v in row.items() if k != "made"} for row in now["rows"]] == before["rows"]
    assert now["claims"] == before["claims"]
    assert [task["skipped"] for task in now["tasks"]] == ["", ""]


def test_rows_that_stay_are_compared_by_their_own_settings(tmp_path):
    path = write(tmp_path, TWO)
    play(path, tmp_path / "whole", keep=True)
    changed = TWO.replace("steps = 3\nbatch = 16", "steps = 4\nbatch = 16")
    path = write(tmp_path, changed)
    play(path, tmp_path / "part", keep=True, methods=["Auto"], tasks=["T1"])
    now = read(path.parent / "results" / "table1-small.json")
    assert [row["changes"] for row in now["rows"]] == ["steps 3 instead of 4", "", "", ""]
    verdicts = {claim["task"]: claim["verdict"] for claim in now["claims"]}
    assert verdicts["T1"] == "not tested"
    assert verdicts["T2"] != "not tested"
    found, _ = play(path, tmp_path / "short", keep=True, rounds=2, tasks=["T2"], methods=["Auto"])
    assert found.record["rows"][0]["changes"] == ""
    now = read(path.parent / "results" / "table1-small.json")
    assert now["rows"][2]["changes"] == "rounds 3 instead of 2"  # the call's rows are shorter
    assert {c["task"]: c["verdict"] for c in now["claims"]}["T2"] == "not tested"


def test_new_words_need_no_new_run(first):
    path, _, found, _ = first
    text = SPEC.replace("Auto beats FedAvg", "Auto is about FedAvg").replace(
        'by = "last"', 'by = "last"\nwithin = 1.0'
    )
    spec = load(write(path.parents[1], text, what="table1b"))
    record = apply_spec(found.record, spec.at("small"))
    assert [(c["says"], c["verdict"]) for c in record["claims"]] == [
        ("Auto is about FedAvg", "holds")
    ]
    assert record["rows"][0]["published"] == {}  # expected.toml says nothing of table1b


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("steps = 3", "steps = 4", ["steps 3 instead of 4"] * 2),
        ("hidden = [8]", "hidden = [9]", ["hidden [8] instead of [9]"] * 2),
        ('"auto"', '"auto"\nset = { clip = 9.0 }', ["", "clip not set instead of 9.0"]),
        ("tune_rounds = 2", "tune_rounds = 3", ["rounds of a search 2 instead of 3", ""]),
        ("[1e-6, 0.3, 1e12]", "[0.3, 1e12]", ["points of the grid 3 instead of 2", ""]),
        ("grid = { lr = [1e-6, 0.3, 1e12] }", "set = { lr = 0.1 }", ["lr 0.3 instead of 0.1", ""]),
        (
            "[1e-6, 0.3, 1e12]",
            "[1e-6, 0.1, 1e12]",
            ["lr 0.3 instead of a value of its grid", ""],
        ),
        ('name = "Auto"', 'name = "Ours"', ["", "the specification has no such row"]),
        ("steps = 3", "steps = 3\neval_every = 2\nset.weights = 'uniform'", ["", ""]),
        ("rounds = 50", "rounds = 60", ["", ""]),  # of the other scale
    ],
)
def test_a_result_of_other_settings_decides_no_claim(first, tmp_path, old, new, changes):
    record = first[2].record
    assert old in SPEC
    text = SPEC.replace(old, new)
    if "Ours" in new:
        text = text.replace('better = ["Auto"]', 'better = ["Ours"]')
    now = apply_spec(record, load(write(tmp_path, text)).at("small"))
    assert [row["changes"] for row in now["rows"]] == changes
    assert bool(now["rows"][0]["published"]) == (not changes[0])
    said = [line for line in remarks(now) if line.startswith("Made with other settings")]
    assert len(said) == len({c for c in changes if c})
    (claim,) = now["claims"]
    assert (claim["verdict"] == "not tested") == any(changes)
    if any(changes) and "Ours" not in new:
        assert f"was made with other settings: {max(changes)}." in claim["reason"]


def test_a_result_can_say_itself_that_it_is_superseded(first):
    path, _, found, _ = first
    kept = json.loads(json.dumps(found.record))
    kept["rows"][1]["superseded"] = "auto was wrong"
    now = apply_spec(kept, load(path).at("small"))
    assert [row["changes"] for row in now["rows"]] == ["", "auto was wrong"]
    assert now["claims"][0]["reason"] == "Auto was made with other settings: auto was wrong."
    assert cells(now)[1]["note"] == "other settings"


def test_what_is_shorter_than_the_paper_is_said(first, tmp_path):
    path, _, found, _ = first
    short, _ = play(path, tmp_path, seeds=1, rounds=2, methods=["auto"])
    said = ["1 seed instead of 2.", "Shorter than the paper: 2 rounds instead of 3."]
    assert short.record["smaller"][:2] == said
    again = apply_spec(short.record, load(path).at("small"))
    assert again["smaller"][:2] == said
    assert [row["changes"] for row in again["rows"]] == [""]
    assert found.record["cut"] == []
    assert found.record["wall"] > 0
    assert "minutes with 1 process." in found.markdown()


def test_a_record_of_runs_that_were_made_elsewhere(first, tmp_path):
    path, out, found, _ = first
    there = tmp_path / "runs"
    there.mkdir()
    for file in (out / "runs").glob("*.json"):
        run_of = json.loads(file.read_text())
        if run_of["label"] == "T1: Auto":
            continue
        run_of["made"]["machine"] |= {"gpu": "NVIDIA H200", "device": "cuda"}
        run_of["made"]["date"] = "2001-01-01"
        (there / file.name).write_text(json.dumps(run_of))
    watch = Counter()
    record = run(path, out=tmp_path, jobs=0, device="cpu", watch=watch).record
    assert watch.played == []
    assert record["machine"]["gpu"] == "NVIDIA H200"
    assert record["date"] == "2001-01-01"
    assert "wall" not in record
    assert record["rows"][0] == found.record["rows"][0]
    assert record["rows"][1]["status"] == ["not run", "not run"]
    both, _ = play(path, tmp_path)
    assert both.record["machine"]["gpu"] == "NVIDIA H200"
    assert [(o["runs"], o["machine"]["gpu"]) for o in both.record["elsewhere"]] == [(2, None)]
    assert (
        sum(line.startswith("2 runs were made elsewhere: ") for line in remarks(both.record)) == 1
    )


def test_a_grid_that_was_not_searched_to_the_end_has_no_winner(first, tmp_path):
    path, out, *_ = first
    files = sorted((out / "runs").glob("*.json"), key=lambda f: json.loads(f.read_text())["label"])
    (tmp_path / "runs").mkdir()
    for file in files[:-1]:  # all but a run of FedAvg's grid
        (tmp_path / "runs" / file.name).write_bytes(file.read_bytes())
    row = run(path, out=tmp_path, jobs=0, device="cpu", watch=Counter()).record["rows"][0]
    assert row["chosen"] is None
    assert row["notes"] == [
        "Not run: its grid was not searched to the end, 2 of 3 settings were tried."
    ]


def test_lost_runs_are_marked_and_missing_data_is_left_out(tmp_path, monkeypatch):
    monkeypatch.delenv("TUNEFREE_DATA", raising=False)
    monkeypatch.setattr("tunefree.data.sources.cache_folder", lambda: tmp_path)
    text = SPEC.replace("grid = { lr = [1e-6, 0.3, 1e12] }", "set = { lr = 1e12 }")
    other = 'name = "T2"\ndata = "cifar100"\nsplit = "iid"\nclients = 2\nmodel = "mlp"'
    text = text.replace("[[method]]", f"[[task]]\n{other}\n[[method]]", 1)
    found, watch = play(write(tmp_path, text), tmp_path / "out")
    rows = {(r["task"], r["label"]): r for r in cells(found.record)}
    assert rows["T1", "FedAvg"]["note"] == "2 of 2 diverged"
    assert rows["T1", "FedAvg"]["last ours"] == "—"
    assert rows["T2", "Auto"]["note"] == "not run"
    assert "tf.load('cifar100') fetches it" in watch.said[0]
    verdicts = {c["task"]: c["verdict"] for c in found.record["claims"]}
    assert verdicts == {"T1": "holds", "T2": "not tested"}


def test_what_cannot_be_run_is_refused_before_training(tmp_path):
    text = SPEC.replace(
        'method = "auto"', 'method = "fedproxlod"\nset = { global_loss = "server" }'
    )
    watch = Counter()
    with pytest.raises(ArgumentError, match=r"Auto in T1: .*held"):
        run(write(tmp_path, text), out=tmp_path / "out", jobs=1, device="cpu", watch=watch)
    assert watch.played == []
    held, _ = play(
        write(tmp_path, text.replace("rows = 300", "rows = 300\nheld = 20")),
        tmp_path,
        methods=["Auto"],
        seeds=1,
        rounds=1,
    )
    assert held.record["rows"][0]["status"] == ["finished"]


def test_ctrl_c_leaves_what_is_done(tmp_path):
    class Impatient(Counter):
        def on_end(self, task, outcome, trained):
            super().on_end(task, outcome, trained)
            raise KeyboardInterrupt

    path = write(tmp_path)
    with pytest.raises(Interrupted, match="Stopped by Ctrl-C") as caught:
        run(path, out=tmp_path / "out", jobs=1, device="cpu", watch=Impatient(), methods=["Auto"])
    assert caught.value.run.record["rows"][0]["status"] == ["finished", "not run"]
    _, watch = play(path, tmp_path / "out", methods=["Auto"])
    assert watch.played == ["T1: Auto 1"]


def test_a_long_run_is_continued(tmp_path):
    class Impatient(Counter):
        rounds = ()

        def on_round(self, task, row):
            self.rounds = (*self.rounds, row["round"])
            if self.rounds == (0, 1):
                signal.raise_signal(signal.SIGINT)

    path = write(tmp_path, SPEC.replace("rounds = 3\n", "rounds = 4\ncheckpoint_every = 1\n"))
    given = {"out": tmp_path / "out", "jobs": 1, "device": "cpu", "seeds": 1, "methods": ["Auto"]}
    with pytest.raises(Interrupted):
        run(path, watch=(before := Impatient()), **given)
    found = run(path, watch=(after := Impatient()), **given)
    assert (before.rounds, after.rounds) == ((0, 1), (2, 3))
    assert [row["round"] for row in found.groups["Auto"][0].history] == [0, 1, 2, 3]
    assert not list((tmp_path / "out" / "live").iterdir())


def test_a_pair_has_the_clients_of_one_and_the_server_of_the_other(tmp_path):
    text = SPEC.replace(
        'method = "auto"', 'method = "scaffold+fedexp"\nset = { lr = 0.2, eps = 0.5 }'
    )
    found, _ = play(write(tmp_path, text), tmp_path, seeds=1, methods=["Auto"])
    method = found.groups["Auto"][0].settings["method"]
    parts = (method["direction"]["part"], method["step"]["lr"], method["server"])
    assert parts == ("Scaffold", 0.2, FEDEXP | {"eps": 0.5})


FEDEXP = {"part": "FedExP", "eps": 1e-3, "max_server_step": None, "eps_decay": 1.0}
TOY = """
title = "The toy problem"
measure = "distance"
show = ["last"]
[scale.small]
rounds = 40
seeds = 1
[[task]]
name = "toy"
data = "toy"
split = "owner"
model = "regression"
start = [0.24, 1.0]
solution = [3.0, 0.0]
batch = 0
steps = 5
dtype = "float64"
test = "train"
[[method]]
name = "FedSLS"
method = "fedsls"
"""


def test_the_toy_problem_walks_to_its_solution(tmp_path):
    found, _ = play(write(tmp_path, TOY, ""), tmp_path / "out")
    history = found.groups["FedSLS"][0].history
    assert {"w1", "w2", "distance", "test_loss"} <= set(history[0])
    assert found.record["rows"][0]["values"]["last"][0] < history[0]["distance"] < 2.94


COST = """
title = "What a proximal map costs"
kind = "prox-cost"
show = ["ms"]
[scale.small]
seeds = 2
[[task]]
name = "tiny"
size = 1000
[[task]]
name = "MLP"
model = "mlp"
shape = [1, 28, 28]
classes = 10
[[method]]
name = "MCP"
penalty = "mcp"
"""


def test_the_cost_of_a_proximal_map(tmp_path):
    found, _ = play(write(tmp_path, COST, "[table1.MLP]\nMCP = { ms = 1.0 }"), tmp_path / "out")
    sizes = [runs[0].history[0]["size"] for runs in found.groups.values()]
    assert sizes == [1000, 109386]
    assert all(v > 0 for row in found.record["rows"] for v in row["values"]["ms"])
    assert cells(found.record)[1]["ms paper"] == "1"


def test_how_far_the_model_moves(tmp_path):
    text = SPEC.replace('method = "auto"', 'method = "parfrefl"\nset = { server_lr = 0.1 }')
    text = text.replace("steps = 3", "steps = 3\nmoves = true").replace(
        'show = ["best", "last"]', 'show = ["best", "last", "move sum", "moved last"]'
    )
    found, _ = play(write(tmp_path, text), tmp_path, seeds=1, methods=["Auto"])
    history = found.groups["Auto"][0].history
    assert [row["move"] for row in history] == pytest.approx([0.1] * 3, rel=1e-3)
    assert history[0]["moved"] == history[0]["move"]  # from the first model
    assert 0 < history[-1]["moved"] < 0.3  # the way is not straight
    values = found.record["rows"][0]["values"]
    assert values["move sum"] == [pytest.approx(0.3, rel=1e-3)]
    assert values["moved last"] == [pytest.approx(history[-1]["moved"], rel=1e-5)]


def test_standardised():
    data = standardise(load_data("digits"))
    assert data.x.mean().abs() < 1e-5
    assert data.x.std(correction=0) == pytest.approx(1, abs=1e-5)
    raw = load_data("digits")
    scale = (data.test[0][0] - data.test[0][1]).norm() / (raw.test[0][0] - raw.test[0][1]).norm()
    assert scale * raw.x.std(correction=0) == pytest.approx(1, abs=1e-4)  # the training rows' own
    with pytest.raises(ArgumentError, match="standardise needs one tensor"):
        standardise(replace(raw, x={"x": raw.x}))
