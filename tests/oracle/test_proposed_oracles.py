"""`oracle.proposed` against what the papers say of the methods; the package is not needed here."""

from itertools import pairwise

import numpy as np
import pytest

from oracle import cases, problems
from oracle import methods as m
from oracle import proposed as o
from oracle import proposed_cases as named
from oracle.problems import close

LOD = (o.fedproxlod, o.fedproxwlod)


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


def everyone(problem, rounds):
    return [range(problem.clients)] * rounds


def some(problem, rounds, size=3, seed=0):
    random = np.random.default_rng(seed)
    return [random.choice(problem.clients, size, replace=False) for _ in range(rounds)]


def column(run, key):
    return [row[key] for row in run.trace]


def identical(clients=4):
    """Every client has the same rows."""
    x, y = problems.least_squares().parts[3]
    return problems.LeastSquares([(x, y)] * clients)


# FedProxLoD and FedProxWLoD.


@pytest.mark.parametrize("method", LOD)
@pytest.mark.parametrize(
    "settings",
    [{}, {"merge": False}, {"reading": "printed"}, {"solver": "exact", "r_rel": 0.1}],
    ids=["steps", "alone", "printed", "exact"],
)
@pytest.mark.parametrize("size", [3, 7])
def test_lod_scalars_grow(problem, method, settings, size):
    run = method(problem, problems.start(problem), some(problem, 6, size), 4, **settings)
    assert min(column(run, "D")) >= 0
    assert max(column(run, "D")) > 0
    for key in ("r", "u") + (("v",) if "v" in run.trace[0] else ()):
        assert column(run, key) == sorted(column(run, key)), key
        assert run.trace[-1][key] > run.trace[0][key]


@pytest.mark.parametrize("method", LOD)
@pytest.mark.parametrize("settings", [{}, {"reading": "printed"}, {"solver": "exact"}])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_lod_best_never_gets_worse(problem, method, settings, weights):
    x0, p = problems.start(problem), o.shares(problem, weights)
    settings = settings | {"r_rel": 0.3, "weights": weights}
    run = method(problem, x0, everyone(problem, 10), 4, **settings)

    def f(x):
        return sum(p[i] * problem.value(i, x) for i in range(problem.clients))

    losses = [f(x0), *(f(x) for x in run.memory["output"])]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    close(losses[1:], column(run, "best"))


@pytest.mark.parametrize("method", LOD)
@pytest.mark.parametrize("merge_weights", ["theorem", "printed"])
def test_lod_output_is_a_convex_combination_of_the_iterates(method, merge_weights):
    problem = problems.least_squares()
    x0, cohorts = problems.start(problem), some(problem, 8)
    run = method(problem, x0, cohorts, 4, merge_weights=merge_weights, r_rel=0.1)
    w1, points = np.array(column(run, "w1")), np.array(column(run, "x+"))
    assert w1.min() > 0
    for t, x_out in enumerate(column(run, "x_out")):
        close(x_out, w1[: t + 1] @ points[: t + 1] / w1[: t + 1].sum())
    close(run.x, points)  # training goes on from x+


def test_lod_merge_weights_by_hand():
    """LoD: min(mu/mu+, 1) r (theorem), min(mu+/mu, 1) r+ (printed)."""
    problem = problems.least_squares()
    x0 = problems.start(problem)
    first = 0.1 * (1 + np.linalg.norm(x0))
    for merge_weights in ("theorem", "printed"):
        run = o.fedproxlod(problem, x0, some(problem, 8), 4, merge_weights=merge_weights, r_rel=0.1)
        r, mu = [first, *column(run, "r")], column(run, "mu")
        for t, (now, then) in enumerate(pairwise(mu)):
            if merge_weights == "theorem":
                expected = min(now / then, 1) * r[t]
            else:
                expected = min(then / now, 1) * r[t + 1]
            close(run.trace[t]["w1"], expected)
        assert min(np.diff(mu)) < 0 < max(np.diff(mu))  # both sides of the minimum


