"""The oracles of `oracle.family` checked against what the papers say of them; no package needed."""

import inspect

import numpy as np
import pytest

from oracle import cases, family, family_cases, problems
from oracle import methods as m
from oracle.problems import close


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


class Scaled:
    """The same problem with every loss multiplied by a."""

    def __init__(self, problem, a):
        self.problem, self.a = problem, a
        self.clients, self.sizes, self.d = problem.clients, problem.sizes, problem.d

    def value(self, i, w, rows=None):
        return self.a * self.problem.value(i, w, rows)

    def grad(self, i, w, rows=None):
        return self.a * self.problem.grad(i, w, rows)


def everyone(problem, rounds):
    return [range(problem.clients)] * rounds


def some(problem, rounds, size=3, seed=0):
    random = np.random.default_rng(seed)
    return [random.choice(problem.clients, size, replace=False) for _ in range(rounds)]


def pairs(problem, seed=0):
    """Two rows of the client, others in every round and step."""

    def batch(t, i, k):
        random = np.random.default_rng([seed, t + 1, i, k])
        return random.choice(problem.sizes[i], 2, replace=False)

    return batch


def mean_gradient(problem, x):
    return sum(problem.grad(i, x) for i in range(problem.clients)) / problem.clients


def minimum():
    """Least squares and where its mean loss is least."""
    problem = problems.least_squares()
    hessian = sum(x.T @ x / len(y) for x, y in problem.parts)
    right = sum(x.T @ y / len(y) for x, y in problem.parts)
    return problem, np.linalg.solve(hessian, right)


FIRST, SECOND = np.array([0.3, -0.2, 0.0]), np.array([-0.1, 0.4, 0.2])


@pytest.mark.parametrize(
    ("kind", "second_moment"),
    [
        ("adagrad", 0.01 + FIRST**2 + SECOND**2),
        ("adam", 0.8 * (0.8 * 0.01 + 0.2 * FIRST**2) + 0.2 * SECOND**2),
        # s: .01 -> grows on (.09, .04), stays on 0 -> (.028, .018, .01), then (.01, .16, .04)
        ("yogi", np.array([0.028 - 0.002, 0.018 + 0.032, 0.01 + 0.008])),
    ],
)
def test_fedopt_by_hand(kind, second_moment):
    server = family.FedOpt(kind, 0.7, 0.6, 0.8, 0.1, None)
    x, step = server(np.zeros(3), FIRST, None)
    assert step == 0.7
    x, _ = server(np.zeros(3), SECOND, None)
    close(server.s, second_moment)
    close(x, 0.7 * (0.6 * 0.4 * FIRST + 0.4 * SECOND) / (np.sqrt(second_moment) + 0.1))


def test_yogi_with_equal_moments_does_not_move():
    server = family.FedOpt("yogi", 1.0, 0.0, 0.9, 0.1, 0.25)
    server(np.zeros(2), np.array([0.5, -0.5]), None)
    close(server.s, 0.25)
    assert server.margin == 0


def test_fedams_by_hand():
    server = family.FedAMS(server_lr=0.5, beta1=0.0, beta2=0.5, eps=0.01)
    x, _ = server(np.zeros(3), FIRST, None)
    floor = np.array([0.045, 0.02, 0.01])  # the last is the floor, not 0
    close(x, 0.5 * FIRST / np.sqrt(floor))
    x, _ = server(np.zeros(3), SECOND, None)
    close(server.s, 0.25 * FIRST**2 + 0.5 * SECOND**2)
    close(server.shat, [0.045, 0.09, 0.02])  # the first remembers
    close(x, 0.5 * SECOND / np.sqrt(server.shat))


@pytest.mark.parametrize("method", [family.fedadagrad, family.fedadam, family.fedyogi])
def test_fedopt_with_a_huge_eps_is_momentum(problem, method):
    x0, cohorts, eps = problems.start(problem), some(problem, 5), 1e9
    run = method(problem, x0, cohorts, 3, lr=0.05, server_lr=eps, beta1=0.5, eps=eps, s0=0.0)
    heavy = m.fedavgm(problem, x0, cohorts, 3, lr=0.05, server_lr=0.5, momentum=0.5)
    close(run.x, heavy.x, 1e-8)


