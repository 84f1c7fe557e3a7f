"""The composite oracles checked against what their papers say; the package is not needed here."""

import numpy as np
import pytest

from oracle import cases, composite_cases, penalties, problems
from oracle import composite as c
from oracle import methods as m
from oracle.problems import close

PENALTIES = {
    "none": None,
    "l1": ("l1", 0.4),
    "l2": ("l2", 0.7),
    "elastic": ("elastic", 0.4, 0.3),
    "mcp": ("mcp", 0.4, 2.5),
    "scad": ("scad", 0.4, 3.7),
}


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


def everyone(problem, rounds):
    return [range(problem.clients)] * rounds


def some(problem, rounds, size=3, seed=0):
    random = np.random.default_rng(seed)
    return [random.choice(problem.clients, size, replace=False) for _ in range(rounds)]


def uneven(problem):
    return [1 + i % 4 for i in range(problem.clients)]


def shares(problem, weights):
    n = np.array(problem.sizes)
    return n / n.sum() if weights == "samples" else np.full(len(n), 1 / len(n))


def outputs(run):
    return [row["output"] for row in run.trace]


def optimum(problem, penalty=None, p=None):
    """argmin of the (weighted) mean loss + h, by proximal gradient; least squares only."""
    p = shares(problem, "uniform") if p is None else p
    hessian = sum(2 * p_i * x.T @ x / len(y) for p_i, (x, y) in zip(p, problem.parts, strict=True))
    right = sum(2 * p_i * x.T @ y / len(y) for p_i, (x, y) in zip(p, problem.parts, strict=True))
    step = 1 / np.linalg.eigvalsh(hessian)[-1]
    w = np.zeros(problem.d)
    for _ in range(3000):
        w = penalties.prox(penalty, step, w - step * (hessian @ w - right))
    close(w, penalties.prox(penalty, step, w - step * (hessian @ w - right)))
    return w


# penalties and compressors


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("alpha", [0.1, 0.9, 2.2])
def test_prox_is_the_minimiser(kind, alpha):
    """Against every point of a fine grid, at starting points on all branches and breakpoints."""
    penalty = PENALTIES[kind]
    grid = np.linspace(-3, 3, 6001)
    heights = np.array([penalties.value(penalty, [u]) for u in grid])
    starts = np.concatenate(
        [np.linspace(-2.5, 2.5, 41), [0.4, 0.4 * (1 + alpha), 0.4 * alpha, 1.0]]
    )
    near = penalties.prox(penalty, alpha, starts)
    for v, u in zip(starts, near, strict=True):
        height = penalties.value(penalty, [u]) + (u - v) ** 2 / (2 * alpha)
        assert height <= (heights + (grid - v) ** 2 / (2 * alpha)).min() + 1e-12
    close(penalties.prox(penalty, 0.0, starts), starts)


@pytest.mark.parametrize("kind", PENALTIES)
def test_penalties_are_continuous_and_even(kind):
    grid = np.linspace(0, 2, 20001)
    heights = np.array([penalties.value(PENALTIES[kind], [u]) for u in grid])
    assert np.abs(np.diff(heights)).max() <= 2.1 * 1e-4
    close([penalties.value(PENALTIES[kind], [-u]) for u in grid[::500]], heights[::500])


def test_nonconvex_penalties_are_flat_far_out():
    for kind, height in (("mcp", 2.5 * 0.4**2 / 2), ("scad", 4.7 * 0.4**2 / 2)):
        close(penalties.value(PENALTIES[kind], [1.6, -5.0]), 2 * height)
        close(penalties.prox(PENALTIES[kind], 0.9, np.array([1.6, -5.0])), [1.6, -5.0])


def test_topk_by_hand():
    C = penalties.Compressor(("topk", 0.5), [5, 2])
    v = np.array([1.0, -3.0, 2.0, 0.5, -0.1, 0.2, -0.4])
    close(C(v), [0, -3, 2, 0, 0, 0, -0.4])
    close(C.margin, 0.2)
    close(penalties.Compressor(("topk", 0.01), [5, 2])(v), [0, -3, 0, 0, 0, 0, -0.4])
    close(penalties.Compressor(("topk", 1.0), [5, 2])(v), v)


# compressed