@pytest.mark.parametrize("method", LOD)
@pytest.mark.parametrize("merge", [True, False])
def test_lod_exact_prox(problem, method, merge):
    x0, cohorts = problems.start(problem), some(problem, 6)
    run = method(problem, x0, cohorts, 4, solver="exact", merge=merge, r_rel=0.1)
    anchors = [x0, *(run.memory["output"] if merge else column(run, "x+"))]
    for row, a in zip(run.trace, anchors, strict=False):
        close(row["anchor"], a)
        mu, points = row["mu"], row["points"]
        close(row["x+"], np.mean(list(points.values()), axis=0))
        envelope = []
        for i, y in points.items():
            assert np.linalg.norm(problem.grad(i, y) + mu * (y - a)) < 1e-11
            envelope.append(problem.value(i, y) + mu / 2 * (y - a) @ (y - a))
            assert envelope[-1] <= problem.value(i, a)
        f = np.mean([problem.value(i, row["x+"]) for i in points])
        close(row["D"], mu * max(f - np.mean(envelope), 0))


def test_exact_prox_has_the_closed_form_on_quadratics():
    problem = problems.least_squares()
    a = problems.start(problem)
    for i, (x, y) in enumerate(problem.parts):
        A, b = 2 * x.T @ x / len(y), 2 * x.T @ y / len(y)
        expected = np.linalg.solve(A + 0.7 * np.eye(4), b + 0.7 * a)
        close(o.exact_prox(problem, i, a, 0.7), expected)