MIRRORS = {
    "quadratic": family.Quadratic(),
    "entropy": family.Entropy(),
    "pnorm": family.PNorm(),
    "pnorm-1.2": family.PNorm(p=1.2),
}
POTENTIALS = {
    "quadratic": lambda x: x @ x / 2,
    "entropy": lambda x: (x * np.log(x) - x).sum(),
    "pnorm": lambda x: (np.abs(x) ** 1.5).sum() ** (2 / 1.5) / 2,
    "pnorm-1.2": lambda x: (np.abs(x) ** 1.2).sum() ** (2 / 1.2) / 2,
}


@pytest.mark.parametrize("name", MIRRORS)
def test_mirror_maps_are_gradients_and_invert(name):
    mirror, potential = MIRRORS[name], POTENTIALS[name]
    x = np.array([0.7, 0.2, 1.9, 0.4])
    if name != "entropy":
        x[1:3] *= -1
    slope = [(potential(x + h) - potential(x - h)) / 2e-6 for h in 1e-6 * np.eye(4)]
    close(mirror.dual(x), slope, 1e-7)
    close(mirror.primal(mirror.dual(x)), x)


@pytest.mark.parametrize("name", MIRRORS)
@pytest.mark.parametrize("beta1", [0.0, 0.6])
def test_feddua_moves_by_m_along_v(problem, name, beta1):
    random = np.random.default_rng(0)
    x = np.abs(problems.start(problem)) + 0.5
    server = family.FedDuA(MIRRORS[name], beta1)
    for _ in range(6):
        moves = 0.3 * random.normal(size=(3, problem.d))
        q = (moves**2).sum(1).mean()
        new, eta = server(x, moves.mean(0), q)
        close(server.v @ (new - x), server.m, 1e-10)
        assert eta > 0
        x = new


def test_feddua_quadratic_is_fedexp_without_clip(problem):
    x0, cohorts = problems.start(problem), some(problem, 6)
    run = family.feddua(problem, x0, cohorts, 4, lr=0.05)
    plain = m.fedexpm(problem, x0, cohorts, 4, lr=0.05, eps=0.0, momentum=0.0)
    close(run.x, plain.x)
    close([row["server_step"] for row in run.trace], [row["server_step"] for row in plain.trace])
    assert min(row["server_step"] for row in run.trace) < 1
    same = family.feddua(problem, x0, cohorts, 4, lr=0.05, mirror=family.PNorm(p=2.0))
    close(same.x, run.x, 1e-10)


def test_feddua_quadratic_with_momentum_in_closed_form():
    server = family.FedDuA(family.Quadratic(), 0.6)
    x, _ = server(np.zeros(3), FIRST, 0.5)
    close(x, 0.1 / (0.16 * FIRST @ FIRST) * 0.4 * FIRST)
    x, _ = server(np.zeros(3), SECOND, 0.3)
    v = 0.24 * FIRST + 0.4 * SECOND
    close(x, (0.3 * 0.1 + 0.2 * 0.3) / (v @ v) * v)


def test_feddua_corner_cases():
    x = np.array([0.5, 2.0])
    for v, half in ((np.zeros(2), 0.3), (FIRST[:2], 0.0)):
        new, eta = family.mirror_step(family.PNorm(), x, v, half)
        close(new, x)
        assert eta == 0
    # x exp(eta v) with v < 0 can gain at most <|v|, x> = 2.5
    down = -np.ones(2)
    new, eta = family.mirror_step(family.Entropy(), x, down, 2.4)
    close(down @ (new - x), 2.4)
    new, eta = family.mirror_step(family.Entropy(), x, down, 2.6)
    assert eta == 1
    close(new, x * np.exp(down))


def parabola(a):
    """One client, f = a w^2 / 2."""
    return problems.LeastSquares([([[np.sqrt(a / 2)]], [0.0])])


