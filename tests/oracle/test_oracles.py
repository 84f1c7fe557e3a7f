"""The oracles checked against what the papers say of them; the package is not needed here."""

import numpy as np
import pytest

from oracle import cases, problems
from oracle import methods as m
from oracle.problems import close


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


def everyone(problem, rounds):
    return [range(problem.clients)] * rounds


def some(problem, rounds, size=3, seed=0):
    random = np.random.default_rng(seed)
    return [random.choice(problem.clients, size, replace=False) for _ in range(rounds)]


def deltas(problem, x, ids, steps, lr):
    """Each client's move, written out once more."""
    moves = []
    for i in ids:
        y = x.copy()
        for _ in range(steps):
            y = y - lr * problem.grad(i, y)
        moves.append(y - x)
    return np.array(moves)


@pytest.mark.parametrize("rows", [None, [0, 2], [1]])
def test_gradients_match_finite_differences(problem, rows):
    w = problems.start(problem)
    for i in range(problem.clients):
        numeric = np.zeros(problem.d)
        for j in range(problem.d):
            h = np.zeros(problem.d)
            h[j] = 1e-6
            numeric[j] = (problem.value(i, w + h, rows) - problem.value(i, w - h, rows)) / 2e-6
        np.testing.assert_allclose(problem.grad(i, w, rows), numeric, rtol=1e-6, atol=1e-8)


def test_data_is_heterogeneous_and_sorted_by_client(problem):
    assert len(set(problem.sizes)) > 3
    assert list(problem.owner) == sorted(problem.owner)
    w = problems.start(problem)
    grads = np.array([problem.grad(i, w) for i in range(problem.clients)])
    spread = ((grads - grads.mean(0)) ** 2).sum(1).mean()
    assert spread > 0.3 * (grads.mean(0) ** 2).sum()


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_step_fedavg_is_gradient_descent(problem, weights):
    x = x0 = problems.start(problem)
    n = np.array(problem.sizes)
    p = n / n.sum() if weights == "samples" else np.full(len(n), 1 / len(n))
    run = m.fedavg(problem, x0, everyone(problem, 5), 1, lr=0.1, weights=weights)
    for got in run.x:
        x = x - 0.1 * sum(p[i] * problem.grad(i, x) for i in range(problem.clients))
        close(got, x)


def toy_value(method, **settings):
    problem = problems.toy()
    run = method(problem, np.array([0.24, 1.0]), everyone(problem, 50), 10, **settings)
    return problem.mean_value(run.x[-1])


@pytest.mark.parametrize(
    ("method", "settings", "printed"),
    [
        (m.fedavg, {"lr": 0.01}, "1.94e-1"),
        (m.fedexp, {"lr": 0.01, "eps": 0.0}, "2.5e-4"),
        (m.fedsls, {"reset": "reset"}, "5.7e-2"),
        (m.fedexpsls, {"reset": "reset", "eps": 0.0}, "8.3e-10"),
    ],
    ids=["fedavg", "fedexp", "fedsls", "fedexpsls"],
)
def test_toy_figures_of_p3(method, settings, printed):
    digits = len(printed.split("e")[0]) - 2
    value = f"{toy_value(method, **settings):.{digits}e}"
    assert float(value) == float(printed), f"{method.__name__}: {value}, printed {printed}"


def test_fedexp_identities(problem):
    x0 = problems.start(problem)
    ids = [1, 3, 4]
    moves = deltas(problem, x0, ids, 4, 0.05)
    dbar, q = moves.mean(0), (moves**2).sum(1).mean()

    run = m.fedexp(problem, x0, [ids], 4, lr=0.05, eps=0.0)
    eta = max(1.0, q / (2 * dbar @ dbar))
    close(run.trace[0]["server_step"], eta)
    close(run.x[0], x0 + eta * dbar)

    unclipped = m.fedexpm(problem, x0, [ids], 4, lr=0.05, eps=0.0, momentum=0.0)
    close(dbar @ (unclipped.x[0] - x0), q / 2)

    alone = m.fedexp(problem, x0, [[3]], 4, lr=0.05, eps=0.0)
    assert alone.trace[0]["server_step"] == 1.0
    alone = m.fedexpm(problem, x0, [[3]], 4, lr=0.05, eps=0.0)
    close(alone.trace[0]["server_step"], 0.5)

    capped = m.fedexp(problem, x0, [ids], 4, lr=0.05, eps=0.0, max_server_step=1.0)
    close(capped.x[0], x0 + dbar)