def test_hessian_is_the_slope_of_the_gradient(problem):
    w = problems.start(problem)
    for i in range(problem.clients):
        rows = []
        for j in range(problem.d):
            h = np.zeros(problem.d)
            h[j] = 1e-6
            rows.append((problem.grad(i, w + h) - problem.grad(i, w - h)) / 2e-6)
        np.testing.assert_allclose(o.hessian(problem, i, w), rows, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", LOD)
@pytest.mark.parametrize("merge", [True, False])
def test_identical_clients_keep_mu_times_rho(method, merge):
    """All x_i coincide, so that f(x+) is the mean of f_i(x_i): D = 0, and u never grows."""
    problem = identical()
    x0 = problems.start(problem)
    run = method(problem, x0, everyone(problem, 8), 1, solver="exact", merge=merge, mu_init=3.0)
    close(column(run, "D"), 0.0)
    r = [1e-2 * (1 + np.linalg.norm(x0)), *column(run, "r")[:-1]]
    rho = np.array(r) ** (2 if method is o.fedproxwlod else 1)
    products = rho * column(run, "mu")
    close(products / products[0], 1.0)
    assert r[-1] > 10 * r[0]


def test_wlod_is_lod_while_r_stands_still():
    problem = problems.least_squares()
    x0, cohorts = problems.start(problem), some(problem, 8)
    runs = [f(problem, x0, cohorts, 1, solver="exact", r_rel=50.0, mu_init=0.1) for f in LOD]
    lod, wlod = runs
    r = lod.trace[0]["r"]
    assert column(lod, "r") == column(wlod, "r") == [r] * 8
    close(wlod.x, lod.x)
    close(column(wlod, "mu"), column(lod, "mu"))
    close(np.array(column(wlod, "u")) / r**2, column(lod, "u"))
    assert lod.trace[-1]["mu"] > 0.1001


@pytest.mark.parametrize(("method", "dog"), [(o.fedproxlod, m.feddog), (o.fedproxwlod, m.feddowg)])
def test_lod_without_pull_is_dog(problem, method, dog):
    """mu = 0 at the start stays 0; feddog is DoG one step behind by its own test."""
    x0, cohorts = problems.start(problem), some(problem, 6)
    expected = dog(problem, x0, cohorts, 4)
    for merge in (True, False):
        run = method(problem, x0, cohorts, 4, mu_init=0.0, merge=merge)
        close(run.x, expected.x)
        for key in ("lr", "r", "v"):
            close(column(run, key), column(expected, key))


@pytest.mark.parametrize("weighted", [False, True])
def test_lod_with_one_client_and_one_step_is_dog_one_step_behind(weighted):
    problem = problems.least_squares()
    x0, i = problems.start(problem), 3
    run = LOD[weighted](problem, x0, [[i]] * 12, 1, mu_init=0.0, merge=False)
    r = 1e-2 * (1 + np.linalg.norm(x0))
    g, x = problem.grad(i, x0), x0
    v = (g @ g + 1e-8) * (r**2 if weighted else 1.0)
    for got in run.x:
        g = problem.grad(i, x)
        x = x - (r**2 if weighted else r) / np.sqrt(v) * g
        close(got, x)
        r = max(r, np.linalg.norm(x - x0))
        v = v + (g @ g) * (r**2 if weighted else 1.0)


def test_explicit_and_implicit_steps_differ_by_the_square_of_the_step():
    """One step from the anchor: lr g against lr g / (1 + lr mu)."""
    problem, mu = problems.least_squares(), 2.0
    x0 = problems.start(problem)

    def gap(r_rel):
        one, other = (
            o.fedproxlod(problem, x0, [[3]], 2, mu_init=mu, r_rel=r_rel, prox_step=step)
            for step in ("implicit", "explicit")
        )
        return np.linalg.norm(one.x[0] - other.x[0]), one.trace[0]["lr"]

    (wide, lr), (narrow, half) = gap(1e-3), gap(5e-4)
    close(lr / half, 2)
    assert 3.9 < wide / narrow < 4.1


@pytest.mark.parametrize("prox_step", ["implicit", "explicit"])
def test_many_short_steps_reach_the_prox(prox_step):
    problem = problems.least_squares()
    x0, mu = problems.start(problem), 2.0
    run = o.fedproxlod(
        problem, x0, [[0]], 800, mu_init=mu, r_rel=0.3, prox_step=prox_step, merge=False
    )
    assert run.trace[0]["lr"] < 0.02
    close(run.x[0], o.exact_prox(problem, 0, x0, mu), 1e-8)
    assert np.linalg.norm(run.x[0] - x0) > 0.1


def test_readings_differ_where_they_should():
    """Printed: v counts one full gradient at the end, and with merge the clients go back."""
    problem = problems.least_squares()
    x0, ids = problems.start(problem), [1, 3, 4]
    first = np.mean([problem.grad(i, x0) @ problem.grad(i, x0) for i in ids]) + 1e-8

    def run(reading, rounds=1):
        return o.fedproxlod(problem, x0, [ids] * rounds, 4, reading=reading)

    r = 1e-2 * (1 + np.linalg.norm(x0))
    close(run("summed").trace[0]["lr"], r / np.sqrt(4 * first))
    row = run("printed").trace[0]
    close(row["lr"], r / np.sqrt(first))
    ends = [problem.grad(i, y) for i, y in row["points"].items()]
    close(row["v"] - first, np.mean([g @ g for g in ends]))
    longer = run("printed", 5)
    close(longer.x, longer.memory["output"])
    for row, start in zip(longer.trace[1:], longer.memory["output"], strict=False):
        close(row["anchor"], start)


# ParFreFL and ComParFreFL.

FREE = {"beta": 0.4, "lr": 0.1, "server_lr": 0.3}  # needs no horizon


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("compressor", [None, ("topk", 0.3)])
def test_c_is_the_mean_of_c_i(problem, weights, compressor):
    steps = [1 + i % 4 for i in range(problem.clients)]
    for rounds in (1, 4, 8):
        run = o.comparfrefl(
            problem,
            problems.start(problem),
            some(problem, rounds),
            steps,
            compressor=compressor,
            weights=weights,
            **FREE,
        )
        close(run.memory["c"], o.shares(problem, weights) @ run.memory["own"])
    if compressor is None:
        assert np.array_equal(run.memory["own"], run.memory["m"])


@pytest.mark.parametrize("method", [o.parfrefl, o.comparfrefl])
def test_every_move_has_the_same_length(problem, method):
    x0 = problems.start(problem)
    run = method(problem, x0, some(problem, 9), 2)
    S, K, T = 3, 2, 9
    moves = np.linalg.norm(np.diff([x0, *run.x], axis=0), axis=1)
    close(moves, (S * K) ** 0.25 / T**0.75)
    assert sum(map(len, column(run, "moves"))) == T * S * K
    close(np.concatenate(column(run, "moves")), 1 / (K * (S * K * T) ** 0.25))
    close(column(run, "beta"), np.sqrt(6 / 9))
    short = method(problem, x0, some(problem, 2), 4, scale=0.1)
    assert short.trace[0]["beta"] == 1.0
    close(short.trace[0]["server_step"], 0.1 * 12**0.25 / 2**0.75)
    close(short.trace[0]["lr"], 0.1 / (4 * 24**0.25))


def test_whole_vectors_kept_make_it_parfrefl(problem):
    x0, cohorts = problems.start(problem), some(problem, 6)
    plain = o.parfrefl(problem, x0, cohorts, 3)
    close(o.comparfrefl(problem, x0, cohorts, 3, compressor=("topk", 1.0)).x, plain.x)
    few = o.comparfrefl(problem, x0, cohorts, 3, compressor=("topk", 0.3))
    assert np.abs(few.x[-1] - plain.x[-1]).max() > 1e-3


@pytest.mark.parametrize("method", [o.parfrefl, o.comparfrefl])
@pytest.mark.parametrize("a", [1e-3, 40.0])
def test_the_size_of_the_losses_does_not_matter(problem, method, a):
    class Scaled(type(problem)):
        def value(self, i, w, rows=None):
            return a * super().value(i, w, rows)

        def grad(self, i, w, rows=None):
            return a * super().grad(i, w, rows)

    x0, cohorts = problems.start(problem), some(problem, 6)
    plain = method(problem, x0, cohorts, 3, beta=0.6)
    problem.__class__ = Scaled
    scaled = method(problem, x0, cohorts, 3, beta=0.6)
    close(scaled.x, plain.x)
    for name in ("c", "own", "m", "g"):
        close(scaled.memory[name] / a, plain.memory[name], 1e-10)


@pytest.mark.parametrize("compressor", [None, ("topk", 0.3)])
def test_with_everyone_the_server_goes_along_the_mean_of_c_i(problem, compressor):
    x0 = problems.start(problem)
    run = o.comparfrefl(problem, x0, everyone(problem, 5), 3, compressor=compressor, **FREE)
    g = run.memory["own"].mean(0)
    close(run.memory["g"], g)
    close(run.x[-2] - run.x[-1], 0.3 * g / np.linalg.norm(g))


def test_parfrefl_of_one_step_is_normalised_descent(problem):
    x = x0 = problems.start(problem)
    run = o.parfrefl(problem, x0, everyone(problem, 5), 1, beta=1.0, server_lr=0.2)
    for got in run.x:
        g = np.mean([problem.grad(i, x) for i in range(problem.clients)], axis=0)
        x = x - 0.2 * g / np.linalg.norm(g)
        close(got, x)


def test_what_is_left_behind_is_the_uncompressed_part(problem):
    """d_i+ = (m_i+ - m_i) + (d_i - C(d_i)) for a client that works in both rounds."""
    x0, cohorts = problems.start(problem), [[0, 2, 4], [2, 4, 5]]
    settings = FREE | {"compressor": ("topk", 0.3)}
    before = o.comparfrefl(problem, x0, cohorts[:1], 3, **settings).memory
    after = o.comparfrefl(problem, x0, cohorts, 3, **settings).memory
    for i in (2, 4):
        d = (after["m"][i] - before["m"][i]) + (before["m"][i] - before["own"][i])
        sent, _ = o.topk(d, o.layers(problem), 0.3)
        close(after["own"][i] - before["own"][i], sent)
        assert np.linalg.norm(before["m"][i] - before["own"][i]) > 0
    for i in (1, 3, 6):
        close(after["own"][i], problem.grad(i, x0))  # the pass before the first round
    close(after["own"][0], before["own"][0])
    close(after["m"][0], before["m"][0])


def test_topk_by_hand():
    v = np.array([3.0, -5.0, 1.0, 4.0, 0.5, -0.2])
    kept, gap = o.topk(v, [4, 2], 0.5)
    close(kept, [0, -5, 0, 4, 0.5, 0])
    close(gap, 0.3)
    close(o.topk(v, [4, 2], 0.05)[0], [0, -5, 0, 0, 0.5, 0])  # one of each layer at least
    close(o.topk(v, [6], 0.5)[0], [3, -5, 0, 4, 0, 0])
    random = np.random.default_rng(0)
    for _ in range(20):
        v = random.normal(size=10)
        left = v - o.topk(v, [10], 0.3)[0]
        assert left @ left <= 0.7 * (v @ v)


# Proximal operators.

PENALTIES = [
    ("l1", 0.3),
    ("l2", 0.8),
    ("elastic", 0.3, 0.5),
    ("mcp", 0.4, 3.0),
    ("mcp", 0.7, 1.5),
    ("scad", 0.4, 3.7),
    ("scad", 0.6, 2.5),
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("alpha", [0.2, 1.2])
def test_prox_minimises(penalty, alpha):
    """Against a fine grid around the answer, and a coarse one everywhere."""
    v = np.concatenate([np.linspace(-4, 4, 41), np.random.default_rng(0).normal(size=20)])
    answer = o.prox(penalty, v, alpha)

    def value(y, vj):
        return alpha * o.penalty_value(penalty, np.array([y])) + (y - vj) ** 2 / 2

    for vj, yj in zip(v, answer, strict=True):
        others = np.concatenate([yj + np.linspace(-0.01, 0.01, 21), np.linspace(-4, 4, 81)])
        assert value(yj, vj) <= min(value(y, vj) for y in others) + 1e-12


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_prox_is_continuous_and_odd(penalty):
    v = np.linspace(0, 4, 40001)
    answer = o.prox(penalty, v, 0.7)
    assert np.abs(np.diff(answer)).max() < 1e-3
    assert np.diff(answer).min() >= 0
    close(o.prox(penalty, -v, 0.7), -answer)
    assert np.unique(answer).size > 1000


def test_folded_penalties_tend_to_l1():
    v = np.linspace(-3, 3, 61)
    expected = o.soft(v, 0.2 * 0.5)
    close(o.prox(("mcp", 0.5, 1e9), v, 0.2), expected, 1e-8)
    close(o.prox(("scad", 0.5, 1e9), v, 0.2), expected, 1e-8)


# FedCanon and FedCanon II.


@pytest.mark.parametrize("alpha", [None, 0.13])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fedcanon_without_penalty_is_scaffold(problem, alpha, weights):
    x0, cohorts, lr, K = problems.start(problem), everyone(problem, 30), 0.05, 4
    canon = o.fedcanon(problem, x0, cohorts, K, lr=lr, alpha=alpha, weights=weights)
    server_lr = 1.0 if alpha is None else alpha / (lr * K)
    other = m.scaffold(problem, x0, cohorts, K, lr=lr, server_lr=server_lr, weights=weights)
    close(canon.x, other.x)
    close(canon.memory["c"], other.memory["c"] - other.memory["own"])
    close(column(canon, "server_step"), server_lr)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("size", [3, 7])
def test_controls_of_fedcanon_sum_to_zero(problem, weights, size):
    steps = [1 + i % 4 for i in range(problem.clients)]
    x0, cohorts = problems.start(problem), some(problem, 8, size)
    settings = {"lr": 0.05, "penalty": ("scad", 0.3, 3.7), "weights": weights}
    run = o.fedcanon(problem, x0, cohorts, steps, **settings)
    close(o.shares(problem, weights) @ run.memory["c"], 0.0)
    assert np.abs(run.memory["c"]).max() > 0.1


@pytest.mark.parametrize("penalty", [None, ("l1", 0.3), ("mcp", 0.3, 3.0)])
def test_fedcanon_two_is_fedcanon(problem, penalty):
    x0, cohorts = problems.start(problem), some(problem, 6)
    one = o.fedcanon(problem, x0, cohorts, 4, lr=0.05, penalty=penalty)
    two = o.fedcanon2(problem, x0, cohorts, 4, lr=0.05, penalty=penalty)
    assert np.array_equal(one.x, two.x)
    assert all(np.array_equal(own, two.x[-1]) for own in two.memory["models"])
    assert one.memory["calls"] == 6
    assert two.memory["calls"] == 6 * problem.clients


@pytest.mark.parametrize("penalty", [("l1", 0.2), ("mcp", 0.2, 3.0), ("scad", 0.2, 3.7)])
def test_fedcanon_of_one_step_is_proximal_descent(problem, penalty):
    """The controls do not show; alpha is free, the client step too."""
    x = x0 = problems.start(problem)
    run = o.fedcanon(problem, x0, everyone(problem, 8), 1, lr=0.4, alpha=0.1, penalty=penalty)
    for got in run.x:
        g = np.mean([problem.grad(i, x) for i in range(problem.clients)], axis=0)
        x = o.prox(penalty, x - 0.1 * g, 0.1)
        close(got, x)


def test_a_schedule_does_not_move_the_fixed_point():
    """The proximal part is shortened with the gradient part: a stationary x stays where it is."""
    problem, penalty = problems.least_squares(), ("l1", 0.5)
    cohorts = everyone(problem, 400)
    x = o.fedcanon(problem, problems.start(problem), cohorts, 1, penalty=penalty).x[-1]
    run = o.fedcanon(
        problem, x, everyone(problem, 4), 1, penalty=penalty, schedule=[("exponential", 0.5)]
    )
    close(run.x[-1], x, 1e-9)
    close(column(run, "lr"), [0.1, 0.05, 0.025, 0.0125])


def test_fedcanon_with_unequal_steps():
    """What moves the server is the mean gradient, whoever takes more steps."""
    problem = problems.least_squares()
    x0, ids, K = problems.start(problem), [0, 1, 2], [1, 5, 3, 2, 2, 4, 4]
    run = o.fedcanon(problem, x0, [ids], K, lr=0.05)
    mean, total = 3.0, np.zeros(4)
    for i in ids:
        y = x0
        for _ in range(K[i]):
            y = y - 0.05 * problem.grad(i, y)
        total += (y - x0) * mean / K[i]  # as sent
    close(run.x[0], x0 + total / 3)


# All of them.


@pytest.mark.parametrize("case", named.NAMED)
def test_comparisons_are_well_posed(case):
    """Rounding is not blown up, so 1e-9 is a fair demand, and no run diverges or stands still."""
    problem, size, weights = named.setup(case)
    cohorts, x0 = some(problem, cases.ROUNDS, size), problems.start(problem)
    runs = [
        named.run(case, problem, start, cohorts, cases.STEPS, weights=weights)
        for start in (x0, x0 * (1 + 1e-14))
    ]
    np.testing.assert_allclose(runs[1].x, runs[0].x, rtol=1e-11, atol=1e-12)
    outputs = [run.memory["output"] for run in runs]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-11, atol=1e-12)
    assert np.abs(runs[0].x[-1]).max() < 20
    assert np.abs(runs[0].x[-1] - runs[0].x[2]).max() > 1e-3


def test_setups_are_mixed():
    """Every method meets both problems, and both a cohort and everyone, where it can."""
    for name in {name for name, _ in named.NAMED.values()} - {"fedcanon2"}:
        mine = [setup for case, setup in named.SETUPS.items() if named.NAMED[case][0] == name]
        assert {kind for kind, _ in mine} == {"least_squares", "softmax"}, name
        assert len({setup for _, setup in mine}) > 1, name


def test_cases_visit_both_sides_of_every_branch():
    problem = problems.least_squares()
    x0 = problems.start(problem)

    def run(case, size=3):
        return named.run(case, problem, x0, some(problem, cases.ROUNDS, size), cases.STEPS)

    for case in ("lod-far", "lod-exact", "wlod-exact"):
        assert set(column(run(case), "accept")) == {True, False}, case
    assert 0.0 in column(run("lod-far"), "D")
    for case in ("lod", "lod-weights", "wlod", "wlod-weights"):
        change = np.diff(column(run(case), "mu"))
        assert min(change) < 0 < max(change), case
    # every option shows
    base = run("lod-weights").memory["output"][-1]
    other = o.fedproxlod(problem, x0, some(problem, cases.ROUNDS), cases.STEPS, r_rel=0.1)
    assert np.abs(base - other.memory["output"][-1]).max() > 1e-3
    assert np.abs(run("lod").memory["output"][-1] - run("lod").x[-1]).max() > 1e-2
    for case in ("fedcanon-l1", "fedcanon-mcp", "fedcanon-scad"):
        assert 0.0 in np.concatenate(run(case).x), case
    sizes = np.abs(np.concatenate(run("fedcanon-mcp").x))
    assert sizes.min() < 0.9 < sizes.max()


@pytest.mark.parametrize("case", named.SMALL_BATCHES)
def test_minibatches_that_hold_every_row_are_full_batches(problem, case):
    x0, cohorts = problems.start(problem), some(problem, 3)
    every = [np.arange(n) for n in problem.sizes]
    full = named.run(case, problem, x0, cohorts, 3)
    batched = named.run(case, problem, x0, cohorts, 3, batch=lambda t, i, k: every[i])
    close(batched.x, full.x)


def test_order_does_not_matter(problem):
    """Neither of the cohort nor of the clients."""
    x0, ids = problems.start(problem), np.arange(problem.clients)
    cohorts = some(problem, 4, size=5)
    order = np.random.default_rng(1).permutation(ids)
    parts = [problem.parts[i] for i in order]
    if isinstance(problem, problems.Softmax):
        moved = problems.Softmax(parts, problem.classes)
    else:
        moved = problems.LeastSquares(parts)
    place = {int(i): j for j, i in enumerate(order)}
    there = [[place[int(i)] for i in reversed(group)] for group in cohorts]
    for case in named.SMALL_BATCHES:
        a = named.run(case, problem, x0, cohorts, 3)
        b = named.run(case, moved, x0, there, 3)
        close(a.x, b.x)


@pytest.mark.parametrize("case", ["lod", "wlod-exact", "parfrefl", "comparfrefl", "fedcanon"])
def test_translation(case):
    """f_i(x - s) from x0 + s gives x + s; LoD's first r is undone by r_rel."""
    problem, s = problems.least_squares(), np.array([0.7, 3.0, -1.0, 0.2])
    x0, cohorts = problems.start(problem), some(problem, 5)
    moved = problems.LeastSquares([(x, y + x @ s) for x, y in problem.parts])
    name, settings = named.NAMED[case]
    here = getattr(o, name)(problem, x0, cohorts, 4, **settings)
    if "lod" in name:
        wider = settings.get("r_rel", 1e-2) * (1 + np.linalg.norm(x0))
        settings = settings | {"r_rel": wider / (1 + np.linalg.norm(x0 + s))}
    there = getattr(o, name)(moved, x0 + s, cohorts, 4, **settings)
    close(np.array(there.x) - s, here.x, 1e-10)
    close(np.array(there.memory["output"]) - s, here.memory["output"], 1e-10)
