"""The command line as a user meets it: folders, output, exit codes, help, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import tunefree as tf
from every.cases import KINDS, first_of_families, with_the_rest_slow
from helpers import drop_seconds, read_history, start_process
from tunefree import cli
from tunefree.training.command import CommandConfig

SMALL = ("--clients", "4", "--cohort", "2", "--steps", "2", "--batch", "10", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("place")
MAIN = "from tunefree.cli import main; main()"


def test_a_run_and_its_folder(call, place):
    code, out, err = call("run", "--rounds", 3, *SMALL)
    assert code == 0
    folder = place / "runs" / "digits-auto-1"
    assert {p.name for p in folder.iterdir()} == {
        "config.toml",
        "settings.json",
        "history.jsonl",
        "checkpoint.json",
        "model.safetensors",
        "state-000003.safetensors",
    }
    assert [row["round"] for row in read_history(folder)] == [0, 1, 2]
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["rounds"] == 3
    assert settings["command"]["data"] == "digits"
    assert settings["command"].keys() == CommandConfig().to_json().keys()
    assert json.loads((folder / "checkpoint.json").read_text())[0]["rounds"] == 3
    assert all(torch.isfinite(t).all() for t in load_file(folder / "model.safetensors").values())
    assert tf.Run.load(folder).status == "finished"
    words = ["method", "rounds", "test accuracy", "sent up / down", "run folder"]
    assert [line for line in words if line not in out] == []
    assert re.search(r"^rounds +3 \(finished\)", out, re.M)
    assert re.search(r"^run folder +runs/digits-auto-1", out, re.M)
    assert re.search(r"^round 3/3  loss \d", err, re.M)


def test_folders_are_numbered_and_out_is_taken(call, place):
    for _ in range(2):
        assert call("run", "--rounds", 1, *SMALL)[0] == 0
    assert call("run", "--rounds", 1, "--out", "here/there", *SMALL)[0] == 0
    assert sorted(p.name for p in (place / "runs").iterdir()) == ["digits-auto-1", "digits-auto-2"]
    assert drop_seconds(read_history(place / "here" / "there")) == drop_seconds(
        read_history(place / "runs" / "digits-auto-2")
    )


def test_json(call, place):
    code, out, _ = call("run", "--rounds", 2, "--json", "--method", "fedavg", *SMALL)
    assert code == 0
    facts = json.loads(out)
    history = read_history(place / facts["path"])
    assert (facts["status"], facts["rounds"]) == ("finished", 2)
    assert facts["bytes_up"] == sum(row["bytes_up"] for row in history)
    assert facts["test_accuracy"] == history[-1]["test_accuracy"]


def test_the_same_as_from_python(call, place):
    """The words stand for what they say."""
    call("run", "--method", "fedprox", "--set", "lr=0.2", "--set", "mu=0.3", "--split", "iid",
         "--set", "weights=samples", "--rounds", 2, "--seed", 5, "--out", "a", *SMALL)  # fmt: skip
    dataset = tf.load("digits")
    settings = json.loads((place / "a" / "settings.json").read_text())
    assert settings["method"]["direction"] == {"part": "Proximal", "mu": 0.3}
    assert settings["method"]["step"] == {"part": "Constant", "lr": 0.2, "balanced": False}
    assert settings["method"]["weights"] == "samples"
    fed = dataset.split(tf.Iid(), clients=4, seed=5)
    assert settings["data"]["digest"] == fed.digest()
    shape = tuple(dataset.x.shape[1:])
    model = tf.models.build(
        tf.models.nets.default_for(shape, 10, False, "digits"), shape=shape, classes=10, seed=5
    )
    method = tf.methods.get("fedprox", lr=0.2, mu=0.3, weights="samples")
    run = tf.fit(model, fed, method, rounds=2, cohort=2, steps=2, batch=10, seed=5, device="cpu")
    assert torch.equal(tf.Run.load(place / "a").x, run.x)


# How much these work depends on how much data the cohort has, or on a coin.
DRAWN = ("auto", "feddog", "feddowg", "fedproxlod", "fedproxwlod", "mime", "mimelite", "fedlin")
DRAWN += ("feddowgdua", "fedrace", "scaffnew")


def methods_and_dtypes():
    """Methods in float32; in float64, which only makes numbers larger, one of each family.

    That a run costs what its method's ledger says is tested for every method in tests/every.
    """
    chosen = {*first_of_families(), *KINDS, *DRAWN, "fedcanon"}  # the last has an echo
    yield from with_the_rest_slow(chosen, "float32")
    yield from ((name, "float64") for name in first_of_families())


@pytest.mark.parametrize(("method", "dtype"), list(methods_and_dtypes()))
def test_a_dry_run_knows_the_bytes(call, place, method, dtype):
    words = ("--rounds", 3, "--method", method, "--dtype", dtype, "--out", "run", *SMALL)
    known = tf.methods.get(method)
    if known.full:
        spot = words.index("--cohort") + 1
        words = (*words[:spot], 0, *words[spot + 1 :])
    code, out, _ = call("run", "--dry-run", "--json", *words)
    assert code == 0
    assert list(place.iterdir()) == []  # nothing was trained
    facts = json.loads(out)
    assert call("run", *words)[0] == 0
    history = read_history(place / "run")
    for way in ("bytes_up", "bytes_down"):
        each = [row[way] for row in history]
        assert each[1:] == [facts[way]] * 2
        assert sum(each) == facts[f"total_{way}"]
    exact = method not in DRAWN
    found = sum(row["gradients"] for row in history)
    assert found == pytest.approx(facts["gradients"], rel=0 if exact else 0.6)
    assert facts["parameters"] == tf.Run.load(place / "run").x.numel()


def test_a_dry_run_as_a_table(call):
    code, out, _ = call("run", "--dry-run", "--clients", 4)
    assert code == 0
    assert re.search(r"^parameters +17226", out, re.M)
    assert re.search(r"^bytes up +\d+\.\d kB", out, re.M)


@pytest.mark.parametrize("data", ["toy", "synthetic"])
def test_data_that_are_no_images(call, data):
    code, _, err = call("run", "--data", data, "--rounds", 1, "--steps", 1, "--device", "cpu")
    assert (code, err.count("Error")) == (0, 0)


# Ctrl-C and what comes after.

LONG = ("--rounds", "40", "--method", "scaffold", "--seed", "3", *SMALL)
# The command, but from the third round on a round takes time, so that Ctrl-C comes before the end.
SLOW = """
import time
from tunefree import cli