def test_fedexpm_by_hand():
    server = m.FedExPM(eps=0.5, momentum=0.8)
    x = np.zeros(2)
    first, second = np.array([1.0, 2.0]), np.array([-1.0, 0.5])
    x, eta = server(x, first, 6.0)
    close(eta, 6.0 / (2 * 5.5))
    x, eta = server(x, second, 4.0)
    v, Q = second + 0.8 * first, 4.0 + 0.4 * 6.0
    close(eta, Q / (2 * (v @ v + 0.5)))
    close(x, 6.0 / 11.0 * first + eta * v)


def test_feddua_moves_by_m_along_v(problem):
    x = problems.start(problem)
    for server in (m.FedDuAdagrad(), m.FedDuAdam()):
        for t in range(6):
            moves = deltas(problem, x, [0, 2, 5] if t % 2 else [1, 3, 4], 3, 0.05)
            q = (moves**2).sum(1).mean()
            new, eta = server(x, moves.mean(0), q)
            v, half = getattr(server, "v", moves.mean(0)), getattr(server, "m", q / 2)
            close(v @ (new - x), half)
            assert eta >= 0
            x = new


def test_fedduadam_first_round():
    server = m.FedDuAdam()
    dbar = np.array([0.3, -0.2])
    server(np.zeros(2), dbar, 0.5)
    close(server.v, 0.1 * dbar)
    close(server.m, 0.1 * 0.25)
    close(server.s, 0.01 * dbar**2)


def test_fedduadagrad_first_round_is_a_sign_step(problem):
    x0, ids = problems.start(problem), [0, 1, 6]
    moves = deltas(problem, x0, ids, 3, 0.05)
    dbar, q = moves.mean(0), (moves**2).sum(1).mean()
    run = m.fedduadagrad(problem, x0, [ids], 3, lr=0.05, eps=0.0)
    close(run.x[0] - x0, q / 2 * np.sign(dbar) / np.abs(dbar).sum())


def test_fedduadagrad_scales_with_the_deltas():
    random = np.random.default_rng(0)
    for a in (1e-3, 7.0):
        small, large = m.FedDuAdagrad(eps=0.0), m.FedDuAdagrad(eps=0.0)
        for _ in range(4):
            moves = random.normal(size=(3, 5))
            q = (moves**2).sum(1).mean()
            step, _ = small(np.zeros(5), moves.mean(0), q)
            scaled, _ = large(np.zeros(5), a * moves.mean(0), a * a * q)
            close(scaled, a * step)


def test_feddua_with_unit_metric_is_fedexp_without_clip():
    dbar, q = np.array([0.3, -0.2, 0.1]), 0.9
    dual, eta = m.dual_step(np.zeros(3), dbar, q / 2, np.ones(3), 0.0, 0.0)
    plain, unclipped = m.FedExPM(eps=0.0, momentum=0.0)(np.zeros(3), dbar, q)
    close(dual, plain)
    close(eta, unclipped)
    wider, _ = m.dual_step(np.zeros(3), dbar, q / 2, 9 * np.ones(3), 0.0, 0.0)
    close(wider, dual)  # G -> aG changes nothing


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_scaffold_keeps_c_the_mean_of_c_i(problem, option, weights):
    steps = [1 + i % 4 for i in range(problem.clients)]
    x0 = problems.start(problem)
    run = m.scaffold(problem, x0, some(problem, 8), steps, lr=0.05, option=option, weights=weights)
    n = np.array(problem.sizes)
    p = n / n.sum() if weights == "samples" else np.full(len(n), 1 / len(n))
    close(run.memory["c"], p @ run.memory["own"])


def test_scaffold_option_two_is_the_papers_difference(problem):
    """c_i+ = c_i - c - delta_i / (K lr), written out, partial participation and server_lr 0.7."""
    N, lr, K, x = problem.clients, 0.05, 3, problems.start(problem)
    cohorts = some(problem, 8)
    run = m.scaffold(problem, x, cohorts, K, lr=lr, server_lr=0.7)
    c, own = np.zeros(problem.d), np.zeros((N, problem.d))
    for got, ids in zip(run.x, cohorts, strict=True):
        moves, new = [], own.copy()
        for i in ids:
            y = x.copy()
            for _ in range(K):
                y = y - lr * (problem.grad(i, y) - own[i] + c)
            moves.append(y - x)
            new[i] = own[i] - c - (y - x) / (K * lr)
        x = x + 0.7 * np.mean(moves, axis=0)
        c = c + (new - own).sum(0) / N
        own = new
        close(got, x)