@pytest.mark.parametrize("a", [0.1, 3.0, 80.0])
def test_fedsps_is_done_in_one_step_on_a_parabola(a):
    run = family.fedsps(parabola(a), np.array([1.7]), [[0]], 1, max_lr=np.inf)
    close(run.x[0], 0.0, 1e-14)
    slow = family.fedsps(parabola(a), np.array([1.7]), [[0]], 1, c=2.0, max_lr=np.inf)
    close(slow.x[0], 0.75 * 1.7)  # a quarter of the way: eta = 1 / (4 a)


def test_fedsps_steps_lie_between_the_papers_bounds():
    """1 / (2 c L) <= eta <= max_lr, both met, L of each client."""
    problem = problems.least_squares()
    x0 = problems.start(problem)
    met = 0
    for i, (x, y) in enumerate(problem.parts):
        smoothness = 2 * np.linalg.eigvalsh(x.T @ x / len(y))[-1]
        taken = family.fedsps(problem, x0, [[i]] * 3, 4, max_lr=0.4).memory["taken"]
        assert min(taken) >= min(1 / smoothness, 0.4)
        assert max(taken) <= 0.4
        met += 0.4 in taken and min(taken) < 0.4
    assert met > 0


def test_fedsps_limits(problem):
    x0, cohorts = problems.start(problem), some(problem, 4)
    short = family.fedsps(problem, x0, cohorts, 3, max_lr=0.02)
    close(short.x, m.fedavg(problem, x0, cohorts, 3, lr=0.02).x)
    stuck = family.fedsps(problem, x0, cohorts, 3, lower=1e6)
    close(stuck.x[-1], x0)


def test_adaalter_in_the_papers_form(problem):
    """Every worker keeps A_i, the sum with its own squares; after the round both are means."""
    x, batch = problems.start(problem), pairs(problem)
    B2 = np.full(problem.d, 0.7**2)
    cohorts = some(problem, 4)
    run = family.adaalter(problem, x, cohorts, 3, lr=0.3, eps=0.2, b0=0.7, batch=batch)
    for t, (got, ids) in enumerate(zip(run.x, cohorts, strict=True)):
        y, A2 = dict.fromkeys(ids, x), dict.fromkeys(ids, B2)
        for k in (1, 2, 3):
            for i in ids:
                g = problem.grad(i, y[i], batch(t, i, k - 1))
                y[i] = y[i] - 0.3 * g / np.sqrt(B2 + k * 0.04)
                A2[i] = A2[i] + g * g
        x, B2 = np.mean(list(y.values()), 0), np.mean(list(A2.values()), 0)
        close(got, x)
    close(run.memory["B2"], B2)


def test_adaalter_limits(problem):
    x0, cohorts = problems.start(problem), some(problem, 4)
    flat = family.adaalter(problem, x0, cohorts, 3, lr=0.05e6, b0=1e6)
    close(flat.x, m.fedavg(problem, x0, cohorts, 3, lr=0.05).x, 1e-9)


def test_fedexprox_extrapolations(problem):
    x0, cohorts = problems.start(problem), some(problem, 6)
    run = family.fedexprox(problem, x0, cohorts, 4, lr=0.05, mu=0.8)
    assert min(row["server_step"] for row in run.trace) >= 1
    alone = family.fedexprox(problem, x0, [[2]] * 3, 4, lr=0.05, mu=0.8)
    close([row["server_step"] for row in alone.trace], 1.0)
    plain = family.fedexprox(problem, x0, cohorts, 4, lr=0.05, mu=0.8, extrapolation=1.0)
    prox = m.fedprox(problem, x0, cohorts, 4, lr=0.05, mu=0.8)
    close(plain.x, prox.x)
    exp = m.federated(problem, x0, cohorts[:1], 4, m.Constant(0.05), m.FedExPM(0.0, 0.0), mu=0.8)
    close(run.trace[0]["server_step"], 2 * exp.trace[0]["server_step"])


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_exact_prox_is_stationary_and_the_limit_of_many_steps(problem, weight):
    x = 2 * problems.start(problem)
    for i in (0, 4):
        y = family.exact_prox(problem, i, x, 0.5, weight)
        close(problem.grad(i, y) + weight * y + 0.5 * (y - x), 0.0)
    near = family.fedexprox(
        problem, x, [[0, 4]], 300, lr=0.1, mu=0.5, extrapolation=1.0, decay=weight
    )
    exact = family.fedexprox(
        problem, x, [[0, 4]], 1, mu=0.5, extrapolation=1.0, solver="exact", decay=weight
    )
    close(near.x, exact.x, 1e-6)


