"""The five papers' own methods with memory or exchanges, as plain loops, from the specification.

Called as the others (`oracle.methods`): `run = fedcanon(problem, x0, cohorts, steps, lr=0.1)`.

    run.x                  where the next round starts from, after every round
    run.memory["output"]   what would be deployed, after every round
    run.trace              the scalars used in that round (lr, mu, server_step) and what came of it

`batch(-1, i, k)` gives the rows of the pass before the first round. A penalty is ("l1", lam),
("l2", lam), ("elastic", lam1, lam2), ("mcp", lam, gamma) or ("scad", lam, a); a compressor is
("topk", ratio) or None. `margin` in a trace is the narrowest comparison so far.
"""

import numpy as np

from oracle.methods import Run, factor, minibatch_gradient, square
from oracle.problems import Softmax


def norm(v):
    return np.sqrt(square(v))


def unit(v):
    length = norm(v)
    return v / length if length > 0 else np.zeros_like(v)


def counts(problem, steps):
    """K_i of every client, and K, their mean over the population."""
    K = [steps] * problem.clients if isinstance(steps, int) else list(steps)
    return K, sum(K) / problem.clients


def shares(problem, weights):
    """Every client's weight in the population."""
    if weights == "uniform":
        return [1 / problem.clients] * problem.clients
    assert weights == "samples"
    return [n / sum(problem.sizes) for n in problem.sizes]


def within(population, ids):
    """The weights of a cohort, summing to 1."""
    total = sum(population[int(i)] for i in ids)
    return {int(i): population[int(i)] / total for i in ids}


# FedProxLoD and FedProxWLoD.


def hessian(problem, i, w):
    x, y = problem.parts[i]
    total = np.zeros((problem.d, problem.d))
    for features in x:
        if not isinstance(problem, Softmax):
            total += 2 * np.outer(features, features)
            continue
        weight, bias = problem.split(w)
        logits = weight @ features + bias
        p = np.exp(logits - logits.max())
        p /= p.sum()
        curve = np.diag(p) - np.outer(p, p)
        inputs = np.append(features, 1.0)
        wide = np.kron(curve, np.outer(inputs, inputs))  # bias last within each class
        order = [
            *(c * len(inputs) + j for c in range(len(p)) for j in range(len(features))),
            *(c * len(inputs) + len(features) for c in range(len(p))),
        ]
        total += wide[np.ix_(order, order)]
    return total / len(y)


def exact_prox(problem, i, a, mu):
    """argmin f_i(y) + (mu/2)|y - a|^2 by Newton's method, halving steps that go up."""

    def value(y):
        return problem.value(i, y) + mu / 2 * square(y - a)

    y, now = a.copy(), value(a)
    for _ in range(100):
        g = problem.grad(i, y) + mu * (y - a)
        move = np.linalg.solve(hessian(problem, i, y) + mu * np.eye(len(y)), g)
        if norm(move) < 1e-8 * (1 + norm(y)):
            return y - move  # the error is squared by every step, so nothing is left of it
        t = 1.0
        while (then := value(y - t * move)) > now:
            t /= 2
        y, now = y - t * move, then
    raise AssertionError("Newton's method did not converge")


