"""Claims over paired seeds, from numbers that can be checked by hand."""

import math

import pytest
from experiments.claims import differences, judge
from experiments.numbers import parse
from experiments.spec import Claim
from experiments.text import cells


def claim(by="last", **more):
    return Claim("A beats B", ("T",), ("A",), ("B",), parse(by, "test_accuracy"), **more)


def row(label, values, by="last", status=None):
    status = status or ["finished"] * len(values)
    return {"label": label, "base": label, "values": {by: values}, "status": status}


def test_less_is_better_for_losses_and_costs():
    assert differences(claim("train_loss last"), [1.0], [3.0], ([False], [False])) == [2.0]
    assert differences(claim("rounds to 0.8"), [10], [30], ([False], [False])) == [20]
    assert differences(claim(), [0.9], [0.7], ([False], [False])) == [pytest.approx(0.2)]


def test_a_lost_run_is_worse_than_any_and_a_failed_one_is_left_out():
    values = ([None, 0.5, None, 0.5], [0.1, None, None, 0.4])
    failed = ([False] * 4, [False] * 3 + [True])
    assert differences(claim(), *values, failed) == [-math.inf, math.inf]


def test_a_factor_compares_ratios():
    wanted = claim("bytes_up to 0.8", factor=10.0)
    by = "bytes_up to 0.8"
    much = judge(wanted, "T", [row("A", [1.0, 1.1], by), row("B", [12.0, 13.0], by)])
    assert much["verdict"] == "holds"
    assert math.exp(much["pairs"][0]["difference"]) == pytest.approx(math.sqrt(12 * 13 / 1.1))
    less = judge(wanted, "T", [row("A", [1.0, 1.1], by), row("B", [3.0, 3.1], by)])
    assert less["verdict"] == "fails"


def test_every_pair_counts_and_the_worst_decides():
    many = Claim("A is best", ("T",), ("A",), ("B", "C"), parse("last", "test_accuracy"))
    rows = [row("A", [0.9, 0.91]), row("B", [0.8, 0.8]), row("C", [0.95, 0.96])]
    found = judge(many, "T", rows)
    assert [p["verdict"] for p in found["pairs"]] == ["holds", "fails"]
    assert found["verdict"] == "fails"
    assert judge(many, "T", rows[:2])["verdict"] == "holds"
    gone = judge(many, "T", rows[:1], "Not run.")
    assert (gone["verdict"], gone["reason"]) == ("not tested", "Not run.")


def test_a_row_is_compared_with_a_number():
    by = parse("mu last", "test_accuracy", None)
    small = Claim("The weight ends below 0.1", ("T",), ("A",), (), by, value=0.1)
    assert judge(small, "T", [row("A", [0.03, 0.04], "mu last")])["verdict"] == "holds"
    found = judge(small, "T", [row("A", [0.3, 0.32], "mu last")])
    assert found["verdict"] == "fails"
    assert found["pairs"][0]["than"] == "0.1"
    assert found["pairs"][0]["difference"] == pytest.approx(-0.21)
    assert judge(small, "T", [row("A", [0.01, 0.5], "mu last")])["verdict"] == "open"
    lost = row("A", [None, None], "mu last", ["diverged"] * 2)
    assert judge(small, "T", [lost])["verdict"] == "fails"


HISTORY = [
    {"test_accuracy": 0.5, "bytes_up": 10, "trials": 2.0},
    {"bytes_up": 10, "trials": 4.0},
    {"test_accuracy": 0.8, "bytes_up": 10, "trials": 3.0},
    {"test_accuracy": 0.7, "bytes_up": 10, "trials": 3.0},
]


def test_a_claim_about_a_number():
    by = parse("last", "test_accuracy")

    a = row("A", [0.81, 0.82, 0.83])

    def verdict(**more):
        return judge(Claim("A", ("T",), ("A",), (), by, **more), "T", [a])["verdict"]

    assert verdict(value=0.7) == "holds"
    assert verdict(value=0.9) == "fails"
    assert verdict(value=0.82) == "open"
    assert verdict(value=0.82, within=0.05) == "holds"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("best", 0.8),
        ("last", 0.7),
        ("highest", 0.7),
        ("first", 0.5),
        ("trials mean", 3.0),
        ("trials median", 3.0),
        ("bytes_up sum", 40),
        ("rounds to 0.8", 3),
        ("bytes_up to 0.75", 30),
        ("rounds to 0.9", None),
        ("trials rounds to 2", 1),
        ("train_loss last", None),
    ],
)
def test_numbers_of_a_history(text, value):
    assert parse(text, "test_accuracy").of(HISTORY) == value


def test_the_highest_of_several_runs_is_shown_where_a_paper_does_so():
    rows = [
        {"label": "A", "task": "T", "values": {"highest": [0.7, 0.9, None], "last": [0.7, 0.9]}}
    ]
    rows[0] |= {"status": [], "published": {"highest": 0.85}, "chosen": None, "notes": []}
    of = {"highest": "test_accuracy", "last": "test_accuracy"}
    tasks = [{"name": "T", "label": "T", "skipped": ""}]
    rows[0]["changes"] = ""
    (line,) = cells({"tasks": tasks, "rows": rows, "show": ["highest", "last"], "of": of})
    assert (line["highest ours"], line["highest difference"]) == ("0.9000", "+0.0500")
    assert line["last ours"] == "0.8000 ± 0.1414"


def test_the_mean_of_the_last_five():
    history = [{"test_accuracy": v} for v in (9.0, 1.0, 2.0, 3.0, 4.0, 5.0)]
    assert parse("last5", "test_accuracy").of(history) == 3.0
    assert parse("last5", "test_accuracy").of(history[:2]) == 5.0


def test_the_value_after_some_rounds():
    history = [{"round": t, "test_accuracy": 0.1 * t} for t in (9, 19)]
    assert parse("at-10", "test_accuracy").of(history) == pytest.approx(0.9)
    assert parse("test_accuracy at-20", "test_loss").of(history) == pytest.approx(1.9)
    assert parse("at-30", "test_accuracy").of(history) is None


def test_a_drop_is_what_was_lost_after_the_best_and_little_is_better():
    drop = parse("drop", "test_accuracy")
    assert drop.of(HISTORY) == pytest.approx(0.1)
    assert not drop.rises
    assert parse("trials drop", "test_accuracy", None).of(HISTORY[1:]) == 0.0
