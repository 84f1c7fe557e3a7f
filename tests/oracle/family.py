"""More methods as plain loops, one client at a time, float64, from the papers' formulas.

Called like those of `oracle.methods`, with the same common arguments. Besides the iterates, `trace`
has `server_step` (what the server's move is multiplied by) and `lr` (the client step) where it is
one number, and `memory` what the server and the clients keep after the last round.

A gradient `g` is the minibatch's, clipped, then with the weight decay added. A full gradient is
over all rows of the client, with the decay and without the clip. A round's mean is weighted, the
weights summing to 1 over the cohort; a change of a mean over the population counts absent clients
as 0. Where a method looks at all clients before the first round, `batch` is asked for round -1.
"""

import numpy as np

from oracle.methods import (
    Average,
    Constant,
    Run,
    factor,
    federated,
    minibatch_gradient,
    square,
)


class Setting:
    """Weights, steps, batches and gradients; collects what a run returns."""

    def __init__(
        self,
        problem,
        x0,
        cohorts,
        steps,
        *,
        weights="uniform",
        batch=None,
        schedule=(),
        decay=0.0,
        clip=None,
    ):
        N = problem.clients
        self.problem, self.cohorts, self.batch, self.schedule = problem, cohorts, batch, schedule
        self.decay, self.clip = decay, clip
        self.clients, self.everyone = N, range(N)
        self.K = [steps] * N if isinstance(steps, int) else list(steps)
        self.mean_K = sum(self.K) / N
        self.T = len(cohorts)
        sizes = [1] * N if weights == "uniform" else problem.sizes
        assert weights in ("uniform", "samples")
        self.population = [n / sum(sizes) for n in sizes]
        self.x0 = np.array(x0, dtype=np.float64)
        self.x, self.trace = [], []

    def rounds(self):
        for t, ids in enumerate(self.cohorts):
            yield t, [int(i) for i in ids], factor(self.schedule, t, self.T)

    def mean(self, ids, of):
        """Mean over a cohort of the number or vector of(i)."""
        total = sum(self.population[i] for i in ids)
        return sum(self.population[i] / total * of(i) for i in ids)

    def change(self, ids, of):
        """The change of a population mean when only those of the cohort change, by of(i)."""
        return sum(self.population[i] * of(i) for i in ids)

    def rows(self, t, i, k):
        return None if self.batch is None else self.batch(t, i, k)

    def g(self, t, i, k, y):
        return minibatch_gradient(self.problem, i, y, self.rows(t, i, k), self.decay, self.clip)

    def full(self, i, x):
        return self.problem.grad(i, x) + self.decay * x

    def record(self, x, **scalars):
        self.x.append(x.copy())
        self.trace.append({name: float(value) for name, value in scalars.items()})

    def done(self, **memory):
        return Run(self.x, self.trace, memory)


# Server rules after plain local steps: FedOpt, FedAMS, FedDuA.


class FedOpt:
    """m = b1 m + (1-b1) dbar, x += server_lr m / (sqrt(s) + eps), no bias correction.

    s starts at eps^2. Adagrad: s += dbar^2. Adam: s = b2 s + (1-b2) dbar^2.
    Yogi: s -= (1-b2) dbar^2 sign(s - dbar^2); `margin` is the narrowest of those signs.
    """

    def __init__(self, kind, server_lr, beta1, beta2, eps, s0):
        self.kind, self.server_lr, self.beta1, self.beta2 = kind, server_lr, beta1, beta2
        self.eps, self.m, self.s = eps, 0.0, eps**2 if s0 is None else s0
        self.margin = np.inf

    def __call__(self, x, dbar, q):
        self.m = self.beta1 * self.m + (1 - self.beta1) * dbar
        if self.kind == "adagrad":
            self.s = self.s + dbar**2
        elif self.kind == "adam":
            self.s = self.beta2 * self.s + (1 - self.beta2) * dbar**2
        else:
            assert self.kind == "yogi"
            self.margin = min(self.margin, np.abs(self.s - dbar**2).min())
            self.s = self.s - (1 - self.beta2) * dbar**2 * np.sign(self.s - dbar**2)
        return x + self.server_lr * self.m / (np.sqrt(self.s) + self.eps), self.server_lr