def test_scaffold_reaches_the_optimum_where_fedavg_does_not():
    problem = problems.least_squares()
    hessian, right = np.zeros((4, 4)), np.zeros(4)
    for x, y in problem.parts:
        hessian += x.T @ x / len(y)
        right += x.T @ y / len(y)
    optimum, x0 = np.linalg.solve(hessian, right), problems.start(problem)
    cohorts = everyone(problem, 300)
    exact = m.scaffold(problem, x0, cohorts, 4, lr=0.05).x[-1]
    biased = m.fedavg(problem, x0, cohorts, 4, lr=0.05).x[-1]
    close(exact, optimum, 1e-8)
    assert np.linalg.norm(biased - optimum) > 1e-3


@pytest.mark.parametrize("reset", ["keep", "reset", "grow"])
def test_accepted_steps_meet_armijo_and_its_lower_bound(reset):
    problem = problems.least_squares()
    step = m.Armijo(reset=reset)
    x0 = problems.start(problem)
    m.federated(problem, x0, some(problem, 6), 5, step, m.Average())
    smoothness = max(2 * np.linalg.eigvalsh(x.T @ x / len(y))[-1] for x, y in problem.parts)
    assert len(step.accepted) == 6 * 3 * 5
    for eta, before, after, slope in step.accepted:
        assert after <= before - step.c * eta * slope
        assert eta <= step.max_lr
        if reset != "keep":
            assert eta >= step.backtrack * min(2 * (1 - step.c) / smoothness, step.max_lr)


@pytest.mark.parametrize("settings", [{"max_lr": 0.02}, {"max_lr": 0.05, "max_backtracks": 0}])
def test_first_trial_accepted_makes_it_a_constant_step(problem, settings):
    x0, cohorts, lr = problems.start(problem), some(problem, 5), settings["max_lr"]
    sls = m.fedsls(problem, x0, cohorts, 4, **settings)
    assert sum(row["trials"] for row in sls.trace) == 0
    close(sls.x, m.fedavg(problem, x0, cohorts, 4, lr=lr).x)
    exp = m.fedexpsls(problem, x0, cohorts, 4, **settings)
    close(exp.x, m.fedexp(problem, x0, cohorts, 4, lr=lr).x)


def test_armijo_counts_backtracks_and_falls_back():
    """phi = y^2 / 2 from y = 1 with a gradient of the wrong sign: no step is ever accepted."""
    step = m.Armijo(max_backtracks=7)
    step.begin(1.0)
    y = step.move(np.ones(1), -np.ones(1), lambda y: float(y @ y) / 2, 1.0)
    assert step.trials == 7
    close(y, 1 + 1e-6)
    step.move(np.ones(1), np.full(1, 1e-9), lambda y: float(y @ y) / 2, 1.0)
    assert step.trials == 7  # skipped


def test_armijo_first_trials():
    for reset, second in {"keep": 0.2, "reset": 1.0, "grow": 0.2 * 2**0.25}.items():
        step = m.Armijo(reset=reset)
        step.begin(1.0)
        assert step.first_trial(0.25) == 1.0
        step.previous = 0.2
        close(step.first_trial(0.25), second)
    step.previous = 0.9
    assert step.first_trial(1.0) == 1.0


def test_prox_and_momentum_limits(problem):
    x0, cohorts = problems.start(problem), some(problem, 4)
    plain = m.fedavg(problem, x0, cohorts, 4, lr=0.05).x
    close(m.fedprox(problem, x0, cohorts, 4, lr=0.05, mu=0.0).x, plain)
    close(m.fedavgm(problem, x0, cohorts, 4, lr=0.05, momentum=0.0).x, plain)
    heavy = m.federated(problem, x0, cohorts, 4, m.Momentum(0.05, 0.0), m.Average())
    close(heavy.x, plain)
    far = m.fedprox(problem, x0, cohorts, 50, lr=0.05, mu=10.0).x
    drift = np.linalg.norm(m.fedavg(problem, x0, cohorts, 50, lr=0.05).x[0] - x0)
    assert np.linalg.norm(far[0] - x0) < drift


def test_adam_first_step_is_the_sign():
    step = m.Adam(0.1, eps=0.0)
    step.begin(1.0)
    close(step.move(np.zeros(3), np.array([2.0, -5.0, 1e-3]), None, 1.0), [-0.1, 0.1, -0.1])


