"""Federated Prodigy against NumPy loops, at every round, float64.

`prodigy` is the paper's Algorithm 1 on one machine; `fedprodigy` is its loop with clients that know
x_0 and add up the inner products of the paper's estimate themselves.
"""

import numpy as np
import pytest

import tunefree as tf
from oracle import cases
from oracle.methods import Run, minibatch_gradient
from oracle.problems import start
from oracle.test_methods import agree, cohorts, drawn, fit, follows


def prodigy(gradient, x0, steps, d0):
    """Algorithm 1 with G = 0 and lambda_k = 1; returns the iterates, sizes and estimates."""
    x, d, top, bottom = x0, d0, 0.0, 0.0
    points, etas, estimates = [], [], []
    for k in range(steps):
        g = gradient(k, x)
        bottom += d**2 * np.dot(g, g)
        eta = d**2 / np.sqrt(bottom)
        top += eta * np.dot(g, x0 - x)
        x = x - eta * g
        d = max(d, top / np.linalg.norm(x - x0))
        points.append(x)
        etas.append(eta)
        estimates.append(d)
    return points, etas, estimates


def fedprodigy(
    problem,
    x0,
    groups,
    steps,
    *,
    d_rel=1e-2,
    server_lr=1.0,
    weights="uniform",
    batch=None,
    decay=0.0,
    clip=None,
):
    x0 = np.array(x0)
    K = [steps] * problem.clients if isinstance(steps, int) else steps
    x, walked, d = x0, x0, d_rel * (1 + np.linalg.norm(x0))  # walked: by plain averaging
    top, bottom, iterates, trace = 0.0, 0.0, [], []
    for t, ids in enumerate(groups):
        share = np.array([problem.sizes[i] if weights == "samples" else 1.0 for i in ids])
        move, gained, seen, lr = np.zeros_like(x), 0.0, 0.0, 0.0
        for i, p in zip(ids, share / share.sum(), strict=True):
            y, own, products, etas = x, 0.0, 0.0, []
            for k in range(K[i]):
                rows = None if batch is None else batch(t, i, k)
                g = minibatch_gradient(problem, i, y, rows, decay, clip)
                own += d**2 * np.dot(g, g)
                eta = d**2 / np.sqrt(bottom + own)
                products += eta * np.dot(g, x0 - (walked + y - x))
                y = y - eta * g
                etas.append(eta)
            move, seen = move + p * (y - x), seen + p * own
            gained, lr = gained + p * products, lr + p * np.mean(etas)
        top, bottom, walked, x = top + gained, bottom + seen, walked + move, x + server_lr * move
        d = max(d, top / np.linalg.norm(walked - x0))
        iterates.append(x)
        trace.append({"lr": lr, "d": d})
    return Run(iterates, trace, {})


CASES = {"default": {}, "small": {"d_rel": 1e-4}, "both": {"d_rel": 0.1, "server_lr": 1.3}}


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


@pytest.mark.parametrize("setup", cases.SETUPS)
@pytest.mark.parametrize("case", CASES)
def test_fedprodigy(problem, case, setup):
    (size, weights), x0, settings = cases.SETUPS[setup], start(problem), CASES[case]
    groups = cohorts(problem, size)
    run = fedprodigy(problem, x0, groups, cases.STEPS, weights=weights, **settings)
    assert run.trace[-1]["d"] > run.trace[0]["d"]
    method = tf.methods.get("fedprodigy", weights=weights, **settings)
    got, _, rows = fit(problem, x0, method, cohort=size)
    follows(got, run)
    agree([float(row["lr"]) for row in rows], [row["lr"] for row in run.trace])


def test_minibatches(problem):
    x0, groups = start(problem), cohorts(problem, 4)
    batch, _ = drawn(problem, groups, batch=2, steps=5, epochs=None)
    run = fedprodigy(problem, x0, groups, 5, batch=batch, clip=0.5)
    method = tf.methods.get("fedprodigy", clip=0.5)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=2, steps=5)
    follows(got, run)


def test_unequal_steps_and_weight_decay(problem):
    x0, groups = start(problem), cohorts(problem, 4)
    batch, steps = drawn(problem, groups, batch=4, steps=None, epochs=2)
    run = fedprodigy(problem, x0, groups, steps, batch=batch, decay=0.1)
    method = tf.methods.get("fedprodigy", weight_decay=0.1)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=4, epochs=2)
    follows(got, run)


def test_one_client_with_one_step_is_the_papers_algorithm(problem):
    """The estimate grows by more than an order of magnitude on the way."""
    x0, rounds, i = start(problem), 60, 2
    mine = problem.owner == i
    y = problem.y if problem.y.dtype.kind == "i" else problem.y[:, None]
    fed = tf.Federation(problem.x[mine], y[mine], np.zeros(mine.sum(), dtype=int))
    d0 = 1e-3 * (1 + np.linalg.norm(x0))
    points, etas, estimates = prodigy(lambda k, x: problem.grad(i, x), x0, rounds, d0)
    assert estimates[-1] > 20 * d0
    method = tf.methods.get("fedprodigy", d_rel=1e-3)
    got, _, rows = fit(problem, x0, method, cohort=1, steps=1, rounds=rounds, fed=fed)
    agree(got, points)
    agree([float(row["lr"]) for row in rows], etas)