def fedopt(kind, problem, x0, cohorts, steps, lr, server_lr, beta1, beta2, eps, s0, common):
    server = FedOpt(kind, server_lr, beta1, beta2, eps, s0)
    run = federated(problem, x0, cohorts, steps, Constant(lr), server, **common)
    run.trace[-1]["margin"] = server.margin
    return Run(run.x, run.trace, {"m": server.m, "s": server.s})


def fedadagrad(
    problem, x0, cohorts, steps, *, lr=0.1, server_lr=0.01, beta1=0.0, eps=1e-3, s0=None, **common
):
    return fedopt(
        "adagrad", problem, x0, cohorts, steps, lr, server_lr, beta1, None, eps, s0, common
    )


def fedadam(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    server_lr=0.01,
    beta1=0.9,
    beta2=0.99,
    eps=1e-3,
    s0=None,
    **common,
):
    return fedopt("adam", problem, x0, cohorts, steps, lr, server_lr, beta1, beta2, eps, s0, common)


def fedyogi(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    server_lr=0.01,
    beta1=0.9,
    beta2=0.99,
    eps=1e-3,
    s0=None,
    **common,
):
    return fedopt("yogi", problem, x0, cohorts, steps, lr, server_lr, beta1, beta2, eps, s0, common)


class FedAMS:
    """Adam's m and s; shat = max(shat, s, eps), x += server_lr m / sqrt(shat)."""

    def __init__(self, server_lr=0.01, beta1=0.9, beta2=0.99, eps=1e-3):
        self.server_lr, self.beta1, self.beta2, self.eps = server_lr, beta1, beta2, eps
        self.m, self.s, self.shat = 0.0, 0.0, 0.0

    def __call__(self, x, dbar, q):
        self.m = self.beta1 * self.m + (1 - self.beta1) * dbar
        self.s = self.beta2 * self.s + (1 - self.beta2) * dbar**2
        self.shat = np.maximum(np.maximum(self.shat, self.s), self.eps)
        return x + self.server_lr * self.m / np.sqrt(self.shat), self.server_lr


def fedams(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    server_lr=0.1,
    beta1=0.9,
    beta2=0.99,
    eps=1e-3,
    **common,
):
    server = FedAMS(server_lr, beta1, beta2, eps)
    run = federated(problem, x0, cohorts, steps, Constant(lr), server, **common)
    return Run(run.x, run.trace, {"m": server.m, "s": server.s, "shat": server.shat})


class Quadratic:
    """psi = |x|^2 / 2."""

    def dual(self, x):
        return x

    def primal(self, theta):
        return theta


class Entropy:
    """psi = sum x log x - x, on x > 0."""

    def dual(self, x):
        assert (x > 0).all(), "negative entropy is for positive parameters"
        return np.log(x)

    def primal(self, theta):
        with np.errstate(over="ignore"):
            return np.exp(theta)


class PNorm:
    """psi = |x|_p^2 / 2, whose conjugate is |theta|_r^2 / 2 with 1/p + 1/r = 1."""

    def __init__(self, p=1.5):
        self.p = p

    @staticmethod
    def gradient(x, p):
        norm = (np.abs(x) ** p).sum() ** (1 / p)
        return (
            np.zeros_like(x) if norm == 0 else np.sign(x) * np.abs(x) ** (p - 1) * norm ** (2 - p)
        )

    def dual(self, x):
        return self.gradient(x, self.p)

    def primal(self, theta):
        return self.gradient(theta, self.p / (self.p - 1))