def lod(
    problem,
    x0,
    cohorts,
    steps,
    *,
    weighted,
    merge=True,
    global_loss="clients",
    held=None,
    prox_step="implicit",
    r_rel=1e-2,
    mu_init=1.0,
    reading="summed",
    merge_weights="theorem",
    solver="steps",
    weights="uniform",
    batch=None,
    schedule=(),
    decay=0.0,
    clip=None,
):
    """P0: `weighted` is W = 1, WLoD. `held` is the server's own sample, a problem of one client.

    Weight decay is part of every f_i, also where its loss or its gradient is asked for; clipping
    is of the local steps alone.
    """
    assert global_loss in {"clients", "server"}
    assert prox_step in {"implicit", "explicit"}
    assert reading in {"summed", "printed"}
    assert merge_weights in {"theorem", "printed"}
    assert solver in {"steps", "exact"}
    assert solver == "steps" or (not schedule and decay == 0 and clip is None)
    K, K_mean = counts(problem, steps)
    population = shares(problem, weights)

    def rho(r):
        return r**2 if weighted else r

    def omega(r):
        return r**2 if weighted else 1.0

    def value(i, point):
        return problem.value(i, point) + decay / 2 * square(point)

    def grad(i, point):
        return problem.grad(i, point) + decay * point

    x0 = np.array(x0, dtype=np.float64)
    x = x_out = x_best = x0
    from_best = merge and (solver == "exact" or reading == "printed")
    w2, margin = 0.0, np.inf
    r = r_rel * (1 + norm(x0))
    u = (mu_init * rho(r)) ** 2
    mu = np.sqrt(u) / rho(r)
    v = eta = None

    iterates, outputs, trace = [], [], []
    for t, ids in enumerate(cohorts):
        p = within(population, ids)
        if solver == "steps" and t == 0:
            first = sum(p[i] * square(grad(i, x0)) for i in p) + 1e-8
            v = omega(r) * (K_mean if reading == "summed" else 1) * first
            eta = rho(r) / np.sqrt(v)

        a = x_best if from_best else x
        rate = None if eta is None else eta * factor(schedule, t, len(cohorts))
        points, q = {}, {}
        for i in p:
            if solver == "exact":
                points[i] = exact_prox(problem, i, a, mu)
                continue
            y, q[i] = a.copy(), 0.0
            for k in range(K[i]):
                rows = None if batch is None else batch(t, i, k)
                g = minibatch_gradient(problem, i, y, rows, decay, clip)
                q[i] += square(g)
                if prox_step == "implicit":
                    y = (y - rate * g + rate * mu * a) / (1 + rate * mu)
                else:
                    y = y - rate * (g + mu * (y - a))
            if reading == "printed":
                q[i] = square(grad(i, y))
            points[i] = y

        def f(point, p=p):
            if global_loss == "server":
                return held.value(0, point) + decay / 2 * square(point)
            return sum(p[i] * value(i, point) for i in p)

        x_plus = a + sum(p[i] * (points[i] - a) for i in p)
        r_plus = max(norm(x_plus - x0), r)
        f_plus = f(x_plus)
        own = sum(p[i] * value(i, points[i]) for i in p)
        distance = sum(p[i] * square(points[i] - a) for i in p)
        D = mu * max(f_plus - own - mu / 2 * distance, 0.0)
        u_plus = u + omega(r_plus) * D
        mu_plus = np.sqrt(u_plus) / rho(r_plus)

        row = {"mu": float(mu), "server_step": 1.0, "D": D, "r": r_plus, "u": u_plus, "f": f_plus}
        row |= {"anchor": a, "points": points, "x+": x_plus}
        if solver == "steps":
            row["lr"] = float(rate)
            v = v + omega(r_plus) * sum(p[i] * q[i] for i in p)
            eta = rho(r_plus) / np.sqrt(v)
            row["v"] = v
        if merge:
            # min(mu/mu+, 1), written so that mu = mu+ = 0 gives 1
            if merge_weights == "theorem":
                w1 = rho(r) if mu >= mu_plus else mu / mu_plus * rho(r)
            else:
                w1 = rho(r_plus) if mu_plus >= mu else mu_plus / mu * rho(r_plus)
            x_out = (w2 * x_out + w1 * x_plus) / (w2 + w1)
            w2 = w2 + w1
            new, old = f(x_out), f(x_best)
            margin = min(margin, abs(new - old))
            if new < old:
                x_best = x_out
            row |= {"w1": w1, "x_out": x_out, "best": min(new, old), "accept": new < old}
        else:
            x_best = x_plus
        x, r, u, mu = x_plus, r_plus, u_plus, mu_plus

        trace.append(row | {"margin": margin})
        iterates.append((x_best if from_best else x).copy())
        outputs.append(x_best.copy())
    return Run(iterates, trace, {"output": outputs})


def fedproxlod(problem, x0, cohorts, steps, **settings):
    return lod(problem, x0, cohorts, steps, weighted=False, **settings)


def fedproxwlod(problem, x0, cohorts, steps, **settings):
    return lod(problem, x0, cohorts, steps, weighted=True, **settings)