def test_exact_prox_of_a_quadratic():
    problem = problems.least_squares()
    x0 = problems.start(problem)
    for i, (x, y) in enumerate(problem.parts):
        A, b = 2 * x.T @ x / len(y), 2 * x.T @ y / len(y)
        solution = np.linalg.solve(A + 0.7 * np.eye(4), b + 0.7 * x0)
        close(family.exact_prox(problem, i, x0, 0.7), solution)


def test_stops_is_the_ratio_of_the_paper():
    """gamma = 1/mu: a = mean (M_i - inf) / (gamma |mean grad M_i|^2), by differences of M_i."""
    problem, mu = problems.least_squares(), 1.5
    x0, ids = problems.start(problem), [1, 3, 4]
    gamma = 1 / mu

    def envelope(i, x):
        y = family.exact_prox(problem, i, x, mu)
        return problem.value(i, y) + mu / 2 * (y - x) @ (y - x)

    step = 1e-5 * np.eye(4)
    grads = [[(envelope(i, x0 + h) - envelope(i, x0 - h)) / 2e-5 for h in step] for i in ids]
    mean = np.mean(grads, 0)
    gap = np.mean([envelope(i, x0) for i in ids]) - 0.1
    run = family.fedexprox(
        problem, x0, [ids], 1, mu=mu, extrapolation="stops", inf=0.1, solver="exact"
    )
    close(run.trace[0]["server_step"], gap / (gamma * mean @ mean), 1e-7)


@pytest.mark.parametrize(("extrapolation", "least"), [("grads", 1.0), ("stops", 0.5)])
def test_extrapolated_prox_under_interpolation(extrapolation, least):
    """Both clients of the toy are solved at (3, 0): every round comes nearer, and inf M_i = 0."""
    problem, x0 = problems.toy(), np.array([0.24, 1.0])

    def distances(extrapolation):
        run = family.fedexprox(
            problem,
            x0,
            everyone(problem, 40),
            1,
            mu=1.0,
            extrapolation=extrapolation,
            solver="exact",
        )
        return np.linalg.norm(np.array(run.x) - [3, 0], axis=1), run.trace

    far, trace = distances(extrapolation)
    assert (np.diff(far) < 0).all()
    assert far[-1] < 0.5 * distances(1.0)[0][-1]
    assert min(row["server_step"] for row in trace) >= least


def test_fedlin_and_mime_reach_the_optimum_where_fedavg_does_not():
    problem, optimum = minimum()
    x0, cohorts = problems.start(problem), everyone(problem, 200)
    steps = [1 + i % 4 for i in range(problem.clients)]
    biased = m.fedavg(problem, x0, cohorts, 4, lr=0.05).x[-1]
    assert np.linalg.norm(biased - optimum) > 1e-3
    close(family.fedlin(problem, x0, cohorts, steps, lr=0.05).x[-1], optimum, 1e-4)
    close(family.mime(problem, x0, cohorts, 4, lr=0.05, momentum=0.5).x[-1], optimum, 1e-4)
    lite = family.mimelite(problem, x0, cohorts, 4, lr=0.05, momentum=0.5).x[-1]
    assert np.linalg.norm(lite - optimum) > 1e-3