def test_scafcom_without_momentum_and_compression_is_scaffold(problem):
    x0, cohorts = problems.start(problem), some(problem, 6)
    for settings in ({}, {"server_lr": 0.7, "weights": "samples"}):
        got = c.scafcom(problem, x0, cohorts, 4, lr=0.05, beta=1.0, compressor=None, **settings)
        close(got.x, m.scaffold(problem, x0, cohorts, 4, lr=0.05, option="II", **settings).x)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_scafcom_keeps_c_the_mean_of_c_i(problem, weights):
    more = {"beta": 0.3, "compressor": ("topk", 0.4), "weights": weights}
    run = c.scafcom(problem, problems.start(problem), some(problem, 8), uneven(problem), **more)
    close(run.memory["c"], shares(problem, weights) @ run.memory["own"])
    assert np.abs(np.subtract(run.memory["v"], run.memory["own"])).max() > 1e-3


def test_scafcom_reaches_the_optimum_through_a_narrow_wire():
    problem = problems.least_squares()
    run = c.scafcom(
        problem, problems.start(problem), some(problem, 800), 4, lr=0.05, compressor=("topk", 0.5)
    )
    close(run.x[-1], optimum(problem), 1e-6)


@pytest.mark.parametrize("method", [c.fedefsgd, c.fedefams])
def test_error_feedback_loses_nothing(problem, method):
    run = method(problem, problems.start(problem), some(problem, 8), uneven(problem))
    sent, e, moved = (np.array(run.memory[name]) for name in ("sent", "e", "moved"))
    close(sent + e, moved)
    assert np.abs(e).max() > 1e-3


def test_error_feedback_without_compression_is_fedavg(problem):
    x0, cohorts = problems.start(problem), some(problem, 5)
    got = c.fedefsgd(problem, x0, cohorts, 4, lr=0.05, server_lr=0.7, compressor=None)
    close(got.x, m.fedavg(problem, x0, cohorts, 4, lr=0.05, server_lr=0.7).x)
    assert not np.any(got.memory["e"])


def test_ams_by_hand():
    server = c.AMS(server_lr=0.5, beta1=0.8, beta2=0.9, eps=0.01)
    x, large, small = np.zeros(2), np.array([2.0, -1.0]), np.array([0.1, 0.1])
    x = server(x, large)
    close(x, 0.5 * 0.2 * large / np.sqrt(0.1 * large**2 + 0.01))
    mean = 0.8 * 0.2 * large + 0.2 * small
    again = server(x, small)
    assert np.all(0.9 * 0.1 * large**2 + 0.1 * small**2 < 0.1 * large**2)  # the maximum is used
    close(again, x + 0.5 * mean / np.sqrt(0.1 * large**2 + 0.01))


def test_localsgdc_is_fed_ef_with_everyone(problem):
    x0, cohorts = problems.start(problem), everyone(problem, 5)
    close(c.localsgdc(problem, x0, cohorts, 4).x, c.fedefsgd(problem, x0, cohorts, 4).x)
    double = c.localsgdc(problem, x0, cohorts, 4, double=True)
    sent = np.mean(double.memory["sent"], axis=0)
    close(double.x[-1] - x0 + double.memory["server"], sent)
    with pytest.raises(AssertionError):
        c.localsgdc(problem, x0, some(problem, 2), 4)


# composite


@pytest.mark.parametrize("method", [c.fedmid, c.fedda, c.fastfedda])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_without_penalty_it_is_fedavg(problem, method, weights):
    x0, cohorts = problems.start(problem), some(problem, 5)
    more = {"lr": 0.05, "weights": weights, "decay": 0.1, "clip": 2.0}
    if method is c.fastfedda:
        got, steps = method(problem, x0, cohorts, 4, mu=0.0, **more), 4
    else:
        more |= {"server_lr": 0.8, "schedule": [("exponential", 0.9)]}
        steps = uneven(problem)
        got = method(problem, x0, cohorts, steps, **more)
    expected = m.fedavg(problem, x0, cohorts, steps, **more).x
    close(got.x, expected)
    close(outputs(got), expected)


@pytest.mark.parametrize("kind", PENALTIES)
def test_one_client_and_one_step(problem, kind):
    """The central methods: proximal gradient and regularised dual averaging."""
    penalty, x0, i, lr = PENALTIES[kind], problems.start(problem), 3, 0.1
    cohorts = [[i]] * 8
    alone = {"lr": lr, "penalty": penalty}
    w, dual = x0, x0
    mid = c.fedmid(problem, x0, cohorts, 1, **alone)
    da = c.fedda(problem, x0, cohorts, 1, **alone)
    for t in range(8):
        y = penalties.prox(penalty, lr, w - lr * problem.grad(i, w))
        w = penalties.prox(penalty, lr, y)  # the server's prox comes on top
        close(mid.x[t], w)
        dual = dual - lr * problem.grad(i, penalties.prox(penalty, t * lr, dual))
        close(da.x[t], dual)
        close(da.trace[t]["output"], penalties.prox(penalty, (t + 1) * lr, dual))