def train(*given, callbacks, **settings):
    def wait(event):
        time.sleep(0.1 if event.round >= 2 else 0)
    return real(*given, callbacks=[*callbacks, wait], **settings)

real, cli.run.train = cli.run.train, train
cli.main()
"""


@pytest.fixture
def interrupted(place):
    """A run in another process, stopped by Ctrl-C after a few of its rounds."""
    words = [sys.executable, "-c", SLOW, "run", "--out", "stopped", *LONG]
    history = place / "stopped" / "history.jsonl"
    with start_process(words, limit=240) as process:
        while not (history.exists() and history.read_text().count("\n") >= 3):
            assert process.poll() is None, process.communicate(timeout=60)
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_and_resume(interrupted, call, place):
    code, out, err = interrupted
    assert code == 130, err
    assert "Traceback" not in err
    assert "Stopped by Ctrl-C; continue with:  tunefree run --resume stopped" in err
    assert "(interrupted)" in out
    before = read_history(place / "stopped")
    assert 3 <= len(before) < 40
    assert not (place / "stopped" / "model.safetensors").exists()
    code, out, _ = call("run", "--resume", "stopped", "--json")
    assert (code, json.loads(out)["rounds"]) == (0, 40)
    assert call("run", "--out", "whole", *LONG)[0] == 0
    assert read_history(place / "stopped")[: len(before)] == before  # played once, not again
    assert drop_seconds(read_history(place / "stopped")) == drop_seconds(
        read_history(place / "whole")
    )
    model = "model.safetensors"
    assert (place / "stopped" / model).read_bytes() == (place / "whole" / model).read_bytes()


def test_how_to_resume_is_one_line(call, monkeypatch):
    def train(*given, callbacks, **settings):
        press = [*callbacks, lambda event: signal.raise_signal(signal.SIGINT)]
        return real(*given, callbacks=press, **settings)

    real = cli.run.train
    monkeypatch.setattr(cli.run, "train", train)
    folder = "runs/a-folder-whose-name-is-rather-long-but-fits-well-on-a-line-of-its-own"
    code, _, err = call("run", "--rounds", 3, "--out", folder, *SMALL)
    assert code == 130
    assert f"tunefree run --resume {folder}\n" in err


def test_resuming_what_is_finished_trains_nothing(call, place):
    call("run", "--rounds", 2, "--out", "a", *SMALL)
    before = {p.name: p.read_bytes() for p in (place / "a").iterdir()}
    assert call("run", "--resume", "a")[0] == 0
    after = {p.name: p.read_bytes() for p in (place / "a").iterdir()}
    assert after.keys() == before.keys()
    assert after["history.jsonl"] == before["history.jsonl"]
    assert after["model.safetensors"] == before["model.safetensors"]


def test_a_run_from_python_is_continued_in_python(call, place):
    dataset = tf.load("digits")
    fed = dataset.split(tf.Iid(), clients=4, seed=0)
    model = tf.models.build("mlp", shape=tuple(dataset.x.shape[1:]), classes=10, seed=0)
    tf.fit(model, fed, rounds=1, steps=1, out=place / "a", device="cpu")
    code, _, err = call("run", "--resume", "a")
    assert code == 2
    assert "started from Python" in err


# Exit codes and sentences.

BAD = {
    "data": (["--data", "digit"], "Unknown dataset 'digit'. Did you mean 'digits'?"),
    "method": (["--method", "fedagv"], "Unknown method 'fedagv'. Did you mean 'fedavg'?"),
    "split": (["--split", "dirichlet:x"], "dirichlet"),
    "model": (["--model", "mpl"], "Unknown model 'mpl'. Did you mean 'mlp'?"),
    "setting": (["--set", "lr"], "--set must be KEY=VALUE, such as lr=0.1, got 'lr'."),
    "no-number": (["--method", "fedavg", "--set", "lr=fast"], "--set lr=fast must be a number."),
    "range": (
        ["--method", "fedavg", "--set", "lr=-1"],
        "Constant(lr=...) must be a finite number > 0, got -1.0.",
    ),
    "unknown-setting": (["--set", "lr=1"], "Unknown argument of auto 'lr'."),
    "rounds": (["--rounds", "0"], "fit(rounds=...) must be an int >= 1, got 0."),
    "cohort": (["--cohort", "99"], "fit(cohort=...) must be at most the number of clients, 20"),
    "both": (["--steps", "1", "--epochs", "1"], "fit takes steps or epochs"),
    "validation": (
        ["--validation", "2"],
        "Evaluate(validation=...) must be a number between 0 and 1",
    ),
    "patience": (["--patience", "2"], "choose by validation data"),
    "monitor": (
        ["--validation", "0.2", "--monitor", "f1"],
        "Evaluate(monitor=...) must be one of 'loss', 'calibrated_loss', 'accuracy', got 'f1'.",
    ),
    "device": (["--device", "gpu"], "fit(device=...) must be 'auto' or a device of this machine"),
    "resume": (["--resume", "nowhere"], "--resume must be a run folder, got 'nowhere'"),
    "resume-and-more": (["--resume", "x", "--seed", "3"], "only --rounds can be given"),
    "resume-and-out": (["--resume", "x", "--out", "y"], "leave --out out."),
    "data-folder": (["--data", "mnist"], "$TUNEFREE_DATA must name a folder that exists, got"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, case, place, monkeypatch):
    monkeypatch.setenv("TUNEFREE_DATA", str(place / "none"))
    words, sentence = BAD[case]
    code, out, err = call("run", *words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert not (place / "runs").exists()


def test_a_used_folder_with_other_settings(call):
    call("run", "--rounds", 2, "--out", "a", *SMALL)
    code, _, err = call("run", "--rounds", 1, "--out", "a", *SMALL)
    assert code == 2
    assert "rounds was 2, now 1" in err


def test_more_rounds(call):
    call("run", "--rounds", 1, "--out", "a", *SMALL)
    code, out, _ = call("run", "--resume", "a", "--rounds", 3, "--json")
    assert (code, json.loads(out)["rounds"]) == (0, 3)
    code, out, _ = call("run", "--rounds", 4, "--out", "a", "--json", *SMALL)
    assert (code, json.loads(out)["rounds"]) == (0, 4)
    code, out, _ = call("run", "--resume", "a", "--json")
    assert (code, json.loads(out)["rounds"]) == (0, 4)


@pytest.mark.parametrize("words", ["[bold]x", "[/x]"])
def test_brackets_in_a_sentence(call, words):
    code, _, err = call("run", "--data", words)
    assert code == 2
    assert f"Unknown dataset '{words}'." in err


def test_brackets_in_a_folder(call):
    _, out, _ = call("run", "--rounds", 1, "--out", "a[b]", *SMALL)
    assert re.search(r"^run folder +a\[b\]", out, re.M)


def test_divergence(call, place):
    words = ("--method", "fedavg", "--set", "lr=1e6", "--rounds", 20, "--out", "a", "--json")
    code, out, err = call("run", *words, *SMALL)
    assert (code, json.loads(out)["status"]) == (3, "diverged")
    assert "Traceback" not in err
    assert len(read_history(place / "a")) < 20


def test_a_pipe_that_is_closed():
    """As in `tunefree methods --json | head -c 10`."""
    words = [sys.executable, "-c", MAIN, "methods", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert "Traceback" not in done.stderr


def test_logs_are_in_the_run_folder_and_go_on(call, place):
    small = ("--clients", 4, "--steps", 1, "--device", "cpu")
    assert call("run", "--rounds", 3, "--log", "csv", "--out", "a", *small)[0] == 0
    lines = (place / "a" / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["round", "0", "1", "2"]


# Help and lists.
