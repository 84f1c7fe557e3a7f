"""tunefree compare and tunefree tune as a user meets them."""

import csv
import io
import json
import re
import signal
import sys
import time

import pytest

import tunefree as tf
from helpers import drop_seconds, read_history, start_process
from tunefree.study import tasks
from tunefree.training.command import CommandConfig

SMALL = ("--clients", "4", "--steps", "2", "--batch", "10", "--device", "cpu")
PART = (*SMALL, "--cohort", "2")
pytestmark = pytest.mark.usefixtures("place")
MAIN = "from tunefree.cli import main; main()"


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be trained."""

    def train(*given, **more):
        raise AssertionError("trained")

    monkeypatch.setattr(tasks, "train", train)


STUDY = ("--methods", "fedavg:lr=0.1,fedavg:lr=1e6,auto", "--rounds", "3", "--seeds", "2")


def test_a_comparison(call, place):
    code, out, err = call("compare", *STUDY, "--out", "study", *PART)
    assert code == 0
    folders = {str(p.relative_to(place / "study")) for p in (place / "study").glob("*/*")}
    labels = ("fedavg,lr=0.1", "fedavg,lr=1e6", "auto")
    assert folders == {f"{label}/seed-{seed}" for label in labels for seed in (0, 1)}
    for seed in (0, 1):
        each = [tf.Run.load(place / "study" / k / f"seed-{seed}").settings for k in labels]
        assert len({s["start"] for s in each}) == len({s["data"]["digest"] for s in each}) == 1
        assert {s["cohort"] for s in each} == {2}
    assert (place / "study" / "report.html").stat().st_size > 1000
    assert out.startswith("digits, 4 clients, 2 a round, 2 local steps, 3 rounds. Seeds 0, 1.")
    assert re.search(r"^fedavg:lr=0.1 +0\.\d{4} ± 0\.\d{4} ", out, re.M)
    assert re.search(r"^fedavg:lr=1e6 +2 of 2 diverged ", out, re.M)
    assert "fedavg:lr=1e6: seed 0: diverged after" in out
    assert re.search(r"^auto, seed 1: finished, test accuracy 0\.\d{4}, \d", err, re.M)
    assert "Page: study/report.html" in err
    assert "Traceback" not in err


def test_a_run_of_a_comparison_is_that_of_tunefree_run(call, place):
    call("compare", "--methods", "fedprox:mu=0.3:lr=0.2", "--seeds", "5,", "--rounds", 2,
         "--out", "a", *PART)  # fmt: skip
    call("run", "--method", "fedprox", "--set", "mu=0.3", "--set", "lr=0.2", "--seed", 5,
         "--rounds", 2, "--out", "b", *PART)  # fmt: skip
    folder = place / "a" / "fedprox,mu=0.3,lr=0.2" / "seed-5"
    assert drop_seconds(read_history(folder)) == drop_seconds(read_history(place / "b"))
    one, other = (json.loads((f / "settings.json").read_text()) for f in (folder, place / "b"))
    assert one == other
    assert call("run", "--resume", folder)[0] == 0


def test_everyone_takes_part_where_one_method_needs_it(call, place):
    call(
        "compare", "--methods", "fedavg,scaffnew", "--seeds", 1, "--rounds", 1, "--out", "a", *SMALL
    )
    found = tf.Comparison.load(place / "a")
    assert {r.settings["cohort"] for runs in found.runs.values() for r in runs} == {4}


def test_repeated_or_resumed_it_trains_nothing(call, place, request):
    call("compare", *STUDY, "--out", "study", *PART)
    times = {p: p.stat().st_mtime_ns for p in place.glob("study/*/*/*")}
    request.getfixturevalue("idle")
    first = call("compare", *STUDY, "--out", "study", "--format", "csv", *PART)
    code, out, err = call("compare", "--resume", "study", "--format", "csv")
    assert (code, out) == first[:2]
    assert "6 of 6 runs were there already." in err
    assert {p: p.stat().st_mtime_ns for p in place.glob("study/*/*/*")} == times


def test_forms(call, place):
    call("compare", *STUDY, "--out", "study", *PART)
    found = tf.Comparison.load(place / "study")
    for form in ("markdown", "csv", "latex"):
        code, out, _ = call("compare", "--resume", "study", "--format", form)
        assert (code, out) == (0, getattr(found, form)() + "\n")
    for form in ("markdown", "latex"):
        words = ("--format", form, "--columns", "label, rounds")
        assert call("compare", "--resume", "study", *words)[1] == (
            getattr(found, form)(["label", "rounds"]) + "\n"
        )
    out = call("compare", "--resume", "study", "--columns", "seconds,label")[1]
    assert re.search(r"^seconds +method *$", out, re.M)
    code, out, _ = call("compare", "--resume", "study", "--json")
    facts = json.loads(out)
    assert [row["label"] for row in facts["rows"]] == ["fedavg:lr=0.1", "fedavg:lr=1e6", "auto"]
    assert (facts["seeds"], facts["measure"], facts["path"]) == ([0, 1], "test_accuracy", "study")
    text = call("compare", "--resume", "study", "--format", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert float(rows[0]["final"]) == facts["rows"][0]["final"]
    assert rows[1]["note"].startswith("seed 0: diverged")


@pytest.mark.slow  # a shorter form is test_ctrl_c_while_other_processes_train
def test_processes_do_the_same(call, place):
    words = ("--methods", "fedavg,scaffold", "--rounds", 3, "--seeds", 2)
    assert call("compare", *words, "--out", "one", *PART)[0] == 0
    code, _, err = call("compare", *words, "--out", "two", "--jobs", 2, *PART)
    assert code == 0, err
    assert len(re.findall(r"seed \d: finished", err)) == 4
    folders = sorted(p.relative_to(place / "one") for p in (place / "one").glob("*/seed-*"))
    assert len(folders) == 4
    for folder in folders:
        assert drop_seconds(read_history(place / "one" / folder)) == drop_seconds(
            read_history(place / "two" / folder)
        )
        files = [place / top / folder / "model.safetensors" for top in ("one", "two")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_folder_with_other_settings_is_a_row(call):
    call("compare", "--methods", "fedavg", "--seeds", 1, "--rounds", 1, "--out", "a", *PART)
    words = ("--methods", "fedavg,auto", "--seeds", 1, "--rounds", 2, "--out", "a", *PART)
    code, out, err = call("compare", *words)
    assert code == 0
    assert "rounds was 1, now 2" in out
    assert "auto, seed 0: finished" in err
    code, out, _ = call("compare", *words[:1], "fedavg", *words[2:])
    assert code == 3  # nothing finished


def check_interrupted_and_resumed(call, place, study, code, out, err):
    """Ctrl-C came in the run of scaffold: the study in "a" says so, and ends as "b" without it."""
    assert code == 130, err
    assert "Traceback" not in err
    assert "Stopped by Ctrl-C; continue with:  tunefree compare --resume a\n" in err
    assert re.search(r"^scaffold +1 of 1 not finished", out, re.M)
    folder, rounds = place / "a" / "scaffold" / "seed-0", int(study[study.index("--rounds") + 1])
    before = drop_seconds(read_history(folder))
    assert 3 <= len(before) < rounds
    assert json.loads((folder / "checkpoint.json").read_text())[0]["rounds"] == len(before)
    assert call("compare", "--resume", "a")[0] == 0
    assert call("compare", "--out", "b", *study)[0] == 0
    assert drop_seconds(read_history(folder))[: len(before)] == before
    for label in ("scaffold", "fedavg"):
        one, other = (place / top / label / "seed-0" for top in "ab")
        assert drop_seconds(read_history(one)) == drop_seconds(read_history(other))
        files = [folder / "model.safetensors" for folder in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes()


TWO = ("--methods", "scaffold,fedavg", "--seeds", "1", *PART)


def test_ctrl_c_and_resume(call, place, monkeypatch):
    def train(*given, callbacks, **settings):
        def press(event):
            if event.round == 2:
                signal.raise_signal(signal.SIGINT)

        return real(*given, callbacks=[*callbacks, press], **settings)

    real, study = tasks.train, ("--rounds", "6", *TWO)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "train", train)
        said = call("compare", "--out", "a", *study)
    check_interrupted_and_resumed(call, place, study, *said)


def test_ctrl_c_while_other_processes_train(call, place):
    study = ("--rounds", "100", *TWO)
    words = [sys.executable, "-c", MAIN, "compare", "--out", "a", "--jobs", "2", *study]
    history = place / "a" / "scaffold" / "seed-0" / "history.jsonl"
    with start_process(words, limit=240) as process:
        while not (history.exists() and history.read_text().count("\n") >= 3):
            assert process.poll() is None, process.communicate(timeout=60)
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    check_interrupted_and_resumed(call, place, study, process.returncode, out, err)


GRID = ("--method", "fedavg", "--grid", "lr=0.01,0.3,1e6", "--rounds", "3")


def test_tune(call, place):
    code, out, err = call("tune", *GRID, "--seeds", 2, "--out", "search", *PART)
    assert code == 0
    assert re.search(r"^best +0.3 +3 +0\.\d{4} ± 0\.\d{4} ", out, re.M)
    assert "Best: fedavg with lr=0.3." in out
    assert "It took 6 runs, " in out
    assert "Page: search/report.html" in err
    found = tf.Tuning.load(place / "search")
    assert found.settings == {"lr": 0.3}
    histories = [drop_seconds(read_history(p)) for p in (place / "search").glob("*/seed-*")]
    assert found.cost["gradients"] == sum(r["gradients"] for rows in histories for r in rows)
    code, out, err = call("tune", "--resume", "search", "--json")
    facts = json.loads(out)
    assert (facts["settings"], facts["gradients"]) == ({"lr": 0.3}, found.cost["gradients"])
    assert facts["measure"] == "validation_accuracy"
    assert "6 of 6 runs were there already." in err
    for form in ("markdown", "csv", "latex"):
        out = call("tune", "--resume", "search", "--format", form)[1]
        assert out == getattr(found, form)() + "\n"


def test_tune_by_test_and_by_halving(call, place):
    grid = ("--grid", "lr=0.01,0.3,1", "--set", "weights=samples", "--rounds", "3")
    code, _, err = call("tune", *grid, "--by", "test", "--halving", "--out", "a", *PART)
    assert code == 0
    assert "biased" in err
    found = tf.Tuning.load(place / "a")
    assert sorted(p.rounds for p in found.points) == [1, 1, 3]
    assert found.method.weights == "samples"
    assert found.runs[0].settings["method"]["weights"] == "samples"


def test_a_search_that_finds_nothing(call):
    words = ("--grid", "lr=1e6,1e7", "--rounds", 3, "--out", "a", *PART)
    code, out, _ = call("tune", *words)
    assert code == 3
    assert "No setting of fedavg ended well" in out


def test_tuned_baselines_in_a_comparison(call, place):
    code, out, _ = call("compare", "--methods", "fedavg:tuned,auto", "--seeds", 2, "--rounds", 2,
                        "--out", "a", *PART)  # fmt: skip
    assert code == 0
    tuning = tf.Tuning.load(place / "a" / "tuning" / "fedavg,tuned")
    assert len(tuning.points) == 5
    assert re.search(rf"^fedavg:tuned .* tuned: lr={tuning.settings['lr']} ", out, re.M)
    assert f"{tuning.cost['gradients']:,.0f} gradients" in out
    lr = {
        r.settings["method"]["step"]["lr"]
        for r in tf.Comparison.load(place / "a").runs["fedavg:tuned"]
    }
    assert lr == {tuning.settings["lr"]}
    assert call("report", "a", "--out", "page.html")[0] == 0
    page, own = (place / name for name in ("page.html", "a/report.html"))
    assert page.read_text() == own.read_text()  # without the runs of the search
    assert call("report", "a/tuning/fedavg,tuned", "--out", "search.html")[0] == 0
    assert "<title>Tuning fedavg</title>" in (place / "search.html").read_text()


BAD = {
    "method": (["compare", "--methods", "auto,fedagv"], "Did you mean 'fedavg'?"),
    "setting": (["compare", "--methods", "fedavg:lr=fast"], "--set lr=fast must be a number."),
    "no-methods": (["compare"], "compare needs --methods"),
    "twice": (["compare", "--methods", "auto,auto"], "must tell its methods apart"),
    "seeds": (["compare", "--methods", "auto", "--seeds", "few"], "--seeds must be a number"),
    "jobs": (["compare", "--methods", "auto", "--jobs", "0"], "compare(jobs=...) must be an int"),
    "forms": (["compare", "--methods", "auto", "--format", "csv", "--json"], "give one of them"),
    "columns": (["compare", "--methods", "auto", "--columns", "labl"], "Did you mean 'label'?"),
    "columns-csv": (["tune", "--columns", "lr", "--format", "csv"], "csv prints all numbers"),
    "columns-tune": (["tune", "--columns", "lrr"], "Unknown column 'lrr'"),
    "data": (["compare", "--methods", "auto", "--data", "digit"], "Did you mean 'digits'?"),
    "full": (["compare", "--methods", "auto,scaffnew", "--cohort", "3"], "Cannot use scaffnew"),
    "rounds": (["compare", "--methods", "auto", "--rounds", "0"], "fit(rounds=...) must be"),
    "resume": (["compare", "--resume", "nowhere"], "holds no comparison"),
    "resume-more": (["compare", "--resume", "x", "--goal", "0.5"], "give no other option"),
    "tune-method": (["tune", "--method", "fedagv"], "Did you mean 'fedavg'?"),
    "tune-nothing": (["tune", "--method", "auto"], "auto has nothing to choose"),
    "grid-name": (["tune", "--grid", "lrr=1,2"], "Unknown argument of fedavg 'lrr'."),
    "grid-form": (["tune", "--grid", "lr"], "--grid must be KEY=VALUE,VALUE,..."),
    "grid-value": (["tune", "--grid", "lr=0.1,x"], "lr=x must be a number."),
    "grid-range": (["tune", "--grid", "lr=0.1,-1"], "must be a finite number > 0, got -1.0"),
    "grid-set": (["tune", "--grid", "lr=1,2", "--set", "lr=3"], "cannot be both set"),
    "tune-resume": (["tune", "--resume", "nowhere"], "holds no search"),
    "tune-resume-more": (["tune", "--resume", "x", "--halving"], "give no other option"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, place, case, idle):
    words, sentence = BAD[case]
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert list(place.iterdir()) == []


def options(*without):
    names = CommandConfig().to_json().keys() - set(without)
    return {f"--{name.replace('_', '-')}" for name in names}


FORMS = {"--seeds", "--out", "--resume", "--jobs", "--format", "--columns", "--json"}
NEW = {"--config", "--dry-run"}
HELP = {
    "compare": options("method", "seed", "set") | FORMS | NEW | {"--methods", "--goal"},
    "tune": options("seed") | FORMS | NEW | {"--grid", "--by", "--halving"},
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_every_option(call, command):
    code, out, err = call(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: tunefree {command} [OPTIONS]")
    assert set(re.findall(r"^│ (--[a-z-]+)", out, re.M)) == HELP[command]
    for name in HELP[command]:
        assert re.search(rf"^│ {name}\b[^│]*  +\S[^│]*│$", out, re.M), name
