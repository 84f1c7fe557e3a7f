"""Compressed, composite and primal-dual methods as plain loops: one client at a time, float64.

Called like the methods of `oracle.methods`, whose conventions hold here too:

    run = fedmid(problem, x0, cohorts, steps, lr=0.1, penalty=("l1", 0.05))
    run.x       the server's point after every round
    run.trace   "output": the model that is shipped; "margin": the narrowest choice of a compressor
    run.memory  what clients (lists, by client) and server keep after the last round

h is the penalty (see `oracle.penalties`), P_a = prox_{a h}. K is the mean of K_i over all clients.
solver="exact" minimises a quadratic client loss in closed form; "steps" takes K_i gradient steps.
"""

import numpy as np

from oracle.methods import Run, factor, minibatch_gradient
from oracle.penalties import Compressor, layers, prox


class Plan:
    """Who works when, on which rows, with which weight; common to all methods."""

    def __init__(
        self,
        problem,
        cohorts,
        steps,
        *,
        weights="uniform",
        batch=None,
        schedule=(),
        decay=0.0,
        clip=None,
    ):
        self.problem, self.batch, self.decay, self.clip = problem, batch, decay, clip
        self.cohorts = [[int(i) for i in ids] for ids in cohorts]
        self.schedule = schedule
        N = problem.clients
        self.steps = [steps] * N if isinstance(steps, int) else list(steps)
        self.K = sum(self.steps) / N
        n = problem.sizes if weights == "samples" else [1] * N
        assert weights in ("uniform", "samples")
        self.p = [n_i / sum(n) for n_i in n]

    def everyone(self):
        return all(sorted(ids) == list(range(self.problem.clients)) for ids in self.cohorts)

    def rounds(self):
        """Round number, ids, and what the schedule multiplies the client step with."""
        for t, ids in enumerate(self.cohorts):
            yield t, ids, factor(self.schedule, t, len(self.cohorts))

    def fraction(self, ids):
        return sum(self.p[i] for i in ids)

    def mean(self, ids, vectors):
        """Weighted mean over the cohort; vectors by client id."""
        return sum(self.p[i] / self.fraction(ids) * vectors[i] for i in ids)

    def grad(self, t, i, k, y):
        rows = None if self.batch is None else self.batch(t, i, k)
        return minibatch_gradient(self.problem, i, y, rows, self.decay, self.clip)

    def solve(self, solver, t, i, start, lr, linear, mu, anchor, first=0):
        """u ~ argmin f_i(u) + <linear, u> + (mu/2)|u - anchor|^2; `first`: batches used before."""
        if solver == "exact":
            x, y = self.problem.parts[i]
            hessian = 2 * x.T @ x / len(y) + (self.decay + mu) * np.eye(self.problem.d)
            return np.linalg.solve(hessian, 2 * x.T @ y / len(y) - linear + mu * anchor)
        assert solver == "steps"
        u = start.copy()
        for k in range(self.steps[i]):
            u = u - lr * (self.grad(t, i, first + k, u) + linear + mu * (u - anchor))
        return u


def rows(x, N):
    """One copy of x for every client."""
    return [np.array(x, dtype=np.float64) for _ in range(N)]


def zeros(x, N):
    return [np.zeros(len(x)) for _ in range(N)]


def scafcom(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    server_lr=1.0,
    beta=0.1,
    compressor=("topk", 0.05),
    **common,
):
    """v_i^k = beta g + (1-beta) v_i, y -= lr (v_i^k - c_i + c), q_i = C(v_i - c_i)."""
    plan, C = Plan(problem, cohorts, steps, **common), Compressor(compressor, layers(problem))
    x, N = np.array(x0, dtype=np.float64), problem.clients
    v, own, c = zeros(x, N), zeros(x, N), np.zeros_like(x)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        q = {}
        for i in ids:
            y, total = x.copy(), np.zeros_like(x)
            for k in range(plan.steps[i]):
                momentum = beta * plan.grad(t, i, k, y) + (1 - beta) * v[i]
                y = y - lr * scale * (momentum - own[i] + c)
                total = total + momentum
            v[i] = total / plan.steps[i]
            q[i] = C(v[i] - own[i])
            own[i] = own[i] + q[i]
        mean = plan.mean(ids, q)
        x = x - server_lr * lr * scale * plan.K * (mean + c)
        c = c + plan.fraction(ids) * mean
        points.append(x)
        trace.append({"output": x, "margin": C.margin})
    return Run(points, trace, {"v": v, "own": own, "c": c})


