"""`python -m benchmarks SUITE` as a user meets it, and the page that its results make."""

import dataclasses
import json
import re
from functools import partial

import benchmarks as bench
import pytest
from benchmarks import pfl_cifar10, render
from benchmarks.__main__ import app

import tunefree as tf

TINY = ("--clients", 2, "--batch", 4, "--steps", 2, "--device", "cpu", "--eager")
MEDIANS = {
    "cpu": ("ours_ms", "plain_ms", "hand_ms"),
    "gpu": ("ours_ms", "plain_ms"),
    "lora": ("ours_ms", "plain_ms"),
    "scale": ("round_ms", "plain_ms"),
    "rules": ("ms", "copy_ms", "ratio"),
}


@pytest.fixture
def call(call, place, monkeypatch):
    monkeypatch.delenv("TUNEFREE_DATA", raising=False)
    return partial(call, app=app)


def kept(call, suite, *words):
    """Return the record that a suite prints, after a look at what every record must have."""
    code, out, err = call(suite, *words, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["suite"] == suite
    assert record["versions"]["tunefree"] == tf.__version__
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["cpu"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert record["command"].startswith(f"python -m benchmarks {suite}")
    for row in record["rows"]:
        for name in MEDIANS.get(suite, ()):
            low, high = row[f"{name}_range"]
            assert 0 < low <= row[name] <= high
    return record


def test_cpu(call):
    record = kept(call, "cpu", *TINY, "--models", "mlp", "text", "--repeats", 3)
    mlp, text = record["rows"]
    assert (mlp["model"], mlp["parameters"], mlp["engine"]) == ("mlp", 109_386, "vmap")
    assert (text["model"], text["parameters"]) == ("text", 640_130)
    assert (mlp["clients"], mlp["batch"], mlp["steps"], mlp["repeats"]) == (2, 4, 2, 3)
    assert mlp["ratio"] == pytest.approx(mlp["plain_ms"] / mlp["ours_ms"])
    assert mlp["setup_s"] >= 0
    assert record["command"] == (
        "python -m benchmarks cpu --models mlp text --clients 2 --batch 4 --steps 2 --repeats 3 "
        "--eager"
    )


def test_gpu_works_elsewhere(call):
    words = ("--models", "mlp", "--precisions", "auto", "--repeats", 2, "--plain-repeats", 1)
    (row,) = kept(call, "gpu", *TINY, *words)["rows"]
    assert row["parameters"] == 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    assert (row["repeats"], row["plain_repeats"]) == (2, 1)
    assert row["target_ms"] is None  # another work than that of the targets
    assert row["memory"] > 0


def test_lora(call):
    words = ("--tiny", "--modes", "eager", "--clients", 3, "--batch", 2, "--tokens", 8)
    more = ("--rank", 2, "--steps", 2, "--repeats", 2, "--device", "cpu")
    gpt, bert = kept(call, "lora", *words, *more)["rows"]
    assert [row["model"] for row in (gpt, bert)] == ["gpt", "bert"]
    assert gpt["parameters"] == 2 * 2 * (16 + 48)
    assert bert["parameters"] == 2 * 2 * 2 * (16 + 16) + 16 * 2 + 2
    layer = 16 * 48 + 48 + 16 * 16 + 16 + 2 * 16 * 32 + 32 + 16 + 4 * 16
    assert gpt["base"] == 4 * (2 * layer + (50 + 1024 + 2) * 16)
    assert (gpt["engine"], gpt["chunk"], gpt["repeats"], gpt["plain_repeats"]) == ("vmap", 3, 2, 1)
    assert (gpt["client_memory"], gpt["bound"]) == (None, None)  # measured on a GPU


def test_pfl_cifar10(call, place, monkeypatch):
    monkeypatch.setattr(pfl_cifar10, "TESTED", 50)
    words = ("--rounds", 5, "--users", 4, "--cohort", 2, "--plain-rounds", 1, "--device", "cpu")
    code, out, err = call("pfl-cifar10", *words, "--data", "random", "--out", place / "kept")
    assert code == 0
    assert re.search(r"^random, not CIFAR-10 +5 ", out, re.M)
    assert "data: random images of CIFAR-10's shape" in err
    assert "round 5/5" in err
    (file,) = (place / "kept").iterdir()
    record = json.loads(file.read_text())
    assert file.name.startswith("pfl-cifar10-")
    (row,) = record["rows"]
    assert row["data"] == "random"
    assert (row["parameters"], row["steps"], row["rounds"]) == (1_626_442, 5, 5)
    assert row["plain_total_s"] == pytest.approx(5 * row["plain_round_s"])
    assert row["per_100_s"] == pytest.approx(20 * row["total_s"])
    assert row["ratio"] == pytest.approx(row["plain_total_s"] / row["total_s"])
    assert 0 <= row["accuracy"] <= 1


def test_scale(call):
    """Every point is a process of its own."""
    record = kept(
        call, "scale", "--curves", "steps", "--most", 1, "--repeats", 2, "--device", "cpu"
    )
    (row,) = record["rows"]
    assert (row["curve"], row["method"], row["parameters"]) == ("steps", "fedavg", 7850)
    assert (row["clients"], row["cohort"], row["steps"]) == (2000, 100, 1)
    assert row["times"] == 1.0
    assert row["host_memory"] >= row["host_memory_at_start"] > 10**8  # of the child
    assert row["memory"] == row["host_memory"]


def test_rules(call):
    words = ("--size", 1000, "--repeats", 2, "--device", "cpu")
    rows = {row["name"]: row for row in kept(call, "rules", *words)["rows"]}
    assert list(rows)[:3] == ["L1", "MCP", "SCAD"]
    copies = {"L1": 1, "Average": 1, "Momentum": 2, "FedDuAdam": 3, "AMSGrad": 4, "Proximal, l1": 1}
    assert {name: rows[name]["copies"] for name in copies} == copies
    assert {row["published_ms"] for row in rows.values()} == {None}  # of another size
    code, out, err = call("rules", *words)
    assert code == 0
    assert [name for name in rows if not re.search(rf"^{name} ", out, re.M)] == []
    assert "26 server rules" in err


# What is wrong gets a sentence, before anything is measured.

BAD = {
    "suite": (["gup"], "Unknown suite 'gup'. Did you mean 'gpu'?"),
    "model": (["cpu", "--models", "mpl"], "Unknown model 'mpl'. Did you mean 'mlp'?"),
    "work": (["gpu", "--models", "linear"], "Unknown model 'linear'."),
    "curve": (["scale", "--curves", "client"], "Unknown curve 'client'. Did you mean 'clients'?"),
    "steps": (["cpu", "--steps", "0"], "Cpu(steps=...) must be an int >= 1, got 0."),
    "size": (["rules", "--size", "0"], "Rules(size=...) must be an int >= 1, got 0."),
    "most": (["scale", "--most", "0"], "Scale(most=...) must be an int >= 1, got 0."),
    "points": (["scale", "--curves", "clients", "--most", "9"], "Scale(most=9) leaves no point"),
    "rounds": (["pfl-cifar10", "--rounds", "1"], "PflCifar10(rounds=...) must be"),
    "users": (["pfl-cifar10", "--users", "1001"], "PflCifar10(users=...) must be at most 1000"),
    "repeats": (
        ["gpu", "--repeats", "1"],
        "Gpu(plain_repeats=...) must be at most repeats, 1, got 2.",
    ),
    "device": (["cpu", "--device", "gpu"], "must be 'auto' or a device of this machine"),
    "out": (["cpu", "--out", "file/below"], "--out must be a .json file or a folder that can be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, case, place):
    (place / "file").write_text("")
    words, sentence = BAD[case]
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize("words", [["cpu", "--nope"], ["gpu", "--precisions", "fp8"]])
def test_options_that_cannot_be_read(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert words[1] in err or words[-1] in err


def test_without_a_suite_they_are_listed(call):
    code, out, _ = call()
    assert code == 0
    assert out.startswith("Usage: python -m benchmarks")
    assert re.findall(r"^│ ([a-z0-9][a-z0-9-]*) ", out, re.M) == sorted(bench.SUITES)


@pytest.mark.parametrize("suite", bench.SUITES)
def test_help_names_every_option(call, suite):
    code, out, err = call(suite, "--help")
    assert (code, err) == (0, "")
    fields = dataclasses.fields(bench.SUITES[suite].settings)
    names = {f"--{f.name.replace('_', '-')}" for f in fields} | {"--json", "--out"}
    assert set(re.findall(r"^│ (--[a-z-]+)", out, re.M)) == names
    for name in names:  # each with a text of its own
        assert re.search(rf"^│ {name}\b[^│]*  +\S[^│]*│$", out, re.M), name


# The page.


def test_the_page_is_up_to_date():
    assert render.main(["--check"]) == 0
    assert re.findall(r"<!-- results: (\S+) -->", render.PAGE.read_text()) == list(bench.SUITES)


def test_the_page_follows_the_results(call, place, monkeypatch, capsys):
    page = place / "speed.md"
    page.write_text("# Speed\n<!-- results: rules -->\nold\n<!-- end of results -->\nwords\n")
    monkeypatch.setattr(render, "PAGE", page)
    monkeypatch.setattr(render, "RESULTS", place / "results")
    assert render.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert render.main([]) == 0
    assert f"\n\n{render.NONE}\n<!-- end" in page.read_text()
    assert render.main(["--check"]) == 0
    call("rules", "--size", 100, "--repeats", 1, "--device", "cpu", "--out", place / "results")
    assert render.main(["--check"]) == 1
    assert render.main([]) == 0
    text = page.read_text()
    assert "\n    python -m benchmarks rules --size 100 --repeats 1 --device cpu\n" in text
    assert (
        "\n| rule | ms | one copy, ms | copies to make | ratio | published, ms |\n| --- |" in text
    )
    assert len(re.findall(r"^\| L1 \|", text, re.M)) == 1
    assert text.startswith("# Speed\n")
    assert text.endswith("<!-- end of results -->\nwords\n")
    assert "old" not in text
    assert render.main(["--check"]) == 0
    assert render.main(["--nope"]) == 2
