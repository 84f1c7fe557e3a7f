"""The package against the composite oracles, at every round, through the public API alone."""

import functools

import numpy as np
import pytest
import torch

import tunefree as tf
import tunefree.data.batches
from oracle import cases, composite_cases, problems
from oracle.test_methods import EVERYTHING, SCHEDULES, SEED, agree, cohorts, fit, follows

PENALTIES = {"l1": "L1", "l2": "L2", "elastic": "ElasticNet", "mcp": "MCP", "scad": "SCAD"}

# their clocks or controls count on one step size
STEADY = ("scaffnew-p", "fedda-elastic", "fastfedda-l1", "za1-elastic")

# every method once, with all of its arguments where it has any
EACH = (
    "scafcom-all",
    "fedefsgd-all",
    "fedefams-all",
    "localsgdc-all",
    "scaffnew-p",
    "fedmid-elastic",
    "fedda-elastic",
    "fastfedda-l1",
    "za1-elastic",
    "feddr-l1",
    "fedadmm-elastic",
    "fedpd-skip",
    "feddyn-mu",
    "feddc-mu",
)


def method(name, settings, **common):
    """The package's method from the oracle's arguments."""
    settings = dict(settings)
    if "penalty" in settings:
        kind, *numbers = settings["penalty"]
        settings["penalty"] = getattr(tf.penalties, PENALTIES[kind])(*numbers)
    if "compressor" in settings:
        kind, ratio = settings["compressor"]
        assert kind == "topk"
        settings["compressor"] = tf.wire.TopK(ratio)
    return tf.methods.get(name, **settings, **common)


def tossed(name, settings, steps, rows):
    """What the shared coin decided, read off the number of gradients in every round."""
    total = [row["gradients"] for row in rows]
    if name == "scaffnew":
        return {"lengths": [whole(g, len(steps)) for g in total]}
    if settings.get("skip", 0) > 0:
        return {"solves": [whole(g, sum(steps)) for g in total]}
    return {}


def whole(number, divisor):
    assert number % divisor == 0
    return number // divisor


def drawn(problem, name, steps, cut):
    """The package's batches as the oracle's `batch(t, i, k)`.

    FedPD draws anew for every local solve of a round, a turn. A round of Scaffnew has its own
    number of steps, more than `cut` says: a shorter draw is the beginning of a longer one.
    """
    if name == "scaffnew":
        cut = {"batch": cut["batch"], "steps": 60}

    @functools.cache
    def draw(t, i, phase):
        size, start = problem.sizes[i], problem.start[i]
        ids, sizes, starts = (torch.tensor([v]) for v in (i, size, start))
        cuts = tunefree.data.batches.BatchPlan(**cut)
        got = tunefree.data.batches.draw_batches(SEED, t, ids, sizes, starts, cuts, phase=phase)
        chosen = [got.index[0, k][got.mask[0, k].bool()].numpy() - start for k in range(got.steps)]
        assert all(len(rows) > 0 and rows.min() >= 0 and rows.max() < size for rows in chosen)
        return chosen

    def batch(t, i, k):
        phase, k = divmod(k, steps[i]) if name == "fedpd" else (0, k)
        return draw(t, i, phase)[k]

    return batch


def compare(problem, case, size, *, cut=None, same=None, ours=None):
    """Run both and compare points and outputs.

    `same` are common arguments that both name alike, `ours` those of the oracle where the names
    differ. `cut`: batch, and steps or epochs.
    """
    name, settings = composite_cases.NAMED[case]
    size = problem.clients if case in composite_cases.FULL else size
    same = {} if same is None else same
    ours = same if ours is None else ours
    x0, groups = problems.start(problem), cohorts(problem, size)
    cut = {"batch": None, "steps": cases.STEPS} if cut is None else cut
    got, output, seen = fit(problem, x0, method(name, settings, **same), cohort=size, **cut)

    steps = [cut["steps"] if "steps" in cut else epochs(n, cut) for n in problem.sizes]
    batch = None if cut["batch"] is None else drawn(problem, name, steps, cut)
    coins = tossed(name, settings, steps, seen)
    oracle = composite_cases.oracle(name)
    expected = oracle(problem, x0, groups, steps, batch=batch, **settings, **coins, **ours)
    follows(got, expected)
    agree(output, [row["output"] for row in expected.trace])
    return got, output


def epochs(n, cut):
    return cut["epochs"] * -(-n // cut["batch"])


@pytest.mark.parametrize(("setup", "case"), composite_cases.PAIRS)
def test_named_methods(setup, case):
    kind, size, weights = composite_cases.SETUPS[setup]
    compare(cases.PROBLEMS[kind](), case, size, same={"weights": weights})


@pytest.mark.parametrize("case", EACH)
def test_minibatches(case):
    same, cut = {"weights": "samples"}, {"batch": 2, "steps": 5}
    compare(problems.softmax(), case, 7, same=same, cut=cut)


@pytest.mark.parametrize("case", EACH)
def test_unequal_steps(case):
    """Two epochs of batches of 4: client i takes 2 ceil(n_i / 4) steps, the last ones short."""
    compare(problems.least_squares(), case, 4, cut={"batch": 4, "epochs": 2})


@pytest.mark.parametrize("case", EACH)
def test_schedule_decay_and_clip(case):
    same = dict(EVERYTHING)
    if case in STEADY:
        del same["schedule"]
    ours = {"decay": same["weight_decay"], "clip": same["clip"]}
    if "schedule" in same:
        ours["schedule"] = SCHEDULES[same["schedule"]]
    compare(problems.least_squares(), case, 3, same=same, ours=ours)


@pytest.mark.parametrize("case", ["feddr-exact", "fedadmm-exact", "fedpd-exact", "feddyn-exact"])
def test_weight_decay_is_inside_the_exact_solution(case):
    same, ours = {"weight_decay": 0.3}, {"decay": 0.3}
    compare(problems.least_squares(), case, 3, same=same, ours=ours)


@pytest.mark.parametrize("case", ["fedda-l1", "za1-l1"])
def test_shipped_model_is_not_the_point(case):
    got, output = compare(problems.softmax(), case, 4)
    assert np.abs(np.subtract(got, output)).max() > 1e-3


def test_every_method_is_listed():
    named = {name for name, _ in composite_cases.NAMED.values()}
    assert {composite_cases.NAMED[case][0] for case in EACH} == named
    assert named <= set(tf.methods.names())