class Add:
    def __init__(self, server_lr):
        self.server_lr = server_lr

    def __call__(self, x, qbar):
        return x + self.server_lr * qbar


class AMS:
    """m, s: running means of qbar and qbar^2; x += server_lr m / sqrt(max over time of s + eps)."""

    def __init__(self, server_lr, beta1, beta2, eps):
        self.server_lr, self.beta1, self.beta2, self.eps = server_lr, beta1, beta2, eps
        self.m = self.s = self.top = 0.0

    def __call__(self, x, qbar):
        self.m = self.beta1 * self.m + (1 - self.beta1) * qbar
        self.s = self.beta2 * self.s + (1 - self.beta2) * qbar**2
        self.top = np.maximum(self.top, self.s)
        return x + self.server_lr * self.m / np.sqrt(self.top + self.eps)


def error_feedback(problem, x0, cohorts, steps, server, *, lr, compressor, double=False, **common):
    """q_i = C(delta_i + e_i), e_i += delta_i - q_i; `double`: the server's answer likewise."""
    plan, C = Plan(problem, cohorts, steps, **common), Compressor(compressor, layers(problem))
    x, N = np.array(x0, dtype=np.float64), problem.clients
    e, e_server = zeros(x, N), np.zeros_like(x)
    sent, moved = zeros(x, N), zeros(x, N)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        q = {}
        for i in ids:
            nothing = np.zeros_like(x)
            delta = plan.solve("steps", t, i, x, lr * scale, nothing, 0.0, x) - x
            q[i] = C(delta + e[i])
            e[i] = e[i] + delta - q[i]
            sent[i], moved[i] = sent[i] + q[i], moved[i] + delta
        qbar = plan.mean(ids, q)
        if double:
            answer = C(qbar + e_server)
            e_server = e_server + qbar - answer
            qbar = answer
        x = server(x, qbar)
        points.append(x)
        trace.append({"output": x, "margin": C.margin})
    return Run(points, trace, {"e": e, "sent": sent, "moved": moved, "server": e_server})


def fedefsgd(
    problem, x0, cohorts, steps, *, lr=0.1, server_lr=1.0, compressor=("topk", 0.05), **common
):
    server = Add(server_lr)
    return error_feedback(
        problem, x0, cohorts, steps, server, lr=lr, compressor=compressor, **common
    )


def fedefams(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    server_lr=0.01,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    compressor=("topk", 0.05),
    **common,
):
    server = AMS(server_lr, beta1, beta2, eps)
    return error_feedback(
        problem, x0, cohorts, steps, server, lr=lr, compressor=compressor, **common
    )


def localsgdc(
    problem, x0, cohorts, steps, *, lr=0.1, compressor=("topk", 0.05), double=False, **common
):
    assert Plan(problem, cohorts, steps, **common).everyone()
    more = {"lr": lr, "compressor": compressor, "double": double}
    return error_feedback(problem, x0, cohorts, steps, Add(1.0), **more, **common)


def scaffnew(problem, x0, cohorts, steps, *, lengths, lr=0.1, p=None, **common):
    """lengths[t]: local steps of round t, up to and including the one that communicates."""
    plan = Plan(problem, cohorts, steps, **common)
    assert plan.everyone()
    p = 1 / plan.K if p is None else p
    x, N = np.array(x0, dtype=np.float64), problem.clients
    e, points, trace = zeros(x, N), [], []
    for t, ids, scale in plan.rounds():
        y = {}
        for i in ids:
            y[i] = x.copy()
            for k in range(lengths[t]):
                y[i] = y[i] - lr * scale * (plan.grad(t, i, k, y[i]) + e[i])
        x = plan.mean(ids, y)
        for i in ids:
            e[i] = e[i] - p / (lr * scale) * (x - y[i])
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"e": e})


def fedmid(problem, x0, cohorts, steps, *, lr=0.1, server_lr=1.0, penalty=None, **common):
    """Proximal gradient steps on the clients, one more prox on the server."""
    plan, x = Plan(problem, cohorts, steps, **common), np.array(x0, dtype=np.float64)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        rate, delta = lr * scale, {}
        for i in ids:
            y = x.copy()
            for k in range(plan.steps[i]):
                y = prox(penalty, rate, y - rate * plan.grad(t, i, k, y))
            delta[i] = y - x
        x = prox(penalty, server_lr * rate * plan.K, x + server_lr * plan.mean(ids, delta))
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {})