def test_fastfedda_minimises_what_it_says():
    """Perturbing the point after three rounds can only raise the sum it is the minimiser of."""
    problem = problems.least_squares()
    x0, lr, mu, penalty = problems.start(problem), 0.05, 0.8, PENALTIES["elastic"]
    places, grads, w = [], [], x0
    run = c.fastfedda(problem, x0, [[2]] * 6, 1, lr=lr, mu=mu, penalty=penalty)
    for got in run.x:
        places.append(w)
        grads.append(problem.grad(2, w))
        w = got

        def height(u):
            total = sum(
                g @ u + mu / 4 * (u - v) @ (u - v) for g, v in zip(grads, places, strict=True)
            )
            return (
                total + len(places) * penalties.value(penalty, u) + (u - x0) @ (u - x0) / (2 * lr)
            )

        for direction in np.vstack([np.eye(4), -np.eye(4)]):
            assert height(w) <= height(w + 1e-4 * direction)


def test_fastfedda_without_penalty_is_sgd_with_shrinking_steps(problem):
    x0, lr, mu, K = problems.start(problem), 0.1, 0.5, 3
    run = c.fastfedda(problem, x0, some(problem, 4), K, lr=lr, mu=mu)
    x = x0
    for t, ids in enumerate(some(problem, 4)):
        grads = []
        before, after = 1 / lr + t * K * mu / 2, 1 / lr + (t + 1) * K * mu / 2
        for i in ids:
            y, total = x, 0.0
            for k in range(K):
                g = problem.grad(i, y) - mu / 2 * y
                total = total + g
                y = y - (g + mu / 2 * y) / (before + (k + 1) * mu / 2)
            grads.append(total)
        x = (before * x - np.mean(grads, axis=0)) / after
        close(run.x[t], x)


def test_fastfedda_counts_every_point_once(problem):
    run = c.fastfedda(problem, problems.start(problem), some(problem, 5), uneven(problem))
    assert run.memory["n"] == 5 * np.mean(uneven(problem))
    still = c.fastfedda(
        problem, np.full(problem.d, 2.0), some(problem, 5), uneven(problem), lr=1e-12
    )
    close(still.memory["X"], 2.0 * still.memory["n"] * np.ones(problem.d), 1e-9)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_scaffnew_and_za1_keep_their_controls_in_balance(problem, weights):
    x0, cohorts, p = problems.start(problem), everyone(problem, 6), shares(problem, weights)
    run = c.scaffnew(problem, x0, cohorts, 4, lengths=[3, 1, 5, 2, 4, 7], weights=weights)
    close(p @ run.memory["e"], 0.0)
    assert np.abs(run.memory["e"]).max() > 0.1
    for steps in (4, uneven(problem)):
        run = c.za1(problem, x0, cohorts, steps, lr=0.05, weights=weights, penalty=("l1", 0.1))
        close(p @ run.memory["own"], 0.0)
        assert np.abs(run.memory["own"]).max() > 0.1


def test_scaffnew_is_the_printed_iteration(problem):
    """One step at a time, with the coins written out."""
    x0, lr, p, N = problems.start(problem), 0.05, 0.4, problem.clients
    coins = [0, 0, 1, 1, 0, 1, 0, 0, 0, 1]
    run = c.scaffnew(problem, x0, everyone(problem, 4), 4, lr=lr, p=p, lengths=[3, 1, 2, 4])
    x, e, seen = np.array([x0] * N), np.zeros((N, problem.d)), []
    for coin in coins:
        ahead = np.array([x[i] - lr * (problem.grad(i, x[i]) + e[i]) for i in range(N)])
        x = np.array([ahead.mean(0)] * N) if coin else ahead
        e = e - p / lr * (x - ahead)
        if coin:
            seen.append(x[0])
    close(run.x, seen)
    close(run.memory["e"], e)


def test_scaffnew_that_always_talks_is_gradient_descent(problem):
    x = problems.start(problem)
    run = c.scaffnew(problem, x, everyone(problem, 5), 4, p=1.0, lengths=[1] * 5)
    for got in run.x:
        x = x - 0.1 * np.mean([problem.grad(i, x) for i in range(problem.clients)], axis=0)
        close(got, x)


