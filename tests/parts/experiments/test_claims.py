"""Verdicts over paired seeds, from numbers that can be checked by hand."""

import math

import pytest
from experiments.claims import differences, judge, verdict
from experiments.numbers import parse
from experiments.spec import Claim


def claim(by="last", **more):
    return Claim("A beats B", ("T",), ("A",), ("B",), parse(by, "test_accuracy"), **more)


def row(label, values, by="last", status=None):
    status = status or ["finished"] * len(values)
    return {"label": label, "base": label, "values": {by: values}, "status": status}


@pytest.mark.parametrize(
    ("each", "margin", "said"),
    [
        ([0.02, 0.03, 0.04], 0.0, "holds"),
        ([0.01, 0.01, 0.10], 0.0, "holds"),  # 2 s.e. is 0.06 > 0.04, but every seed agrees
        ([-0.01, 0.02, 0.05], 0.0, "open"),  # mean 0.02, s.e. 0.0173
        ([-0.001, 0.02, 0.021, 0.022], 0.0, "holds"),  # one seed disagrees; 0.0155 > 2 * 0.0055
        ([-0.02, -0.03, -0.04], 0.0, "fails"),
        ([-0.01, -0.01, -0.10], 0.0, "open"),
        ([-0.01, -0.012, -0.011], -0.02, "holds"),
        ([0.02, 0.03, 0.04], 0.05, "fails"),
        ([0.0, 0.0], 0.0, "holds"),
        ([0.3], 0.0, "open"),
        ([], 0.0, "not tested"),
        ([math.inf, 0.1], 0.0, "holds"),
        ([math.inf, -0.1], 0.0, "open"),
        ([-math.inf, -0.1], 0.0, "fails"),
    ],
)
def test_verdicts(each, margin, said):
    assert verdict(each, margin)[0] == said


def test_mean_and_standard_error():
    _, mean, error = verdict([0.01, 0.03])
    assert mean == pytest.approx(0.02)
    assert error == pytest.approx(0.01)  # sd 0.01414 / sqrt(2)


@pytest.mark.parametrize(
    ("each", "said"),
    [
        ([0.01, -0.01, 0.005], "holds"),
        ([0.018, 0.022, 0.019], "open"),  # mean 0.0197, one seed outside, s.e. 0.0012
        ([-0.05, -0.06], "fails"),
        ([math.inf, math.inf], "fails"),
    ],
)
def test_about_equal(each, said):
    assert verdict(each, within=0.02)[0] == said


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


HISTORY = [
    {"test_accuracy": 0.5, "bytes_up": 10, "trials": 2.0},
    {"bytes_up": 10, "trials": 4.0},
    {"test_accuracy": 0.8, "bytes_up": 10, "trials": 3.0},
    {"test_accuracy": 0.7, "bytes_up": 10, "trials": 3.0},
]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("best", 0.8),
        ("last", 0.7),
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


def test_a_drop_is_what_was_lost_after_the_best_and_little_is_better():
    drop = parse("drop", "test_accuracy")
    assert drop.of(HISTORY) == pytest.approx(0.1)
    assert not drop.rises
    assert parse("trials drop", "test_accuracy", None).of(HISTORY[1:]) == 0.0