def fedda(problem, x0, cohorts, steps, *, lr=0.1, server_lr=1.0, penalty=None, **common):
    """FedDualAvg; run.x is the dual point z, the output P_tau(z)."""
    plan, z, tau = Plan(problem, cohorts, steps, **common), np.array(x0, dtype=np.float64), 0.0
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        rate, delta = lr * scale, {}
        for i in ids:
            z_i = z.copy()
            for k in range(plan.steps[i]):
                w = prox(penalty, tau + k * rate, z_i)
                z_i = z_i - rate * plan.grad(t, i, k, w)
            delta[i] = z_i - z
        z = z + server_lr * plan.mean(ids, delta)
        tau = tau + server_lr * rate * plan.K
        points.append(z)
        trace.append({"output": prox(penalty, tau, z)})
    return Run(points, trace, {"tau": tau})


def fastfedda(problem, x0, cohorts, steps, *, lr=0.1, mu=1e-3, penalty=None, **common):
    """w_n = argmin <G, w> + n h(w) + (mu/4) sum_j |w - w_j|^2 + |w - x0|^2 / (2 lr).

    G sums the n gradients so far, X the n points w_j where they were taken; a client adds its own
    as it goes. The server adds K times the mean of the clients' mean gradient and mean point.
    """
    plan = Plan(problem, cohorts, steps, **common)
    assert not plan.schedule, "it sets its own step; no schedule"
    x0 = np.array(x0, dtype=np.float64)
    G, X, n, w = np.zeros_like(x0), np.zeros_like(x0), 0.0, x0

    def point(G, X, n):
        weight = 1 / lr + n * mu / 2
        return prox(penalty, n / weight, (x0 / lr + mu / 2 * X - G) / weight)

    points, trace = [], []
    for t, ids, _ in plan.rounds():
        grads, places = {}, {}
        for i in ids:
            G_i, X_i, w_i = np.zeros_like(x0), np.zeros_like(x0), w
            for k in range(plan.steps[i]):
                G_i = G_i + plan.grad(t, i, k, w_i)
                X_i = X_i + w_i
                w_i = point(G + G_i, X + X_i, n + k + 1)
            grads[i], places[i] = G_i / plan.steps[i], X_i / plan.steps[i]
        G = G + plan.K * plan.mean(ids, grads)
        X = X + plan.K * plan.mean(ids, places)
        n = n + plan.K
        w = point(G, X, n)
        points.append(w)
        trace.append({"output": w})
    return Run(points, trace, {"G": G, "X": X, "n": n})


def za1(problem, x0, cohorts, steps, *, lr=0.1, server_lr=1.0, penalty=None, **common):
    """run.x is the point before the prox, the output P_E(x) with E = server_lr lr K."""
    plan = Plan(problem, cohorts, steps, **common)
    assert plan.everyone()
    x, N = np.array(x0, dtype=np.float64), problem.clients
    own, points, trace = zeros(x, N), [], []
    for t, ids, scale in plan.rounds():
        rate = lr * scale
        E = server_lr * rate * plan.K
        start, delta = prox(penalty, E, x), {}
        for i in ids:
            before, after = start.copy(), start.copy()
            for k in range(plan.steps[i]):
                before = before - rate * (plan.grad(t, i, k, after) + own[i])
                after = prox(penalty, (k + 1) * rate, before)
            delta[i] = before - start
        x = start + server_lr * plan.mean(ids, delta)
        for i in ids:
            own[i] = own[i] + ((start - x) / server_lr + delta[i]) / (rate * plan.K)
        points.append(x)
        trace.append({"output": prox(penalty, E, x)})
    return Run(points, trace, {"own": own})


def feddr(
    problem,
    x0,
    cohorts,
    steps,
    *,
    lr=0.1,
    mu=1.0,
    relax=0.9,
    penalty=None,
    solver="steps",
    **common,
):
    """y_i += relax (x - x_i), x_i ~ prox_{f_i/mu}(y_i) from the last x_i; mirror, mean, prox."""
    plan = Plan(problem, cohorts, steps, **common)
    x, N = np.array(x0, dtype=np.float64), problem.clients
    y, own, hat, tilde = rows(x, N), rows(x, N), rows(x, N), x
    nothing, points, trace = np.zeros_like(x), [], []
    for t, ids, scale in plan.rounds():
        change = {}
        for i in ids:
            y[i] = y[i] + relax * (x - own[i])
            own[i] = plan.solve(solver, t, i, own[i], lr * scale, nothing, mu, y[i])
            reflected = 2 * own[i] - y[i]
            change[i] = reflected - hat[i]
            hat[i] = reflected
        tilde = tilde + plan.fraction(ids) * plan.mean(ids, change)
        x = prox(penalty, 1 / mu, tilde)
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"y": y, "own": own, "hat": hat, "tilde": tilde})


