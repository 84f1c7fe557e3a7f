"""FedHyper against a NumPy loop in the paper's signs, at every round, float64.

The paper's update is Delta = x - mean_i y_i, and its server subtracts: x <- x - alpha Delta.
"""

import numpy as np
import pytest

import tunefree as tf
from oracle import cases
from oracle.methods import Run, minibatch_gradient
from oracle.problems import start
from oracle.test_methods import agree, cohorts, drawn, fit, follows


def fedhyper(
    problem,
    x0,
    groups,
    steps,
    *,
    lr=0.01,
    schedulers="G+CL",
    bound=10.0,
    server_bound=3.0,
    weights="uniform",
    batch=None,
    decay=0.0,
):
    used = schedulers.split("+")
    K = [steps] * problem.clients if isinstance(steps, int) else steps

    def clipped(beta):
        return min(max(beta, lr / bound), bound * lr)

    x, updates, alpha, beta, iterates, trace = np.array(x0), [], 1.0, lr, [], []
    for t, ids in enumerate(groups):
        share = np.array([problem.sizes[i] if weights == "samples" else 1.0 for i in ids])
        share = share / share.sum()
        if "SL" in used and t > 1:
            beta = clipped(beta + np.dot(updates[-1], updates[-2]))
        update, mean_lr = np.zeros_like(x), 0.0
        for i, p in zip(ids, share, strict=True):
            y, rates, gradients = x, [], []
            for k in range(K[i]):
                rows = None if batch is None else batch(t, i, k)
                g = minibatch_gradient(problem, i, y, rows, decay, None)
                rate = beta if k == 0 else rates[-1]
                if "CL" in used and k > 0:
                    before = updates[-1] if updates else np.zeros_like(x)
                    rate = clipped(rate + np.dot(g, gradients[-1]) + np.dot(g, before) / K[i])
                y = y - rate * g
                rates.append(rate)
                gradients.append(g)
            update, mean_lr = update + p * (x - y), mean_lr + p * np.mean(rates)
        updates.append(update)
        if "G" in used and t > 0:
            alpha = alpha + np.dot(updates[-1], updates[-2])
            alpha = min(max(alpha, 1 / server_bound), server_bound)
        x = x - alpha * update
        iterates.append(x)
        trace.append({"lr": mean_lr, "server_step": alpha})
    return Run(iterates, trace, {})


CASES = {
    "default": {},
    "G": {"schedulers": "G", "lr": 0.1},
    "G-tight": {"schedulers": "G", "lr": 0.1, "server_bound": 1.01},
    "SL": {"schedulers": "SL", "lr": 0.03},
    "CL": {"schedulers": "CL"},
    "CL-loose": {"schedulers": "CL", "lr": 0.001, "bound": 1000.0},
    "G+SL": {"schedulers": "G+SL", "lr": 0.05, "bound": 1.5},
    "G+CL": {"schedulers": "G+CL", "lr": 0.05, "bound": 2.0, "server_bound": 1.2},
}


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


@pytest.mark.parametrize("setup", cases.SETUPS)
@pytest.mark.parametrize("case", CASES)
def test_fedhyper(problem, case, setup):
    (size, weights), x0, settings = cases.SETUPS[setup], start(problem), CASES[case]
    groups = cohorts(problem, size)
    run = fedhyper(problem, x0, groups, cases.STEPS, weights=weights, **settings)
    method = tf.methods.get("fedhyper", weights=weights, **settings)
    got, _, rows = fit(problem, x0, method, cohort=size)
    follows(got, run)
    for key in ("lr", "server_step"):
        agree([float(row[key]) for row in rows], [row[key] for row in run.trace])


@pytest.mark.parametrize("schedulers", ["G+SL", "G+CL"])
def test_minibatches(problem, schedulers):
    x0, groups = start(problem), cohorts(problem, 4)
    batch, _ = drawn(problem, groups, batch=2, steps=5, epochs=None)
    run = fedhyper(problem, x0, groups, 5, schedulers=schedulers, batch=batch)
    method = tf.methods.get("fedhyper", schedulers=schedulers)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=2, steps=5)
    follows(got, run)


def test_unequal_steps_and_weight_decay(problem):
    """K of a client is its own number of steps."""
    x0, groups = start(problem), cohorts(problem, 4)
    batch, steps = drawn(problem, groups, batch=4, steps=None, epochs=2)
    run = fedhyper(problem, x0, groups, steps, batch=batch, decay=0.1)
    method = tf.methods.get("fedhyper", weight_decay=0.1)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=4, epochs=2)
    follows(got, run)


def test_without_room_it_is_fedavg(problem):
    x0 = start(problem)
    still = tf.methods.get("fedhyper", lr=0.05, bound=1.0, server_bound=1.0)
    got, _, _ = fit(problem, x0, still, cohort=3)
    fedavg = tf.methods.get("fedavg", lr=0.05, weights="uniform")
    plain, _, _ = fit(problem, x0, fedavg, cohort=3)
    agree(got, plain)


def test_rates_leave_their_start_and_meet_their_bounds(problem):
    """So that the comparisons above are of rules at work."""
    rates = fedhyper(problem, start(problem), cohorts(problem, 3), cases.STEPS).trace
    assert rates[0]["lr"] > 0.011
    tight = CASES["G-tight"]
    run = fedhyper(problem, start(problem), cohorts(problem, 3), cases.STEPS, **tight)
    assert max(row["server_step"] for row in run.trace) == pytest.approx(1.01)