# ParFreFL and ComParFreFL.


def layers(problem):
    """Length of each layer in the flat vector."""
    if isinstance(problem, Softmax):
        return [problem.classes * problem.features, problem.classes]
    return [problem.d]


def topk(v, lengths, ratio):
    """Keep the max(1, floor(ratio d_l)) largest of each layer.

    Also returns how far the last kept is above the first dropped, in the units of v.
    """
    kept, gap, begin = np.zeros_like(v), np.inf, 0
    for length in lengths:
        size = np.abs(v[begin : begin + length])
        k = max(1, int(np.floor(ratio * length)))
        order = sorted(range(length), key=lambda j: -size[j])
        for j in order[:k]:
            kept[begin + j] = v[begin + j]
        if k < length:
            gap = min(gap, size[order[k - 1]] - size[order[k]])
        begin += length
    return kept, gap


def comparfrefl(
    problem,
    x0,
    cohorts,
    steps,
    *,
    compressor=("topk", 0.05),
    scale=1.0,
    beta=None,
    lr=None,
    server_lr=None,
    weights="uniform",
    batch=None,
    schedule=(),
    decay=0.0,
    clip=None,
):
    """P2. S is the size of the first cohort, T the number of cohorts.

    `scale` multiplies the theorem's eta and gamma; `lr` and `server_lr` stand for themselves.
    """
    K, K_mean = counts(problem, steps)
    population = shares(problem, weights)
    S, T = len(cohorts[0]), len(cohorts)
    beta = min(1.0, np.sqrt(S * K_mean / T)) if beta is None else beta
    eta = scale / (K_mean * (S * K_mean * T) ** 0.25) if lr is None else lr
    gamma = scale * (S * K_mean) ** 0.25 / T**0.75 if server_lr is None else server_lr

    def gradient(t, i, k, y):
        rows = None if batch is None else batch(t, i, k)
        return minibatch_gradient(problem, i, y, rows, decay, clip)

    x = np.array(x0, dtype=np.float64)
    m = np.zeros((problem.clients, problem.d))
    for i in range(problem.clients):
        m[i] = sum(gradient(-1, i, k, x) for k in range(K[i])) / K[i]
    own = m.copy()
    c = sum(population[i] * own[i] for i in range(problem.clients))

    iterates, trace, margin = [], [], np.inf
    for t, ids in enumerate(cohorts):
        p = within(population, ids)
        rate = eta * factor(schedule, t, T)
        mean_q, c_change = np.zeros_like(x), np.zeros_like(x)
        moves = []
        for i in p:
            y, total = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                momentum = (1 - beta) * m[i] + beta * gradient(t, i, k, y)
                new = y - rate * unit(momentum)
                moves.append(norm(new - y))
                y, total = new, total + momentum
            m[i] = total / K[i]
            d = m[i] - own[i]
            if compressor is None:
                q, own[i] = d, m[i]
            else:
                assert compressor[0] == "topk"
                q, gap = topk(d, layers(problem), compressor[1])
                own[i] = own[i] + q
                margin = min(margin, gap)
            mean_q += p[i] * q
            c_change += population[i] * q
        g = c + mean_q  # the old c
        c = c + c_change
        x = x - gamma * unit(g)
        row = {"lr": float(rate), "server_step": float(gamma), "beta": float(beta)}
        trace.append(row | {"moves": moves, "margin": margin})
        iterates.append(x.copy())
    memory = {"c": c, "own": own, "m": m, "g": g, "output": iterates}
    return Run(iterates, trace, memory)


def parfrefl(problem, x0, cohorts, steps, **settings):
    return comparfrefl(problem, x0, cohorts, steps, compressor=None, **settings)


# Proximal operators: prox_{alpha h}(v) = argmin_y alpha h(y) + |y - v|^2 / 2.


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def prox_mcp(v, alpha, lam, gamma):
    assert alpha < gamma
    out = np.empty_like(v)
    for j, vj in enumerate(v):
        if abs(vj) <= alpha * lam:
            out[j] = 0.0
        elif abs(vj) <= gamma * lam:
            out[j] = np.sign(vj) * (abs(vj) - alpha * lam) / (1 - alpha / gamma)
        else:
            out[j] = vj
    return out