def mirror_step(mirror, x, v, m):
    """The eta with <v, x(eta) - x> = m, and x(eta) = grad phi(grad psi(x) + eta v)."""
    if m == 0 or not v.any():
        return x, 0.0
    theta = mirror.dual(x)

    def gain(eta):
        # A coordinate may overflow on the way up: that is above any m.
        return float(np.dot(v, mirror.primal(theta + eta * v) - x))

    high = 1.0
    while gain(high) < m:
        high *= 2
        if high > 2.0**60:
            return mirror.primal(theta + v), 1.0  # no solution: the plain step
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if gain(middle) < m:
            low = middle
        else:
            high = middle
    eta = (low + high) / 2
    return mirror.primal(theta + eta * v), eta


class FedDuA:
    """v = b1 v + (1-b1) dbar, m = (b1/2) m + ((1-b1)/2) q, then the mirror step."""

    def __init__(self, mirror, beta1=0.0):
        self.mirror, self.beta1, self.v, self.m = mirror, beta1, 0.0, 0.0

    def __call__(self, x, dbar, q):
        self.v = self.beta1 * self.v + (1 - self.beta1) * dbar
        self.m = self.beta1 / 2 * self.m + (1 - self.beta1) / 2 * q
        return mirror_step(self.mirror, x, self.v, self.m)


def feddua(problem, x0, cohorts, steps, *, lr=0.1, mirror=None, beta1=0.0, **common):
    server = FedDuA(Quadratic() if mirror is None else mirror, beta1)
    run = federated(problem, x0, cohorts, steps, Constant(lr), server, **common)
    return Run(run.x, run.trace, {"v": server.v, "m": server.m})


# Client steps: FedSPS, AdaAlter.


class Polyak:
    """eta = min((phi(y) - lower) / (c |d|^2), max_lr), on the minibatch of d."""

    def __init__(self, c=0.5, max_lr=1.0, lower=0.0):
        self.c, self.max_lr, self.lower = c, max_lr, lower
        self.taken = []

    def begin(self, scale):
        assert scale == 1.0, "it sets its own step; no schedule"

    def move(self, y, d, phi, share):
        if square(d) == 0:
            return y
        eta = min(max(phi(y) - self.lower, 0.0) / (self.c * square(d)), self.max_lr)
        self.taken.append(eta)
        return y - eta * d


def fedsps(problem, x0, cohorts, steps, *, c=0.5, max_lr=1.0, lower=0.0, server_lr=1.0, **common):
    step = Polyak(c, max_lr, lower)
    run = federated(problem, x0, cohorts, steps, step, Average(server_lr), **common)
    return Run(run.x, run.trace, {"taken": step.taken})


def adaalter(problem, x0, cohorts, steps, *, lr=0.5, eps=1.0, b0=1.0, **common):
    """Local AdaAlter: y -= lr g / sqrt(B2 + k eps^2), k = 1.. in the round; B2 += mean sum g^2."""
    at = Setting(problem, x0, cohorts, steps, **common)
    x, B2 = at.x0, np.full_like(at.x0, b0**2)
    for t, ids, scale in at.rounds():
        delta, squares = {}, {}
        for i in ids:
            y, squares[i] = x, np.zeros_like(x)
            for k in range(at.K[i]):
                g = at.g(t, i, k, y)
                y = y - lr * scale * g / np.sqrt(B2 + (k + 1) * eps**2)
                squares[i] = squares[i] + g**2
            delta[i] = y - x
        x = x + at.mean(ids, delta.get)
        B2 = B2 + at.mean(ids, squares.get)
        at.record(x, server_step=1.0, lr=lr * scale)
    return at.done(B2=B2)


# Proximal points with extrapolation.


def exact_prox(problem, i, x, mu, decay=0.0):
    """argmin f_i(y) + (decay/2) |y|^2 + (mu/2) |y - x|^2.

    Newton with the Hessian from differences of the gradient, halved until the slope shrinks, to
    rounding.
    """

    def slope(y):
        return problem.grad(i, y) + decay * y + mu * (y - x)

    y = x
    while square(slope(y)) > 1e-28 * (1 + square(y)):
        columns = []
        for h in 1e-5 * np.eye(len(y)):
            columns.append((slope(y + h) - slope(y - h)) / 2e-5)
        move = np.linalg.solve(np.array(columns).T, slope(y))
        while square(slope(y - move)) >= square(slope(y)):
            move = move / 2
            if square(move) < 1e-30 * (1 + square(y)):
                return y
        y = y - move
    return y