def test_scaffnew_reaches_the_optimum():
    problem = problems.least_squares()
    lengths = np.random.default_rng(0).geometric(0.25, size=400).tolist()
    cohorts = everyone(problem, 400)
    run = c.scaffnew(problem, problems.start(problem), cohorts, 4, lr=0.05, lengths=lengths)
    close(run.x[-1], optimum(problem), 1e-8)


def test_za1_without_penalty_is_scaffold(problem):
    x0, cohorts = problems.start(problem), everyone(problem, 6)
    more = {"lr": 0.05, "server_lr": 0.7, "weights": "samples"}
    run = c.za1(problem, x0, cohorts, 4, **more)
    expected = m.scaffold(problem, x0, cohorts, 4, **more)
    close(run.x, expected.x)
    close(run.memory["own"], expected.memory["c"] - expected.memory["own"])


def test_za1_controls_as_printed(problem):
    """c_i = (P_E(x) - x+) / (server_lr lr K) - mean local gradient, written out for two rounds."""
    x, lr, server_lr, K, penalty = problems.start(problem), 0.05, 0.8, 3, ("l1", 0.2)
    E, N = server_lr * lr * K, problem.clients
    own = np.zeros((N, problem.d))
    run = c.za1(problem, x, everyone(problem, 2), K, lr=lr, server_lr=server_lr, penalty=penalty)
    for t in range(2):
        start, before, grads = penalties.prox(penalty, E, x), [], np.zeros((N, problem.d))
        for i in range(N):
            zh = z = start
            for k in range(K):
                g = problem.grad(i, z)
                grads[i] += g / K
                zh = zh - lr * (g + own[i])
                z = penalties.prox(penalty, (k + 1) * lr, zh)
            before.append(zh)
        x = start + server_lr * (np.mean(before, axis=0) - start)
        own = (start - x) / E - grads
        close(run.x[t], x)
        close(run.trace[t]["output"], penalties.prox(penalty, E, x))
    close(run.memory["own"], own)


def test_za1_with_one_step_is_proximal_gradient(problem):
    x, lr, penalty = problems.start(problem), 0.1, ("elastic", 0.2, 0.1)
    run = c.za1(problem, x, everyone(problem, 6), 1, lr=lr, penalty=penalty)
    w = penalties.prox(penalty, lr, x)
    for row in run.trace:
        g = np.mean([problem.grad(i, w) for i in range(problem.clients)], axis=0)
        w = penalties.prox(penalty, lr, w - lr * g)
        close(row["output"], w)


def test_za1_comes_closer_to_the_lasso_than_fedmid():
    problem, penalty = problems.least_squares(), ("l1", 0.5)
    x0, best = problems.start(problem), optimum(problems.least_squares(), penalty)
    assert np.any(best == 0)
    gaps = {}
    for method in (c.za1, c.fedmid):
        run = method(problem, x0, everyone(problem, 400), 4, lr=0.02, penalty=penalty)
        gaps[method] = np.abs(run.trace[-1]["output"] - best).max()
    assert gaps[c.za1] < 0.02
    assert gaps[c.fedmid] > 5 * gaps[c.za1]


# primal-dual