def fedadmm(problem, x0, cohorts, steps, *, lr=0.1, mu=1.0, penalty=None, solver="steps", **common):
    """x_i ~ argmin f_i + <z_i, u - x> + (mu/2)|u - x|^2 from the last x_i, z_i += mu (x_i - x)."""
    plan = Plan(problem, cohorts, steps, **common)
    x, N = np.array(x0, dtype=np.float64), problem.clients
    z, own, hat, tilde = zeros(x, N), rows(x, N), rows(x, N), x
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        change = {}
        for i in ids:
            own[i] = plan.solve(solver, t, i, own[i], lr * scale, z[i], mu, x)
            z[i] = z[i] + mu * (own[i] - x)
            change[i] = own[i] + z[i] / mu - hat[i]
            hat[i] = own[i] + z[i] / mu
        tilde = tilde + plan.fraction(ids) * plan.mean(ids, change)
        x = prox(penalty, 1 / mu, tilde)
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"z": z, "own": own, "hat": hat, "tilde": tilde})


def fedpd(
    problem, x0, cohorts, steps, *, lr=0.1, mu=1.0, skip=0.0, solver="steps", solves=None, **common
):
    """solves[t]: local solves of round t, up to the one after which all talk (1 when skip = 0)."""
    plan = Plan(problem, cohorts, steps, **common)
    assert plan.everyone()
    solves = [1] * len(plan.cohorts) if solves is None else solves
    assert skip > 0 or set(solves) == {1}
    x, N = np.array(x0, dtype=np.float64), problem.clients
    dual, own = zeros(x, N), rows(x, N)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        anchor = dict.fromkeys(ids, x)
        for i in ids:
            for s in range(solves[t]):
                start, first = own[i], s * plan.steps[i]
                own[i] = plan.solve(solver, t, i, start, lr * scale, dual[i], mu, anchor[i], first)
                dual[i] = dual[i] + mu * (own[i] - anchor[i])
                anchor[i] = own[i] + dual[i] / mu
        x = plan.mean(ids, anchor)
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"dual": dual, "own": own})


def feddyn(problem, x0, cohorts, steps, *, lr=0.1, mu=0.01, solver="steps", **common):
    """x_i ~ argmin f_i - <l_i, u> + (mu/2)|u - x|^2 from x, l_i -= mu (x_i - x)."""
    plan = Plan(problem, cohorts, steps, **common)
    x, N = np.array(x0, dtype=np.float64), problem.clients
    dual, mean_dual = zeros(x, N), np.zeros_like(x)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        delta = {}
        for i in ids:
            delta[i] = plan.solve(solver, t, i, x, lr * scale, -dual[i], mu, x) - x
            dual[i] = dual[i] - mu * delta[i]
        move = plan.mean(ids, delta)
        mean_dual = mean_dual - mu * plan.fraction(ids) * move
        x = x + move - mean_dual / mu
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"dual": dual, "mean_dual": mean_dual})


def feddc(problem, x0, cohorts, steps, *, lr=0.1, mu=0.01, control=True, **common):
    """Drifts h_i in the proximal term, SCAFFOLD's controls (option II) beside it.

    y -= lr (g + mu (y - x + h_i) + c - c_i); h_i += delta_i; x += mean delta + mean of all h_i.
    """
    plan = Plan(problem, cohorts, steps, **common)
    x, N = np.array(x0, dtype=np.float64), problem.clients
    drift, mean_drift = zeros(x, N), np.zeros_like(x)
    own, c = zeros(x, N), np.zeros_like(x)
    points, trace = [], []
    for t, ids, scale in plan.rounds():
        delta, change = {}, {}
        for i in ids:
            linear = c - own[i]
            delta[i] = plan.solve("steps", t, i, x, lr * scale, linear, mu, x - drift[i]) - x
            drift[i] = drift[i] + delta[i]
            change[i] = -c - delta[i] / (plan.steps[i] * lr * scale)
            if not control:
                change[i] = np.zeros_like(x)
            own[i] = own[i] + change[i]
        share, move = plan.fraction(ids), plan.mean(ids, delta)
        mean_drift = mean_drift + share * move
        c = c + share * plan.mean(ids, change)
        x = x + move + mean_drift
        points.append(x)
        trace.append({"output": x})
    return Run(points, trace, {"drift": drift, "mean_drift": mean_drift, "own": own, "c": c})