def fedexprox(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    mu=0.1,
    extrapolation="grads",
    inf=0.0,
    solver="steps",
    **common,
):
    """x += a (mean prox - x); a a constant, or GraDS, or StoPS.

    GraDS: a = mean |delta_i|^2 / |dbar|^2. StoPS: a = mean (M_i - inf) / (mu |dbar|^2), with the
    envelope M_i = f_i(y) + (mu/2) |y - x|^2 at x.
    """
    at = Setting(problem, x0, cohorts, steps, **common)
    x = at.x0
    for t, ids, scale in at.rounds():
        delta, envelope = {}, {}
        for i in ids:
            y = x
            if solver == "exact":
                y = exact_prox(problem, i, x, mu, at.decay)
            else:
                assert solver == "steps"
                for k in range(at.K[i]):
                    y = y - lr * scale * (at.g(t, i, k, y) + mu * (y - x))
            delta[i] = y - x
            envelope[i] = problem.value(i, y) + mu / 2 * square(delta[i])
        dbar = at.mean(ids, delta.get)
        if square(dbar) == 0:
            a = 1.0
        elif extrapolation == "grads":
            a = at.mean(ids, lambda i, delta=delta: square(delta[i])) / square(dbar)
        elif extrapolation == "stops":
            a = (at.mean(ids, envelope.get) - inf) / (mu * square(dbar))
        else:
            a = extrapolation
        x = x + a * dbar
        at.record(x, server_step=a)
    return at.done()


# Directions: FedLin, Mime, momentum and control variates.


def fedlin(problem, x0, cohorts, steps, *, lr=0.1, balanced=True, **common):
    """y -= eta_i (g(y) - grad f_i(x) + G), G = mean grad f_i(x); eta_i = lr K / K_i if balanced."""
    at = Setting(problem, x0, cohorts, steps, **common)
    x = at.x0
    for t, ids, scale in at.rounds():
        own = {i: at.full(i, x) for i in ids}
        G = at.mean(ids, own.get)
        delta = {}
        for i in ids:
            rate = lr * scale * (at.mean_K / at.K[i] if balanced else 1.0)
            y = x
            for k in range(at.K[i]):
                y = y - rate * (at.g(t, i, k, y) - own[i] + G)
            delta[i] = y - x
        x = x + at.mean(ids, delta.get)
        at.record(x, server_step=1.0)
    return at.done()


def mime_family(problem, x0, cohorts, steps, corrected, lr, momentum, server_lr, common):
    at = Setting(problem, x0, cohorts, steps, **common)
    x, m = at.x0, np.zeros_like(at.x0)
    for t, ids, scale in at.rounds():
        G = at.mean(ids, lambda i, x=x: at.full(i, x))
        delta = {}
        for i in ids:
            y = x
            for k in range(at.K[i]):
                d = at.g(t, i, k, y)
                if corrected:
                    d = d - at.g(t, i, k, x) + G
                y = y - lr * scale * ((1 - momentum) * d + momentum * m)
            delta[i] = y - x
        x = x + server_lr * at.mean(ids, delta.get)
        m = momentum * m + (1 - momentum) * G
        at.record(x, server_step=server_lr, lr=lr * scale)
    return at.done(m=m)


def mime(problem, x0, cohorts, steps, *, lr=0.1, momentum=0.9, server_lr=1.0, **common):
    """The same-batch correction g(y) - g(x) + G, and momentum frozen within the round."""
    return mime_family(problem, x0, cohorts, steps, True, lr, momentum, server_lr, common)


def mimelite(problem, x0, cohorts, steps, *, lr=0.1, momentum=0.9, server_lr=1.0, **common):
    """Mime without the correction."""
    return mime_family(problem, x0, cohorts, steps, False, lr, momentum, server_lr, common)


