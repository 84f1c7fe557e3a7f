"""What the page is told: numbers by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefree.report import payload
from tunefree.report.payload import downsample, format_command, round_values, space_evenly

from .runs import run


def told(*runs):
    return payload.build_group("label", list(runs))


def with_losses(*values, seed=0):
    rows = [{"round": t, "train_loss": v} for t, v in enumerate(values)]
    return run(seed=seed, history=rows)


def test_mean_lowest_highest_and_deviation():
    curve = told(with_losses(1.0, 4.0), with_losses(3.0, 5.0, seed=1))["curves"]["train_loss"]
    assert curve["at"] == [1, 2]
    assert curve["mean"] == [2, 4.5]
    assert (curve["low"], curve["high"]) == ([1, 4], [3, 5])
    assert curve["sd"] == pytest.approx([math.sqrt(2), math.sqrt(0.5)], rel=1e-5)


def test_one_run_has_no_band():
    assert set(told(with_losses(1.0, 4.0))["curves"]["train_loss"]) == {"at", "mean"}


def test_a_shorter_run_leaves_the_rest_to_the_others():
    curve = told(with_losses(1.0), with_losses(3.0, 5.0, seed=1))["curves"]["train_loss"]
    assert curve["mean"] == [2, 5]
    assert curve["sd"][1] == 0


def test_what_is_no_number_is_left_out():
    curve = told(with_losses(1.0, None, float("nan"), float("inf"), 2.0))["curves"]["train_loss"]
    assert curve == {"at": [1, 5], "mean": [1, 2]}


def test_rounds_without_evaluation_are_not_points():
    rows = [{"round": t, **({"test_loss": t} if t % 2 else {})} for t in range(6)]
    assert told(run(history=rows))["curves"]["test_loss"] == {"at": [2, 4, 6], "mean": [1, 3, 5]}


def test_costs_add_up():
    axes = told(run(rounds=3), run(seed=1, rounds=2))["axes"]
    assert axes["at"] == [1, 2, 3]
    assert axes["bytes_up"] == [100, 200, 300]
    assert axes["bytes_down"] == [50, 100, 150]
    assert axes["seconds"] == [0.5, 1, 1.5]
    assert axes["gradients"] == [10, 20, 30]


def test_a_cost_that_is_not_known_is_not_zero():
    assert told(with_losses(1.0, 2.0))["axes"]["bytes_up"] == [None, None]


def test_columns_of_some_runs_only():
    one = run(history=[{"round": 0, "mu": 0.5, "note": "text", "flag": True}])
    two = run(seed=1, history=[{"round": 0, "sparsity": 0.25}])
    curves = told(one, two)["curves"]
    assert set(curves) == {"mu", "sparsity"}
    assert curves["mu"]["mean"] == [0.5]


def test_channels_in_the_ledger():
    rows = told(run(rounds=3), run(seed=1, rounds=1))["ledger"]
    up = {r["channel"]: r for r in rows if r["way"] == "up"}
    assert up["delta"]["bytes"] == pytest.approx(90 * 2)  # three rounds and one: two on average
    assert up["delta"]["per_round"] == pytest.approx(90)
    assert up["q"]["bytes"] == pytest.approx(20)
    down = [r for r in rows if r["way"] == "down"]
    assert [(r["channel"], r["bytes"]) for r in down] == [("all", 100)]


def test_totals_over_seeds():
    good, bad = run(rounds=3), run(seed=1, rounds=1, status="diverged")
    group = told(good, bad)
    assert group["status"] == {"finished": 1, "diverged": 1}
    middle, deviation, n = group["totals"]["test_accuracy"]
    a, b = 1 - 0.5 / 3, 0.5
    assert (middle, n) == (pytest.approx((a + b) / 2), 2)
    assert deviation == pytest.approx(abs(a - b) / math.sqrt(2))
    assert group["totals"]["bytes_up"][0] == 200
    assert group["seeds"] == [0, 1]


def test_a_run_without_rounds():
    group = told(run(rounds=0, status="unfinished"))
    assert group["curves"] == {}
    assert group["axes"]["at"] == []
    assert group["totals"]["rounds"][0] == 0
    assert group["totals"]["test_accuracy"] is None
    assert group["ledger"] == []


def test_settings_that_seeds_do_not_share_are_listed():
    found = told(run(seed=0), run(seed=1))["settings"]
    assert found["seed"] == "0, 1"
    assert found["method.step.lr"] == "0.1"
    assert not any("picture" in name or name.startswith("command") for name in found)


def test_pictures_are_shown_once():
    groups = {"a": [run(seed=0), run(seed=1)], "b": [run("scaffold", seed=0)]}
    found = payload.build_pictures(groups)
    assert [p["names"] for p in found] == [["digits, seed 0"], ["digits, seed 1"]]
    assert found[0]["labels"] == [[3, 0], [1, 3]]


def test_a_thousand_clients_are_thinned():
    many = {"clients": list(range(1000)), "sizes": [5] * 1000, "labels": [[5, 0]] * 1000}
    (found,) = payload.build_pictures(
        {"a": [run(data={"name": "d", "clients": 1000, "picture": many})]}
    )
    assert len(found["clients"]) == len(found["sizes"]) == len(found["labels"]) == 100
    assert (found["clients"][0], found["clients"][-1], found["of"]) == (0, 999, 1000)


def test_titles():
    two = {"a": [run()], "b": [run("scaffold")], "nobody": []}
    assert payload.build_payload(two)["title"] == "2 configurations on digits"
    assert len(payload.build_payload(two)["groups"]) == 2
    assert payload.build_payload({"a": [run()]})["title"] == "a on digits"
    assert payload.build_payload({"a": [run()]}, title="Mine")["title"] == "Mine"
    assert payload.build_payload({})["title"] == "No runs"


def test_commands_can_be_typed():
    words = {"method": "fedavg", "set": ["lr=0.1", "x=a b"], "keep_best": True, "seed": 0}
    more = {"per_client": False, "validation": 0.1, "data_dir": None, "batch": 50}
    line = "tunefree run --method fedavg --set lr=0.1 --set 'x=a b' --seed 0 --validation 0.1"
    assert format_command({"command": words | more}) == f"{line} --keep-best"
    assert format_command({"command": {}}) is None
    assert format_command({"command": {"something": "else"}}) is None
    assert format_command({}) is None


# Fewer points, same picture.


def test_short_curves_stay_as_they_are():
    y = np.arange(600.0)
    assert downsample(y, y).tolist() == list(range(600))


@given(st.integers(0, 2**32 - 1), st.integers(601, 5000))
def test_the_extremes_and_the_ends_stay(seed, n):
    draws = np.random.default_rng(seed)
    low = draws.normal(size=n)
    high = low + draws.random(n)
    at = downsample(low, high)
    assert len(at) <= 600
    assert (np.diff(at) > 0).all()
    assert {0, n - 1, int(low.argmin()), int(high.argmax())} <= set(at.tolist())


def test_every_stretch_keeps_its_own_peak():
    """A curve that is zero but for a peak every 100 rounds keeps all of the peaks."""
    y = np.zeros(10_000)
    y[50::100] = 1.0
    assert set(np.arange(50, 10_000, 100)) <= set(downsample(y, y).tolist())


def test_no_stretch_is_left_out():
    y = np.random.default_rng(0).normal(size=10_000)
    assert np.diff(downsample(y, y)).max() < 2 * 10_000 / 299


@pytest.mark.parametrize(("n", "most"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 600)])
def test_spaced(n, most):
    at = space_evenly(n, most).tolist()
    assert len(at) == min(n, most)
    assert at == sorted(set(at))
    if n:
        assert (at[0], at[-1]) == (0, n - 1)


def test_numbers_are_short():
    assert round_values([1 / 3, 1e20, 12345678.0, float("inf"), 0.0]) == [
        0.333333,
        1e20,
        12345678,
        None,
        0,
    ]
