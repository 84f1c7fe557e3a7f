"""`feddog` and `feddowg` with one client and one local step against DoG and DoWG, float64.

`dog` is Ivgi et al. 2023, equation (DoG): the distance is the largest so far, at least r_eps, and
the sum has the gradient of the step that is taken. `dowg` is Khaled et al. 2023, Algorithm 1.
"""

import numpy as np
import pytest

import tunefree as tf
from oracle import cases
from oracle.problems import LeastSquares, start
from oracle.test_methods import agree, drawn, fit
from tunefree.core.errors import ArgumentError


def dog(gradient, x0, steps, r_eps):
    x, farthest, total, points, etas = x0, r_eps, 0.0, [], []
    for t in range(steps):
        g = gradient(t, x)
        farthest = max(farthest, np.linalg.norm(x - x0))
        total += np.dot(g, g)
        etas.append(farthest / np.sqrt(total))
        x = x - etas[-1] * g
        points.append(x)
    return points, etas


def dowg(gradient, x0, steps, r_eps):
    x, distance, weighted, points, etas = x0, r_eps, 0.0, [], []
    for t in range(steps):
        distance = max(distance, np.linalg.norm(x - x0))
        g = gradient(t, x)
        weighted += distance**2 * np.dot(g, g)
        etas.append(distance**2 / np.sqrt(weighted))
        x = x - etas[-1] * g
        points.append(x)
    return points, etas


PAPER = {"feddog": dog, "feddowg": dowg}


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


def one_client(problem, i):
    """The same problem with client i alone."""
    if hasattr(problem, "classes"):
        return type(problem)([problem.parts[i]], problem.classes)
    return type(problem)([problem.parts[i]])


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("name", PAPER)
def test_one_client_with_one_step_is_the_papers_algorithm(problem, name, batch):
    """The distance grows by more than an order of magnitude on the way."""
    alone, x0, rounds = one_client(problem, 2), start(problem), 60
    rows, _ = drawn(alone, [[0]] * rounds, batch=batch, steps=1, epochs=None)

    def gradient(t, x):
        return alone.grad(0, x, rows(t, 0, 0))

    points, etas = PAPER[name](gradient, x0, rounds, 1e-3 * (1 + np.linalg.norm(x0)))
    assert np.linalg.norm(points[-1] - x0) > 20e-3 * (1 + np.linalg.norm(x0))
    method = tf.methods.get(name, r_rel=1e-3, live=True)
    got, _, seen = fit(alone, x0, method, cohort=1, steps=1, rounds=rounds, batch=batch)
    agree(got, points)
    agree([float(row["lr"]) for row in seen], etas)


@pytest.mark.parametrize("name", PAPER)
def test_without_a_gradient_there_is_no_step(name):
    """0 / 0 at a solution."""
    alone = LeastSquares([(np.eye(3), np.arange(3.0))])
    x0 = np.arange(3.0)
    method = tf.methods.get(name, live=True)
    got, _, seen = fit(alone, x0, method, cohort=1, steps=2, rounds=3)
    assert np.array_equal(got, [x0] * 3)
    assert [row["lr"] for row in seen] == [0.0] * 3


def test_asked_without_live_is_refused():
    with pytest.raises(ArgumentError, match=r"DoG\(asked=False\) needs live=True"):
        tf.clients.DoG(asked=False)