def cheng(problem, x0, cohorts, steps, controlled, lr, beta, server_lr, common):
    at = Setting(problem, x0, cohorts, steps, **common)
    x, p, c = at.x0, np.zeros_like(at.x0), np.zeros_like(at.x0)
    own = np.zeros((at.clients, len(x)))
    for t, ids, scale in at.rounds():
        delta, change = {}, {}
        for i in ids:
            y, total = x, np.zeros_like(x)
            for k in range(at.K[i]):
                g = at.g(t, i, k, y)
                total = total + g
                d = g - own[i] + c if controlled else g
                y = y - lr * scale * (beta * d + (1 - beta) * p)
            delta[i], change[i] = y - x, total / at.K[i] - own[i]
        dbar = at.mean(ids, delta.get)
        p = -dbar / (lr * scale * at.mean_K)
        x = x + server_lr * dbar
        if controlled:
            c = c + at.change(ids, change.get)
            for i in ids:
                own[i] = own[i] + change[i]
        at.record(x, server_step=server_lr, lr=lr * scale)
    return at.done(p=p, c=c, own=own)


def fedavgcm(problem, x0, cohorts, steps, *, lr=0.1, beta=0.1, server_lr=1.0, **common):
    """FedAvg-M of Cheng et al.: y -= lr (beta g + (1-beta) p), p = -dbar / (lr K)."""
    return cheng(problem, x0, cohorts, steps, False, lr, beta, server_lr, common)


def scaffoldm(problem, x0, cohorts, steps, *, lr=0.1, beta=0.1, server_lr=1.0, **common):
    """SCAFFOLD-M: y -= lr (beta (g - c_i + c) + (1-beta) p), c_i+ the mean local gradient."""
    return cheng(problem, x0, cohorts, steps, True, lr, beta, server_lr, common)


def padamfed(
    problem,
    x0,
    cohorts,
    steps,
    *,
    scale=1.0,
    beta=None,
    lr=None,
    server_lr=None,
    variance_reduced=False,
    **common,
):
    """Steps of length eta along u; the server moves gamma / (eta K) times the mean move.

    u = b (g(y) - c_i) + w, w = b c + (1-b) p; variance reduced, with the x of the round before:
    u = g(y) - (1-b) g(x_before) - b c_i + w. All clients give their c_i at x0 first.
    """
    at = Setting(problem, x0, cohorts, steps, **common)
    K, T, S = at.mean_K, at.T, len(cohorts[0])
    if variance_reduced:
        b, eta, gamma = (S * K) ** (1 / 3) / T ** (2 / 3), 1 / (K * T), (S * K / T**2) ** (1 / 3)
    else:
        b, eta, gamma = (S * K / T) ** 0.5, 1 / (K * T**0.5), (S * K / T**3) ** 0.25
    b = min(1.0, b) if beta is None else beta
    eta = scale * eta if lr is None else lr
    gamma = scale * gamma if server_lr is None else server_lr

    x = before = at.x0
    own = np.array([np.mean([at.g(-1, i, k, x) for k in range(at.K[i])], 0) for i in at.everyone])
    p = c = at.mean(at.everyone, lambda i: own[i])
    for t, ids, f in at.rounds():
        w = b * c + (1 - b) * p
        delta, change = {}, {}
        for i in ids:
            y, total = x, np.zeros_like(x)
            for k in range(at.K[i]):
                g = at.g(t, i, k, y)
                total = total + g
                if variance_reduced:
                    u = g - (1 - b) * at.g(t, i, k, before) - b * own[i] + w
                else:
                    u = b * (g - own[i]) + w
                if u.any():
                    y = y - eta * f * u / np.sqrt(square(u))
            delta[i], change[i] = y - x, total / at.K[i] - own[i]
        before = x
        x = x + gamma / (eta * f * K) * at.mean(ids, delta.get)
        p = b * (at.mean(ids, change.get) + c) + (1 - b) * p
        c = c + at.change(ids, change.get)
        for i in ids:
            own[i] = own[i] + change[i]
        at.record(x, server_step=gamma / (eta * f * K), lr=eta * f)
    return at.done(c=c, p=p, own=own)
