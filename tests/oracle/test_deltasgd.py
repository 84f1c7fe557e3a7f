"""Delta-SGD against a NumPy loop of the paper's Algorithm 1, at every round, float64."""

import numpy as np
import pytest

import tunefree as tf
from oracle import cases
from oracle.methods import Run, minibatch_gradient
from oracle.problems import start
from oracle.test_methods import agree, cohorts, drawn, fit, follows


def length(v):
    return float(np.sqrt(np.sum(v * v)))


def client(gradient, x, K, gamma, delta, eta0, theta0):
    """K local steps from x; `gradient(k, point)` is that of the k-th batch. Returns y, sizes."""
    points, etas, thetas = [x], [eta0], [theta0]
    for k in range(K):
        if k > 0:
            change = length(gradient(k, points[k]) - gradient(k, points[k - 1]))
            smooth = gamma * length(points[k] - points[k - 1]) / (2 * change)
            etas.append(min(smooth, np.sqrt(1 + delta * thetas[k - 1]) * etas[k - 1]))
            thetas.append(etas[k] / etas[k - 1])
        points.append(points[k] - etas[k] * gradient(k, points[k]))
    return points[-1], etas


def deltasgd(
    problem,
    x0,
    groups,
    steps,
    *,
    gamma=2.0,
    delta=0.1,
    lr=0.2,
    theta=1.0,
    server_lr=1.0,
    weights="uniform",
    batch=None,
    decay=0.0,
):
    x, K = np.array(x0), [steps] * problem.clients if isinstance(steps, int) else steps
    iterates, trace = [], []
    for t, ids in enumerate(groups):
        share = np.array([problem.sizes[i] if weights == "samples" else 1.0 for i in ids])
        share = share / share.sum()
        move, mean_lr = np.zeros_like(x), 0.0
        for i, p in zip(ids, share, strict=True):

            def gradient(k, point, t=t, i=i):
                rows = None if batch is None else batch(t, i, k)
                return minibatch_gradient(problem, i, point, rows, decay, None)

            y, etas = client(gradient, x, K[i], gamma, delta, lr, theta)
            move, mean_lr = move + p * (y - x), mean_lr + p * np.mean(etas)
        x = x + server_lr * move
        iterates.append(x)
        trace.append({"lr": mean_lr})
    return Run(iterates, trace, {})


CASES = {
    "default": {},
    "all": {"gamma": 1.0, "delta": 0.5, "lr": 0.02, "theta": 2.0, "server_lr": 0.8},
    "fixed growth": {"delta": 0.0, "lr": 0.5},
}


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


@pytest.mark.parametrize("setup", cases.SETUPS)
@pytest.mark.parametrize("case", CASES)
def test_deltasgd(problem, case, setup):
    (size, weights), x0, settings = cases.SETUPS[setup], start(problem), CASES[case]
    run = deltasgd(problem, x0, cohorts(problem, size), cases.STEPS, weights=weights, **settings)
    method = tf.methods.get("deltasgd", weights=weights, **settings)
    got, _, rows = fit(problem, x0, method, cohort=size)
    follows(got, run)
    agree([float(row["lr"]) for row in rows], [row["lr"] for row in run.trace])
    taken = len(cohorts(problem, size)[0])
    assert all(row["gradients"] == taken * (2 * cases.STEPS - 1) for row in rows)


def test_minibatches(problem):
    """Both gradients are of the step's own batch."""
    x0, groups = start(problem), cohorts(problem, 4)
    batch, _ = drawn(problem, groups, batch=2, steps=5, epochs=None)
    run = deltasgd(problem, x0, groups, 5, batch=batch)
    got, _, _ = fit(problem, x0, tf.methods.get("deltasgd"), cohort=4, batch=2, steps=5)
    follows(got, run)


def test_unequal_steps_and_weight_decay(problem):
    x0, groups = start(problem), cohorts(problem, 4)
    batch, steps = drawn(problem, groups, batch=4, steps=None, epochs=2)
    run = deltasgd(problem, x0, groups, steps, batch=batch, decay=0.1)
    method = tf.methods.get("deltasgd", weight_decay=0.1)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=4, epochs=2)
    follows(got, run)


def test_one_step_is_fedavg(problem):
    """With one local step there is nothing to measure."""
    x0 = start(problem)
    got, _, _ = fit(problem, x0, tf.methods.get("deltasgd"), cohort=3, steps=1)
    fedavg = tf.methods.get("fedavg", lr=0.2, weights="uniform")
    plain, _, _ = fit(problem, x0, fedavg, cohort=3, steps=1)
    agree(got, plain)