def test_fedlin_identities(problem):
    x0, cohorts = problems.start(problem), some(problem, 4)
    run = family.fedlin(problem, x0, cohorts, 3, lr=0.05)
    close(run.x, family.mime(problem, x0, cohorts, 3, lr=0.05, momentum=0.0).x)
    close(run.x, family.fedlin(problem, x0, cohorts, 3, lr=0.05, balanced=False).x)
    x = x0
    for got in family.fedlin(problem, x0, everyone(problem, 4), 1, lr=0.05).x:
        x = x - 0.05 * mean_gradient(problem, x)
        close(got, x)
    # Balanced: to first order in lr, every client walks -lr K G.
    steps = [1 + i % 4 for i in range(problem.clients)]
    K, G = np.mean(steps), mean_gradient(problem, x0)
    walked = family.fedlin(problem, x0, everyone(problem, 1), steps, lr=1e-7).x[0] - x0
    close(walked / 1e-7, -K * G, 1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_mime_with_one_step_is_centralised(problem, momentum):
    """On G, whatever the batches: SGD, or SGD with m = b m + (1-b) G read after the step."""
    x = problems.start(problem)
    n = np.array(problem.sizes) / sum(problem.sizes)
    run = family.mime(
        problem,
        x,
        everyone(problem, 5),
        1,
        lr=0.1,
        momentum=momentum,
        weights="samples",
        batch=pairs(problem),
    )
    heavy = np.zeros_like(x)
    for got in run.x:
        G = sum(p * problem.grad(i, x) for i, p in enumerate(n))
        x = x - 0.1 * ((1 - momentum) * G + momentum * heavy)
        heavy = momentum * heavy + (1 - momentum) * G
        close(got, x)
    close(run.memory["m"], heavy)


def test_mime_decays_to_the_full_gradient(problem):
    """One step with weight decay is one on f + (decay/2) |x|^2."""
    x0 = problems.start(problem)
    run = family.mime(problem, x0, everyone(problem, 1), 1, lr=0.1, momentum=0.0, decay=0.3)
    close(run.x[0], x0 - 0.1 * (mean_gradient(problem, x0) + 0.3 * x0))


def test_full_momentum_weight_recovers_the_plain_methods(problem):
    x0, cohorts = problems.start(problem), some(problem, 6)
    steps = [1 + i % 4 for i in range(problem.clients)]
    common = {"lr": 0.05, "server_lr": 0.7, "weights": "samples"}
    plain = m.fedavg(problem, x0, cohorts, steps, **common)
    close(family.fedavgcm(problem, x0, cohorts, steps, beta=1.0, **common).x, plain.x)
    controlled = m.scaffold(problem, x0, cohorts, steps, **common)
    run = family.scaffoldm(problem, x0, cohorts, steps, beta=1.0, **common)
    close(run.x, controlled.x)
    for name in ("c", "own"):
        close(run.memory[name], controlled.memory[name])


@pytest.mark.parametrize("method", [family.fedavgcm, family.scaffoldm])
def test_chengs_momentum_is_the_mean_direction(problem, method):
    """p+ = beta (mean local gradient) + (1-beta) p, when all take part and c is the mean of c_i."""
    x0, beta = problems.start(problem), 0.3
    short, run = (method(problem, x0, everyone(problem, T), 3, lr=0.05, beta=beta) for T in (3, 4))
    p, own = short.memory["p"], short.memory["own"]
    x, c, grads = short.x[-1], own.mean(0), []
    for i in range(problem.clients):
        y = x
        for _ in range(3):
            grads.append(problem.grad(i, y))
            shift = c - own[i] if method is family.scaffoldm else 0.0
            y = y - 0.05 * (beta * (grads[-1] + shift) + (1 - beta) * p)
    close(run.memory["p"], beta * np.mean(grads, 0) + (1 - beta) * p)


CONTROLLED = {
    "scaffoldm": (family.scaffoldm, {"lr": 0.05}),
    "padamfed": (family.padamfed, {"beta": 0.4}),
    "padamfed-vr": (family.padamfed, {"beta": 0.4, "variance_reduced": True}),
}


@pytest.mark.parametrize("name", CONTROLLED)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_c_stays_the_mean_of_c_i(problem, name, weights):
    method, settings = CONTROLLED[name]
    n = np.array(problem.sizes)
    p = n / n.sum() if weights == "samples" else np.full(len(n), 1 / len(n))
    steps = [1 + i % 4 for i in range(problem.clients)]
    x0, cohorts = problems.start(problem), some(problem, 8)
    memory = method(problem, x0, cohorts, steps, weights=weights, **settings).memory
    close(memory["c"], p @ memory["own"])


@pytest.mark.parametrize("variance_reduced", [False, True])
@pytest.mark.parametrize("a", [1e-3, 40.0])
def test_padamfed_ignores_the_scale_of_the_losses(problem, variance_reduced, a):
    x0, cohorts, batch = problems.start(problem), some(problem, 12), pairs(problem)
    run, scaled = (
        family.padamfed(p, x0, cohorts, 2, variance_reduced=variance_reduced, batch=batch)
        for p in (problem, Scaled(problem, a))
    )
    close(scaled.x, run.x, 1e-9)
    for name in ("c", "p", "own"):
        close(scaled.memory[name] / a, run.memory[name], 1e-9)


@pytest.mark.parametrize(
    ("variance_reduced", "beta", "eta", "gamma"),
    [
        (False, np.sqrt(3 * 2 / 24), 1 / (2 * np.sqrt(24)), 6**0.25 / 24**0.75),
        (True, 6 ** (1 / 3) / 24 ** (2 / 3), 1 / 48, 6 ** (1 / 3) / 24 ** (2 / 3)),
    ],
)
def test_padamfed_schedules(problem, variance_reduced, beta, eta, gamma):
    """S = 3, K = 2, T = 24; scale multiplies the step sizes."""
    x0, cohorts = problems.start(problem), some(problem, 24)
    run = family.padamfed(problem, x0, cohorts, 2, variance_reduced=variance_reduced)
    given = family.padamfed(
        problem,
        x0,
        cohorts,
        2,
        beta=beta,
        lr=eta,
        server_lr=gamma,
        variance_reduced=variance_reduced,
    )
    close(run.x, given.x)
    close(run.trace[0]["lr"], eta)
    double = family.padamfed(problem, x0, cohorts, 2, scale=2.0, variance_reduced=variance_reduced)
    given = family.padamfed(
        problem,
        x0,
        cohorts,
        2,
        beta=beta,
        lr=2 * eta,
        server_lr=2 * gamma,
        variance_reduced=variance_reduced,
    )
    close(double.x, given.x)
    assert np.linalg.norm(np.diff([x0, *run.x], axis=0), axis=1).max() <= gamma * (1 + 1e-12)


def test_padamfed_identities(problem):
    x0, batch = problems.start(problem), pairs(problem)
    # b = 1 leaves nothing for the past to correct.
    plain, reduced = (
        family.padamfed(
            problem,
            x0,
            some(problem, 5),
            3,
            beta=1.0,
            lr=0.02,
            server_lr=0.1,
            variance_reduced=variance_reduced,
            batch=batch,
        )
        for variance_reduced in (False, True)
    )
    close(plain.x, reduced.x)
    # The first step is the mean gradient's for everyone, whatever b: c_i is the gradient at x0.
    G = mean_gradient(problem, x0)
    for settings in ({"beta": 0.2}, {"beta": 0.2, "variance_reduced": True}):
        run = family.padamfed(problem, x0, some(problem, 1), 1, server_lr=0.3, **settings)
        close(run.x[0], x0 - 0.3 * G / np.linalg.norm(G))
    # A single step of a single client: a move of exactly gamma.
    alone = family.padamfed(problem, x0, [[2]] * 5, 1, beta=0.3, server_lr=0.07)
    close(np.linalg.norm(np.diff([x0, *alone.x], axis=0), axis=1), 0.07)


def test_padamfed_p_is_the_mean_of_u(problem):
    """In the plain form, over clients and steps, partial participation included."""
    x0, b, eta = problems.start(problem), 0.3, 0.02
    cohorts = some(problem, 5)
    short = family.padamfed(problem, x0, cohorts[:4], 3, beta=b, lr=eta, server_lr=0.1)
    run = family.padamfed(problem, x0, cohorts, 3, beta=b, lr=eta, server_lr=0.1)
    c, p, own = (short.memory[name] for name in ("c", "p", "own"))
    directions = []
    for i in cohorts[4]:
        y = short.x[-1]
        for _ in range(3):
            directions.append(b * (problem.grad(i, y) - own[i] + c) + (1 - b) * p)
            y = y - eta * directions[-1] / np.linalg.norm(directions[-1])
    close(run.memory["p"], np.mean(directions, 0))


@pytest.mark.parametrize("case", family_cases.NAMED)
def test_comparisons_are_well_posed(problem, case):
    """Rounding is not blown up, so 1e-9 is a fair demand, and no run diverges or stands still."""
    name, settings = family_cases.NAMED[case]
    cohorts, x0 = some(problem, cases.ROUNDS, 4), family_cases.start(problem, case)
    run, near = (
        family_cases.oracle(name)(
            problem, point, cohorts, cases.STEPS, weights="samples", **settings
        )
        for point in (x0, x0 * (1 + 1e-14))
    )
    np.testing.assert_allclose(near.x, run.x, rtol=1e-11, atol=1e-12)
    assert np.abs(run.x[-1]).max() < 20
    assert np.abs(run.x[-1] - run.x[-2]).max() > 1e-4


def test_cases_visit_both_sides_of_every_branch(problem):
    cohorts, x0 = some(problem, cases.ROUNDS), problems.start(problem)

    def memory(case):
        name, settings = family_cases.NAMED[case]
        return family_cases.oracle(name)(problem, x0, cohorts, cases.STEPS, **settings).memory

    kept = memory("fedams-all")
    assert (kept["shat"] == 0.02).any()
    assert (kept["shat"] > np.maximum(kept["s"], 0.02)).any()
    taken = np.array(memory("fedsps-all")["taken"])
    assert (taken == 0.5).any()
    assert (taken < 0.5).any()
    name, settings = family_cases.NAMED["fedyogi-all"]
    first = family_cases.oracle(name)(problem, x0, cohorts[:1], cases.STEPS, **settings)
    second = family_cases.oracle(name)(problem, x0, cohorts[:2], cases.STEPS, **settings)
    moved = [first.memory["s"] - settings["s0"], second.memory["s"] - first.memory["s"]]
    assert set(np.sign(moved).ravel()) == {-1, 1}


def default(name, argument):
    return inspect.signature(family_cases.oracle(name)).parameters[argument].default


@pytest.mark.parametrize("case", [case for case in family_cases.NAMED if case.endswith("-all")])
def test_every_argument_shows(problem, case):
    """Left at its default, each of them would be caught by the comparison."""
    name, settings = family_cases.NAMED[case]
    cohorts, x0 = some(problem, cases.ROUNDS), family_cases.start(problem, case)
    steps = [3 + i % 3 for i in range(problem.clients)]
    run = family_cases.oracle(name)(problem, x0, cohorts, steps, **settings)
    for argument in settings:
        other = settings | {argument: default(name, argument)}
        changed = family_cases.oracle(name)(problem, x0, cohorts, steps, **other)
        assert np.abs(changed.x[-1] - run.x[-1]).max() > 1e-6, argument


def test_every_argument_is_changed_somewhere():
    for name in {name for name, _ in family_cases.NAMED.values()}:
        changed = {
            key for n, settings in family_cases.NAMED.values() if n == name for key in settings
        }
        signature = inspect.signature(family_cases.oracle(name)).parameters.values()
        arguments = {p.name for p in signature if p.kind is p.KEYWORD_ONLY}
        assert changed == arguments, name


@pytest.mark.parametrize(
    "case", ["adaalter", "mime", "scaffoldm", "padamfed-vr-all", "fedyogi-all"]
)
def test_order_and_complete_batches_do_not_matter(problem, case):
    name, settings = family_cases.NAMED[case]
    method, x0, cohorts = family_cases.oracle(name), problems.start(problem), some(problem, 4, 5)
    run = method(problem, x0, cohorts, 3, **settings)
    close(method(problem, x0, [ids[::-1] for ids in cohorts], 3, **settings).x, run.x)
    rows = method(
        problem, x0, cohorts, 3, batch=lambda t, i, k: np.arange(problem.sizes[i]), **settings
    )
    close(rows.x, run.x)