@pytest.mark.parametrize("weighted", [False, True])
def test_dog_with_one_client_and_one_step_is_dog_one_step_behind(weighted):
    problem = problems.least_squares()
    x0, i = problems.start(problem), 3
    method = m.feddowg if weighted else m.feddog
    run = method(problem, x0, [[i]] * 12, 1)
    r = 1e-2 * (1 + np.linalg.norm(x0))
    g = problem.grad(i, x0)
    v, x = (g @ g + 1e-8) * (r**2 if weighted else 1.0), x0
    for got, row in zip(run.x, run.trace, strict=True):
        lr = (r**2 if weighted else r) / np.sqrt(v)
        close(row["lr"], lr)
        g = problem.grad(i, x)
        x = x - lr * g
        close(got, x)
        r = max(r, np.linalg.norm(x - x0))
        v = v + (g @ g) * (r**2 if weighted else 1.0)
        close([row["r"], row["v"]], [r, v])


@pytest.mark.parametrize("weighted", [False, True])
def test_asked_live_dog_with_one_client_and_one_step_counts_the_first_gradient_twice(weighted):
    """The gradient counts before the step along it is taken; v starts with one gradient more."""
    problem = problems.least_squares()
    x0, i = problems.start(problem), 3
    run = m.federated(problem, x0, [[i]] * 12, 1, m.LiveDoG(1e-2, weighted), m.Average())
    r = 1e-2 * (1 + np.linalg.norm(x0))
    g = problem.grad(i, x0)
    v, x = (g @ g + 1e-8) * (r**2 if weighted else 1.0), x0
    for got, row in zip(run.x, run.trace, strict=True):
        g = problem.grad(i, x)
        lr = (r**2 if weighted else r) / np.sqrt(v + (g @ g) * (r**2 if weighted else 1.0))
        close(row["lr"], lr)
        x = x - lr * g
        close(got, x)
        r = max(r, np.linalg.norm(x - x0))
        v = v + (g @ g) * (r**2 if weighted else 1.0)
        close([row["r"], row["v"]], [r, v])


@pytest.mark.parametrize("weighted", [False, True])
def test_no_live_step_is_longer_than_r(problem, weighted):
    """On least squares scaled up, where the other form's steps are."""
    x0, cohorts = 30 * problems.start(problem), some(problem, 6)

    class Watched(m.LiveDoG):
        longest = 0.0

        def move(self, *args):
            y = super().move(*args)
            self.longest = max(self.longest, *self.lengths)
            return y

    step = Watched(10.0, weighted)
    m.federated(problem, x0, cohorts, 5, step, m.Average())
    assert 0.1 < step.longest <= 1


def test_max_move_by_hand():
    """delta = (3, 4), q = 49: the dual step is the sign step of length q/2 sqrt(2) / 7."""
    dbar, q = np.array([3.0, 4.0]), 49.0
    length = q / 2 / 7 * np.sqrt(2)
    for max_move, expected in {None: length, 0.5: 3.5, 10.0: length}.items():
        new, eta = m.FedDuAdagrad(eps=0.0, max_move=max_move)(np.zeros(2), dbar, q)
        close(new, np.full(2, expected / np.sqrt(2)))
        close(eta, expected / np.sqrt(2))


@pytest.mark.parametrize("server", [m.FedDuAdagrad, m.FedDuAdam])
def test_max_move_bounds_the_move(problem, server):
    x = problems.start(problem)
    short, free = server(max_move=0.6), server()
    bound = 0
    for t in range(8):
        moves = deltas(problem, x, [0, 2, 5] if t % 2 else [1, 3, 4], 3, 0.05)
        q = (moves**2).sum(1).mean()
        new, eta = short(x, moves.mean(0), q)
        free_new, free_eta = free(x, moves.mean(0), q)
        assert np.linalg.norm(new - x) <= 0.6 * np.sqrt(q) * (1 + 1e-12)
        close((new - x) * free_eta, (free_new - x) * eta)  # the same direction
        bound += eta < free_eta
        x = new
    assert bound > 0


def test_dog_distance_ignores_the_servers_own_step(problem):
    """Plain r: a server that does not move at all still lets r grow."""
    x0, cohorts = problems.start(problem), some(problem, 5)
    run = m.dog_with_server(problem, x0, cohorts, 3, m.Average(server_lr=0.0))
    close(run.x[-1], x0)
    r = [row["r"] for row in run.trace]
    assert r[-1] > r[0]
    assert r == sorted(r)


def test_clip_bounds_each_step_and_decay_comes_after(problem):
    w = 10 * problems.start(problem)
    g = m.minibatch_gradient(problem, 0, w, None, 0.0, 0.5)
    close(np.linalg.norm(g), 0.5)
    close(m.minibatch_gradient(problem, 0, w, None, 0.1, 0.5), g + 0.1 * w)
    close(m.minibatch_gradient(problem, 0, w, None, 0.0, 1e9), problem.grad(0, w))


