"""The package against the oracles of `oracle.family`, at every round, float64."""

from itertools import cycle

import pytest
import torch

import tunefree as tf
import tunefree.data.batches
from oracle import cases, problems
from oracle.family_cases import (
    EXACT,
    FULL,
    NAMED,
    NEEDS_LONG_STEPS,
    NO_CLIP,
    OWN_STEP,
    UNEQUAL_OK,
    oracle,
    start,
)
from oracle.test_methods import EVERYTHING, SCHEDULES, SEED, agree, cohorts, drawn, fit, follows


def method(case, **extra):
    """The package's method; a mirror map is named alike on both sides."""
    name, settings = NAMED[case]
    if "mirror" in settings:
        mirror = settings["mirror"]
        part = getattr(tf.server, type(mirror).__name__)(**vars(mirror))
        settings = settings | {"mirror": part}
    return tf.methods.get(name, **settings, **extra)


def expected(case, problem, groups, steps, **extra):
    name, settings = NAMED[case]
    return oracle(name)(problem, start(problem, case), groups, steps, **settings, **extra)


PLAIN = [case for case in NAMED if not case.endswith(("-all", "-scale"))]
# Every method has a case on either problem, and is seen with other batches and settings below.
TURNS = list(zip(NAMED, cycle(cases.PROBLEMS), cycle(cases.SETUPS), strict=False))


@pytest.mark.parametrize(("case", "problem", "setup"), TURNS)
def test_named_methods(case, problem, setup):
    problem = cases.PROBLEMS[problem]()
    size, weights = cases.SETUPS[setup]
    size = problem.clients if case in FULL else size
    run = expected(case, problem, cohorts(problem, size), cases.STEPS, weights=weights)
    # For an exact solver the steps are the most it may take.
    work = {"steps": 300} if case in EXACT else {}
    part = method(case, weights=weights)
    got, _, rows = fit(problem, start(problem, case), part, cohort=size, **work)
    follows(got, run)
    for key in ("server_step", "lr"):
        if key in run.trace[0]:
            agree([float(row[key]) for row in rows], [row[key] for row in run.trace])


@pytest.mark.parametrize("case", ["fedadagrad", "fedadam", "fedyogi"])
def test_clients_count_by_samples_unless_told_otherwise(case):
    problem = problems.softmax()
    run = expected(case, problem, cohorts(problem, 3), cases.STEPS, weights="samples")
    got, _, _ = fit(problem, start(problem, case), method(case), cohort=3)
    follows(got, run)


def before_the_first_round(problem, **cut):
    """Everyone's batches, drawn as round -1, and their number of steps."""
    sizes, starts = torch.tensor(problem.sizes), torch.tensor(problem.start)
    ids, cut = torch.arange(problem.clients), tunefree.data.batches.BatchPlan(**cut)
    draw = tunefree.data.batches.draw_batches(SEED, -1, ids, sizes, starts, cut)
    rows = [
        [draw.index[i, k][draw.mask[i, k].bool()].numpy() - problem.start[i] for k in range(steps)]
        for i, steps in enumerate(draw.steps.tolist())
    ]
    return rows, draw.steps.tolist()


@pytest.mark.parametrize("case", [c for c in (*PLAIN, "fedlin-all") if c in UNEQUAL_OK])
def test_minibatches_and_unequal_steps(case):
    """Two epochs of batches of 4: client i takes 2 ceil(n_i / 4) steps, the last ones short."""
    problem = problems.least_squares()
    size = problem.clients if case in FULL else 4
    groups, cut = cohorts(problem, size), {"batch": 4, "steps": None, "epochs": 2}
    batch, _ = drawn(problem, groups, **cut)
    first, steps = before_the_first_round(problem, **cut)

    def rows(t, i, k):
        return first[i][k] if t < 0 else batch(t, i, k)

    run = expected(case, problem, groups, steps, weights="samples", batch=rows)
    part = method(case, weights="samples")
    got, _, _ = fit(problem, start(problem, case), part, cohort=size, batch=4, epochs=2)
    follows(got, run)


@pytest.mark.parametrize("case", [c for c in PLAIN if c not in EXACT | NEEDS_LONG_STEPS])
def test_schedule_decay_and_clip(case):
    problem = problems.softmax()
    size = problem.clients if case in FULL else 3
    extra = dict(EVERYTHING)
    if case in OWN_STEP:
        del extra["schedule"]
    if case in NO_CLIP:
        del extra["clip"]
    run = expected(
        case,
        problem,
        cohorts(problem, size),
        cases.STEPS,
        schedule=SCHEDULES[extra["schedule"]] if "schedule" in extra else (),
        decay=extra["weight_decay"],
        clip=extra.get("clip"),
        weights="uniform",
    )
    part = method(case, weights="uniform", **extra)
    got, _, _ = fit(problem, start(problem, case), part, cohort=size)
    follows(got, run)


@pytest.mark.parametrize("case", sorted(OWN_STEP))
def test_no_schedule_over_an_own_step(case):
    with pytest.raises(ValueError, match="schedule"):
        method(case, schedule="cosine")


LONG = ("fedyogi", "adaalter", "scaffoldm", "feddua-pnorm-all", "padamfed", "padamfed-vr")


@pytest.mark.parametrize("case", LONG)
def test_memory_over_many_rounds(case):
    """Long enough for PAdaMFed's own momentum weight to be below 1."""
    problem = problems.least_squares()
    groups = cohorts(problem, 3, rounds=15)
    run = expected(case, problem, groups, 2, weights="uniform")
    part = method(case, weights="uniform")
    got, _, _ = fit(problem, start(problem, case), part, cohort=3, rounds=15, steps=2)
    follows(got, run)


def test_every_method_meets_both_problems():
    met = {(NAMED[case][0], problem) for case, problem, _ in TURNS}
    assert met == {(name, problem) for name, _ in NAMED.values() for problem in cases.PROBLEMS}


def test_entropy_refuses_other_parameters():
    problem = problems.least_squares()
    with pytest.raises(ValueError, match="> 0"):
        fit(problem, problems.start(problem), method("feddua-entropy"), cohort=3)