def prox_scad(v, alpha, lam, a):
    assert alpha < a - 1
    out = np.empty_like(v)
    for j, vj in enumerate(v):
        if abs(vj) <= (1 + alpha) * lam:
            out[j] = soft(vj, alpha * lam)
        elif abs(vj) <= a * lam:
            out[j] = ((a - 1) * vj - np.sign(vj) * a * alpha * lam) / (a - 1 - alpha)
        else:
            out[j] = vj
    return out


def prox(penalty, v, alpha):
    if penalty is None:
        return v
    kind, *numbers = penalty
    if kind == "l1":
        return soft(v, alpha * numbers[0])
    if kind == "l2":
        return v / (1 + alpha * numbers[0])
    if kind == "elastic":
        return soft(v, alpha * numbers[0]) / (1 + alpha * numbers[1])
    return {"mcp": prox_mcp, "scad": prox_scad}[kind](v, alpha, *numbers)


def penalty_value(penalty, x):
    """h(x), the sum over the entries."""
    kind, *numbers = penalty
    total = 0.0
    for size in np.abs(x):
        if kind == "l1":
            total += numbers[0] * size
        elif kind == "l2":
            total += numbers[0] / 2 * size**2
        elif kind == "elastic":
            total += numbers[0] * size + numbers[1] / 2 * size**2
        elif kind == "mcp":
            lam, gamma = numbers
            small = lam * size - size**2 / (2 * gamma)
            total += small if size <= gamma * lam else gamma * lam**2 / 2
        else:
            lam, a = numbers
            if size <= lam:
                total += lam * size
            elif size <= a * lam:
                total += (2 * a * lam * size - size**2 - lam**2) / (2 * (a - 1))
            else:
                total += lam**2 * (a + 1) / 2
    return total


# FedCanon and FedCanon II.


def canon(
    problem,
    x0,
    cohorts,
    steps,
    *,
    copies,
    lr=0.1,
    alpha=None,
    penalty=None,
    weights="uniform",
    batch=None,
    schedule=(),
    decay=0.0,
    clip=None,
):
    """P4. `copies`: II, every client steps its own copy of the model by the mean it receives.

    A schedule shortens the client step, and the server step with it: the gradient part and the
    proximal part of a round are both taken with alpha times its factor.
    """
    N = problem.clients
    K, K_mean = counts(problem, steps)
    population = shares(problem, weights)
    alpha = lr * K_mean if alpha is None else alpha
    x = np.array(x0, dtype=np.float64)
    models = [x.copy() for _ in range(N)]  # II
    c = np.zeros((N, problem.d))

    iterates, trace, calls = [], [], 0
    for t, ids in enumerate(cohorts):
        p = within(population, ids)
        scale = factor(schedule, t, len(cohorts))
        rate, server = lr * scale, alpha * scale
        D = {}
        for i in p:
            start = models[i] if copies else x
            y = start.copy()
            for k in range(K[i]):
                rows = None if batch is None else batch(t, i, k)
                y = y - rate * (minibatch_gradient(problem, i, y, rows, decay, clip) + c[i])
            D[i] = (start - y) / (rate * K[i])
        Dbar = sum(p[i] * D[i] for i in p)
        if copies:
            models = [prox(penalty, own - server * Dbar, server) for own in models]
            calls += N
            x = models[0]
        else:
            x = prox(penalty, x - server * Dbar, server)
            calls += 1
        for i in p:
            c[i] = c[i] + Dbar - D[i]
        trace.append({"lr": float(rate), "server_step": float(alpha / (lr * K_mean))})
        iterates.append(x.copy())
    return Run(iterates, trace, {"c": c, "models": models, "calls": calls, "output": iterates})


def fedcanon(problem, x0, cohorts, steps, **settings):
    return canon(problem, x0, cohorts, steps, copies=False, **settings)


def fedcanon2(problem, x0, cohorts, steps, **settings):
    return canon(problem, x0, cohorts, steps, copies=True, **settings)