def test_schedules():
    T = 5
    cosine = [m.factor([("cosine", 0.1)], t, T) for t in range(T)]
    close(cosine[0], 1.0)
    close(cosine[2], 0.55)
    close(cosine[-1], 0.1)
    assert m.factor([("cosine", 0.1)], 0, 1) == 1.0
    close([m.factor([("exponential", 0.9)], t, T) for t in range(3)], [1.0, 0.9, 0.81])
    close([m.factor([("warmup", 2)], t, T) for t in range(3)], [0.5, 1.0, 1.0])


def test_output_averages():
    xs = [np.array([1.0]), np.array([3.0]), np.array([-1.0])]
    close(m.last_two(np.array([0.0]), xs), [[0.5], [2.0], [1.0]])
    gamma = 8.0
    averages = m.polynomial(xs, gamma)
    close(averages[0], xs[0])
    close(averages[1], 0.1 * xs[0] + 0.9 * xs[1])
    close(averages[2], 2 / 11 * averages[1] + 9 / 11 * xs[2])


def test_minibatches_that_hold_every_row_are_full_batches(problem):
    x0, cohorts = problems.start(problem), some(problem, 3)

    def every_row(t, i, k):
        return np.arange(problem.sizes[i])

    for method, settings in ((m.fedavg, {"lr": 0.05}), (m.fedsls, {}), (m.feddowg, {})):
        full = method(problem, x0, cohorts, 3, **settings).x
        close(method(problem, x0, cohorts, 3, batch=every_row, **settings).x, full)


def test_cohort_order_does_not_matter(problem):
    x0, cohorts = problems.start(problem), some(problem, 4, size=5)
    back = [ids[::-1] for ids in cohorts]
    for method, settings in ((m.scaffold, {"lr": 0.05}), (m.fedexpsls, {}), (m.feddog, {})):
        a, b = (method(problem, x0, order, 3, **settings).x for order in (cohorts, back))
        close(a, b)


@pytest.mark.parametrize("case", cases.NAMED)
@pytest.mark.parametrize("setup", cases.SETUPS)
def test_comparisons_are_well_posed(problem, case, setup):
    """Rounding is not blown up, so 1e-9 is a fair demand, and no run diverges or stands still."""
    name, settings = cases.NAMED[case]
    size, weights = cases.SETUPS[setup]
    cohorts, x0 = some(problem, cases.ROUNDS, size), problems.start(problem)
    method = cases.oracle(name)
    run = method(problem, x0, cohorts, cases.STEPS, weights=weights, **settings)
    near = method(problem, x0 * (1 + 1e-14), cohorts, cases.STEPS, weights=weights, **settings)
    np.testing.assert_allclose(near.x, run.x, rtol=1e-11, atol=1e-12)
    assert np.abs(run.x[-1]).max() < 20
    assert np.abs(run.x[-1] - run.x[-2]).max() > 1e-4


def test_cases_visit_both_sides_of_every_branch(problem):
    cohorts, x0 = some(problem, cases.ROUNDS), problems.start(problem)

    def trace(case, key):
        name, settings = cases.NAMED[case]
        run = cases.oracle(name)(problem, x0, cohorts, cases.STEPS, **settings)
        return [row[key] for row in run.trace]

    assert max(trace("fedexp-eps", "server_step")) > 1
    assert max(trace("fedexp-cap", "server_step")) == 1.2
    assert min(trace("fedexpm", "server_step")) < 1
    assert max(trace("fedsls", "trials")) > 0
    step = m.Armijo(**cases.NAMED["fedsls-fallback"][1])
    m.federated(problem, x0, cohorts, cases.STEPS, step, m.Average())
    assert 1e-6 in (tried := {eta for eta, *_ in step.accepted})
    assert max(tried) > 0.5


@pytest.mark.parametrize("server", [m.ServerMomentum, m.FedExPM, m.FedDuAdagrad, m.FedDuAdam])
def test_server_memory_shows_in_the_second_round(problem, server):
    """A server that forgot would be caught by the comparison."""
    cohorts, x0 = some(problem, 2), problems.start(problem)
    kept = m.federated(problem, x0, cohorts, 4, m.Constant(0.05), server())
    fresh = m.federated(problem, kept.x[0], cohorts[1:], 4, m.Constant(0.05), server())
    assert np.abs(kept.x[1] - fresh.x[0]).max() > 1e-3