@pytest.mark.parametrize("method", [c.feddr, c.fedadmm])
@pytest.mark.parametrize("solver", ["exact", "steps"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_splitting_reaches_the_lasso(method, solver, weights):
    problem, penalty = problems.least_squares(), ("l1", 0.5)
    best = optimum(problem, penalty, shares(problem, weights))
    assert np.any(best == 0)
    more = {"mu": 2.0, "penalty": penalty, "solver": solver, "weights": weights}
    for cohorts in (everyone(problem, 200), some(problem, 400)):
        run = method(problem, problems.start(problem), cohorts, 5, lr=0.05, **more)
        close(run.x[-1], best, 1e-6)


@pytest.mark.parametrize("method", [c.feddr, c.fedadmm])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_splitting_keeps_the_mean_of_what_was_sent(problem, method, weights):
    run = method(problem, problems.start(problem), some(problem, 6), 3, weights=weights)
    close(run.memory["tilde"], shares(problem, weights) @ run.memory["hat"])


def test_fedadmm_is_feddr_without_over_relaxation(problem):
    """Also with few steps, some clients and unequal work."""
    x0, cohorts, steps = problems.start(problem), some(problem, 8), uneven(problem)
    more = {"lr": 0.05, "mu": 1.7, "penalty": ("l1", 0.1), "weights": "samples"}
    dr = c.feddr(problem, x0, cohorts, steps, relax=1.0, **more)
    admm = c.fedadmm(problem, x0, cohorts, steps, **more)
    close(admm.x, dr.x)
    close(dr.memory["y"], np.subtract(admm.memory["own"], np.array(admm.memory["z"]) / 1.7))


def test_fedpd_that_always_talks_is_fedadmm(problem):
    x0, cohorts = problems.start(problem), everyone(problem, 6)
    more = {"lr": 0.05, "mu": 1.3, "weights": "samples"}
    close(c.fedpd(problem, x0, cohorts, 4, **more).x, c.fedadmm(problem, x0, cohorts, 4, **more).x)


def test_exact_fedpd_is_exact_feddyn():
    problem = problems.least_squares()
    x0, cohorts = problems.start(problem), everyone(problem, 6)
    more = {"mu": 1.3, "solver": "exact", "weights": "samples"}
    pd, dyn = c.fedpd(problem, x0, cohorts, 4, **more), c.feddyn(problem, x0, cohorts, 4, **more)
    close(pd.x, dyn.x)
    close(pd.memory["dual"], -np.array(dyn.memory["dual"]))


def test_fedpd_in_silence():
    """Clients that are alike need no average."""
    part = problems.least_squares().parts[3]
    problem, solves = problems.LeastSquares([part] * 3), [2, 3, 1]
    x0 = problems.start(problem)
    seldom = c.fedpd(problem, x0, everyone(problem, 3), 4, lr=0.05, skip=0.5, solves=solves).x
    always = c.fedpd(problem, x0, everyone(problem, 6), 4, lr=0.05).x
    close(seldom, [always[1], always[4], always[5]])


def test_fedpd_by_hand_over_a_silent_solve():
    """The dual and the anchor of a client go on from its own."""
    problem, mu = problems.least_squares(), 1.5
    x0, N = problems.start(problem), problem.clients
    more = {"mu": mu, "solver": "exact", "skip": 0.5, "solves": [2]}
    run = c.fedpd(problem, x0, everyone(problem, 1), 1, **more)
    last = []
    for x, y in problem.parts:
        hessian, right = 2 * x.T @ x / len(y), 2 * x.T @ y / len(y)
        dual, anchor = np.zeros(4), x0
        for _ in range(2):
            own = np.linalg.solve(hessian + mu * np.eye(4), right - dual + mu * anchor)
            dual = dual + mu * (own - anchor)
            anchor = own + dual / mu
        last.append(anchor)
    close(run.x, [sum(last) / N])


@pytest.mark.parametrize("solver", ["exact", "steps"])
def test_inexact_solutions_are_exact_with_many_steps(solver):
    problem = problems.least_squares()
    x0, cohorts = problems.start(problem), some(problem, 4)
    for method in (c.feddr, c.fedadmm, c.feddyn):
        few = method(problem, x0, cohorts, 3, lr=0.05, mu=2.0).x
        got = method(problem, x0, cohorts, 400, lr=0.05, mu=2.0, solver=solver).x
        exact = method(problem, x0, cohorts, 3, mu=2.0, solver="exact").x
        close(got, exact, 1e-9)
        assert np.abs(np.subtract(few, exact)).max() > 1e-2


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_feddyn_and_feddc_keep_their_means(problem, weights):
    x0, cohorts, p = problems.start(problem), some(problem, 6), shares(problem, weights)
    run = c.feddyn(problem, x0, cohorts, uneven(problem), lr=0.05, mu=0.3, weights=weights)
    close(run.memory["mean_dual"], p @ run.memory["dual"])
    run = c.feddc(problem, x0, cohorts, uneven(problem), lr=0.05, mu=0.3, weights=weights)
    close(run.memory["mean_drift"], p @ run.memory["drift"])
    close(run.memory["c"], p @ run.memory["own"])


def test_feddc_without_controls_is_feddyn(problem):
    x0, cohorts, steps = problems.start(problem), some(problem, 6), uneven(problem)
    more = {"lr": 0.05, "mu": 0.4, "weights": "samples"}
    dc = c.feddc(problem, x0, cohorts, steps, control=False, **more)
    dyn = c.feddyn(problem, x0, cohorts, steps, **more)
    close(dc.x, dyn.x)
    close(np.array(dc.memory["drift"]) * 0.4, -np.array(dyn.memory["dual"]))
    assert np.abs(np.subtract(dc.x, c.feddc(problem, x0, cohorts, steps, **more).x)).max() > 1e-3


def test_feddc_controls_are_mean_gradients(problem):
    """c_i = mean over the steps of g + mu (y - x + h_i), after a first round without drift."""
    x0, i, lr, mu = problems.start(problem), 4, 0.05, 0.6
    run = c.feddc(problem, x0, [[i]], 3, lr=lr, mu=mu)
    y, total = x0, 0.0
    for _ in range(3):
        g = problem.grad(i, y) + mu * (y - x0)
        y, total = y - lr * g, total + g
    close(run.memory["own"][i], total / 3)


@pytest.mark.parametrize("method", [c.feddyn, c.feddc])
def test_dynamic_regularisation_reaches_the_optimum(method):
    problem = problems.least_squares()
    best = optimum(problem, p=shares(problem, "samples"))
    for cohorts in (everyone(problem, 200), some(problem, 600)):
        more = {"lr": 0.05, "mu": 1.0, "weights": "samples"}
        run = method(problem, problems.start(problem), cohorts, 8, **more)
        close(run.x[-1], best, 1e-5)


# all


@pytest.mark.parametrize(("setup", "case"), composite_cases.PAIRS)
def test_comparisons_are_well_posed(setup, case):
    """Rounding is not blown up, so 1e-9 is a fair demand, and no run diverges or stands still."""
    name, settings = composite_cases.NAMED[case]
    kind, size, weights = composite_cases.SETUPS[setup]
    problem = cases.PROBLEMS[kind]()
    size = problem.clients if case in composite_cases.FULL else size
    cohorts, x0 = some(problem, cases.ROUNDS, size), problems.start(problem)
    method, more = composite_cases.oracle(name), settings | composite_cases.coins(name, settings)
    run = method(problem, x0, cohorts, cases.STEPS, weights=weights, **more)
    near = method(problem, x0 * (1 + 1e-14), cohorts, cases.STEPS, weights=weights, **more)
    np.testing.assert_allclose(near.x, run.x, rtol=1e-11, atol=1e-12)
    assert np.abs(run.x[-1]).max() < 20
    assert np.abs(run.x[-1] - run.x[-2]).max() > 1e-4


def test_every_argument_and_penalty_is_compared():
    seen = {}
    for name, settings in composite_cases.NAMED.values():
        seen.setdefault(name, set()).update(settings)
    for name, arguments in seen.items():
        known = set(composite_cases.oracle(name).__kwdefaults__)
        assert known - arguments <= {"solves", "double", "control"}, name
    kinds = {s["penalty"][0] for _, s in composite_cases.NAMED.values() if "penalty" in s}
    assert kinds == set(PENALTIES) - {"none"}


@pytest.mark.parametrize("case", composite_cases.NAMED)
def test_memory_shows_in_the_second_round(case):
    """A client or server that forgot would be caught by the comparison."""
    name, settings = composite_cases.NAMED[case]
    if name == "fedmid":
        return  # nothing is kept
    problem = problems.least_squares()
    x0, cohorts, method = (
        problems.start(problem),
        everyone(problem, 2),
        composite_cases.oracle(name),
    )
    more = settings | {k: v[-2:] for k, v in composite_cases.coins(name, settings).items()}
    kept = method(problem, x0, cohorts, 4, **more)
    first = more | {k: v[-1:] for k, v in composite_cases.coins(name, settings).items()}
    fresh = method(problem, kept.x[0], cohorts[1:], 4, **first)
    if case in ("fedda", "fastfedda"):  # a clock that nothing reads, or that hardly moves
        return
    assert np.abs(kept.x[1] - fresh.x[0]).max() > 1e-3


def test_minibatches_and_order(problem):
    x0, cohorts = problems.start(problem), some(problem, 3, size=5)
    calls = []

    def every_row(t, i, k):
        calls.append((t, i, k))
        return np.arange(problem.sizes[i])

    back = [ids[::-1] for ids in cohorts]
    for name in (
        "scafcom",
        "fedefams",
        "fedmid",
        "fedda",
        "fastfedda",
        "feddr",
        "fedadmm",
        "feddc",
    ):
        method = composite_cases.oracle(name)
        plain = method(problem, x0, cohorts, 3, lr=0.05).x
        close(method(problem, x0, back, 3, lr=0.05).x, plain)
        calls.clear()
        close(method(problem, x0, cohorts, 3, lr=0.05, batch=every_row).x, plain)
        assert len(calls) == len(set(calls)) == 3 * 5 * 3
