"""The methods as plain loops, one client at a time, float64, from the papers' formulas.

Every method is called as

    run = fedavg(problem, x0, cohorts, steps, lr=0.1)
    run.x       the server iterate after every round
    run.trace   the method's own scalars in that round (server_step, lr, trials, margin, r, v)
    run.memory  what is kept after the last round (c, own)

`cohorts` lists the client ids of every round, `steps` is K or one K_i per client, `weights` is
"uniform" or "samples", `batch(t, i, k)` gives the rows of client i for its local step k of round t
(all rows when there is no `batch`). `x` is the server's point, `y` the client's, `delta = y - x`,
and the server adds. A mean over a cohort is always the weighted one, the weights summing to 1.

Common to all: `schedule` (list of terms, see `factor`), `decay` (weight decay), `clip`.
"""

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Run(NamedTuple):
    x: list
    trace: list
    memory: dict


def square(v):
    return float(np.dot(v, v))


def minibatch_gradient(problem, i, y, rows, decay, clip):
    """Clip the minibatch gradient by its norm, then add the weight decay."""
    g = problem.grad(i, y, rows)
    if clip is not None:
        norm = np.sqrt(square(g))
        if norm > clip:
            g = g * (clip / norm)
    return g + decay * y


class Constant:
    """y <- y - lr d."""

    def __init__(self, lr):
        self.lr = lr

    def begin(self, scale):
        self.rate = self.lr * scale

    def move(self, y, d, phi, share):
        return y - self.rate * d


class Momentum:
    """b <- beta b + d, y <- y - lr b; b = 0 at the start of a round."""

    def __init__(self, lr, momentum=0.9):
        self.lr, self.momentum = lr, momentum

    def begin(self, scale):
        self.rate, self.b = self.lr * scale, 0.0

    def move(self, y, d, phi, share):
        self.b = self.momentum * self.b + d
        return y - self.rate * self.b


class Adam:
    """torch.optim.Adam with bias correction; moments and count start afresh every round."""

    def __init__(self, lr, beta1=0.9, beta2=0.999, eps=1e-8):
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps

    def begin(self, scale):
        self.rate, self.m, self.s, self.k = self.lr * scale, 0.0, 0.0, 0

    def move(self, y, d, phi, share):
        self.k += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * d
        self.s = self.beta2 * self.s + (1 - self.beta2) * d * d
        m = self.m / (1 - self.beta1**self.k)
        s = self.s / (1 - self.beta2**self.k)
        return y - self.rate * m / (np.sqrt(s) + self.eps)


class Armijo:
    """Backtrack until phi(y - eta d) <= phi(y) - c eta |d|^2, with d = grad phi (P3).

    `share` is rows in this batch / rows of the client. `trials` counts the backtracks. `margin` is
    the narrowest comparison so far: at rounding level, a right answer could differ from ours.
    """

    def __init__(
        self,
        c=0.1,
        backtrack=0.9,
        max_lr=1.0,
        max_backtracks=100,
        reset="grow",
        growth=2.0,
    ):
        self.c, self.backtrack, self.max_lr = c, backtrack, max_lr
        self.max_backtracks, self.reset, self.growth = max_backtracks, reset, growth
        self.margin = np.inf
        self.accepted = []  # (eta, phi before, phi after, |d|^2), for the self-checks

    def begin(self, scale):
        assert scale == 1.0, "a line search sets its own step; no schedule"
        self.previous, self.trials = None, 0

    def first_trial(self, share):
        if self.previous is None or self.reset == "reset":
            return self.max_lr
        if self.reset == "keep":
            return self.previous
        assert self.reset == "grow"
        return min(self.max_lr, self.previous * self.growth**share)

    def too_long(self, value, bound):
        self.margin = min(self.margin, abs(value - bound))
        return value > bound

    def move(self, y, d, phi, share):
        if np.sqrt(square(d)) < 1e-8:
            return y
        eta, before = self.first_trial(share), phi(y)
        if self.max_backtracks > 0:
            count = 0
            while self.too_long(phi(y - eta * d), before - self.c * eta * square(d)):
                if count == self.max_backtracks:
                    eta = 1e-6
                    break
                eta *= self.backtrack
                count += 1
            self.trials += count
        self.previous = eta
        self.accepted.append((eta, before, phi(y - eta * d), square(d)))
        return y - eta * d


class DoG:
    """The step size of a round from the distance walked; kept by the server ("plain r").

    DoG: omega = 1, rho = r. DoWG (`weighted`): omega = rho = r^2.
    """

    def __init__(self, r_rel=1e-2, weighted=False):
        self.r_rel, self.weighted = r_rel, weighted

    def omega(self):
        return self.r**2 if self.weighted else 1.0

    def rho(self):
        return self.r**2 if self.weighted else self.r

    def start(self, x0, mean_steps, mean_grad_sq):
        self.z = np.zeros_like(x0)
        self.r = self.r_rel * (1 + np.sqrt(square(x0)))
        self.v = self.omega() * mean_steps * (mean_grad_sq + 1e-8)

    def begin(self, scale):
        self.rate = scale * self.rho() / np.sqrt(self.v)

    def move(self, y, d, phi, share):
        return y - self.rate * d

    def end_round(self, dbar, mean_grad_sq_sum):
        self.z = self.z + dbar
        self.r = max(self.r, np.sqrt(square(self.z)))
        self.v += self.omega() * mean_grad_sq_sum


class LiveDoG(DoG):
    """DoG that counts a client's own directions of the round as they come.

    lr_k = rho(r) / sqrt(v + omega(r) sum_{j <= k} |d_j|^2); the server's z, r, v as in DoG, its v
    from the gradients before they are bent. Not `asked`: v starts at 0, and gradients weigh with
    the r of their own round.
    """

    def __init__(self, r_rel=1e-2, weighted=False, asked=True):
        super().__init__(r_rel, weighted)
        self.asked = asked

    def start(self, x0, mean_steps, mean_grad_sq):
        super().start(x0, mean_steps, mean_grad_sq)
        if not self.asked:
            self.v = 0.0

    def end_round(self, dbar, mean_grad_sq_sum):
        now = self.v + self.omega() * mean_grad_sq_sum
        super().end_round(dbar, mean_grad_sq_sum)
        if not self.asked:
            self.v = now

    def begin(self, scale):
        self.scale = scale
        self.directions, self.rates, self.lengths = [], [], []

    def move(self, y, d, phi, share):
        self.directions.append(d)
        seen = sum(square(earlier) for earlier in self.directions)
        rate = self.scale * self.rho() / np.sqrt(self.v + self.omega() * seen)
        self.rates.append(rate)
        self.lengths.append(rate * np.sqrt(square(d)) / self.r)  # in units of r
        return y - rate * d


def local(problem, i, x, K, step, rows_of, *, mu, shift, decay, clip):
    """K steps from x along g + mu (y - x) + shift; shift is SCAFFOLD's c - c_i.

    Returns y, the sum of g and the sum of |g|^2 over the steps taken, g being the minibatch
    gradient, clipped and decayed, before the method bends it.
    """
    y = x.copy()
    grad_sum, grad_sq_sum = np.zeros_like(x), 0.0
    for k in range(K):
        rows = rows_of(k)
        g = minibatch_gradient(problem, i, y, rows, decay, clip)

        def phi(point, rows=rows):
            return (
                problem.value(i, point, rows)
                + decay / 2 * square(point)
                + mu / 2 * square(point - x)
                + float(np.dot(shift, point))
            )

        d = g + mu * (y - x) + shift
        share = (problem.sizes[i] if rows is None else len(rows)) / problem.sizes[i]
        y = step.move(y, d, phi, share)
        grad_sum += g
        grad_sq_sum += square(g)
    return y, grad_sum, grad_sq_sum


class Average:
    def __init__(self, server_lr=1.0):
        self.server_lr = server_lr

    def __call__(self, x, dbar, q):
        return x + self.server_lr * dbar, self.server_lr


class ServerMomentum:
    """v = b v + dbar, x += server_lr v."""

    def __init__(self, server_lr=1.0, momentum=0.9):
        self.server_lr, self.momentum, self.v = server_lr, momentum, 0.0

    def __call__(self, x, dbar, q):
        self.v = self.momentum * self.v + dbar
        return x + self.server_lr * self.v, self.server_lr


class FedExP:
    """eta = max(1, q / (2 (|dbar|^2 + eps))), at most max_server_step; eps shrinks every round."""

    def __init__(self, eps=1e-3, max_server_step=None, eps_decay=1.0):
        self.eps, self.max_server_step, self.eps_decay = eps, max_server_step, eps_decay

    def __call__(self, x, dbar, q):
        eta = max(1.0, q / (2 * (square(dbar) + self.eps)))
        self.eps *= self.eps_decay
        if self.max_server_step is not None:
            eta = min(eta, self.max_server_step)
        return x + eta * dbar, eta


class FedExPM:
    """v = dbar + b v, Q = q + (b/2) Q, eta = Q / (2 (|v|^2 + eps)), no clip."""

    def __init__(self, eps=1e-3, momentum=0.9):
        self.eps, self.momentum, self.v, self.Q = eps, momentum, 0.0, 0.0

    def __call__(self, x, dbar, q):
        self.v = dbar + self.momentum * self.v
        self.Q = q + self.momentum / 2 * self.Q
        eta = self.Q / (2 * (square(self.v) + self.eps))
        return x + eta * self.v, eta


def dual_step(x, v, m, s, eps, eps_g):
    """FedDuA: eta = m / (|v|^2 in the norm of G^-1 + eps_g), x += eta v / G, G = sqrt(s) + eps."""
    G = np.sqrt(s) + eps
    along = np.array([0.0 if vj == 0 else vj / Gj for vj, Gj in zip(v, G, strict=True)])
    bottom = float(np.dot(v, along)) + eps_g
    eta = 0.0 if m == 0 else m / bottom
    return x + eta * along, eta


def at_most(x, new, eta, q, max_move):
    """The same move, shortened where it is longer than max_move sqrt(q); None never shortens."""
    length = np.sqrt(square(new - x))
    if max_move is None or length <= max_move * np.sqrt(q):
        return new, eta
    shorter = max_move * np.sqrt(q) / length
    return x + shorter * (new - x), shorter * eta


class FedDuAdagrad:
    def __init__(self, eps=1e-9, eps_g=0.0, max_move=None):
        self.eps, self.eps_g, self.s, self.max_move = eps, eps_g, 0.0, max_move

    def __call__(self, x, dbar, q):
        self.s = self.s + dbar**2
        new, eta = dual_step(x, dbar, q / 2, self.s, self.eps, self.eps_g)
        return at_most(x, new, eta, q, self.max_move)


class FedDuAdam:
    def __init__(self, beta1=0.9, beta2=0.99, eps=1e-9, eps_g=0.0, max_move=None):
        self.beta1, self.beta2, self.eps, self.eps_g = beta1, beta2, eps, eps_g
        self.s, self.v, self.m, self.max_move = 0.0, 0.0, 0.0, max_move

    def __call__(self, x, dbar, q):
        self.s = self.beta2 * self.s + (1 - self.beta2) * dbar**2
        self.v = self.beta1 * self.v + (1 - self.beta1) * dbar
        self.m = self.beta1 / 2 * self.m + (1 - self.beta1) / 2 * q
        new, eta = dual_step(x, self.v, self.m, self.s, self.eps, self.eps_g)
        return at_most(x, new, eta, q, self.max_move)


def factor(schedule, t, T):
    """What the client step is multiplied by in round t of T.

    Terms multiply: ("cosine", f): f + (1-f)(1 + cos(pi t / max(T-1, 1)))/2; ("exponential", rate):
    rate^t; ("linear", f): f + (1-f)(1 - t/T); ("linear", f, h): 1 until t = hT, then f + (1-f)
    (T - t)/(T - hT); ("warmup", w): min(1, (t+1)/w).
    """
    value = 1.0
    for kind, number, *more in schedule:
        if kind == "cosine":
            f = number
            value *= f + (1 - f) * (1 + np.cos(np.pi * t / max(T - 1, 1))) / 2
        elif kind == "exponential":
            value *= number**t
        elif kind == "linear":
            start = more[0] * T if more else 0
            value *= number + (1 - number) * (T - max(t, start)) / (T - start)
        elif kind == "warmup":
            value *= min(1.0, (t + 1) / number)
        else:
            raise ValueError(kind)
    return value


def federated(
    problem,
    x0,
    cohorts,
    steps,
    step,
    server,
    *,
    mu=0.0,
    control=None,
    weights="uniform",
    batch=None,
    schedule=(),
    decay=0.0,
    clip=None,
):
    """One step rule x one server rule, with a proximal weight and SCAFFOLD's controls if asked.

    control: None, "I" (c_i+ = full local gradient at x) or "II" (c_i+ = mean local gradient).
    """
    N = problem.clients
    K = [steps] * N if isinstance(steps, int) else list(steps)
    if weights == "uniform":
        population = [1 / N] * N
    else:
        assert weights == "samples"
        population = [n / sum(problem.sizes) for n in problem.sizes]

    x = np.array(x0, dtype=np.float64)
    c, own = np.zeros_like(x), np.zeros((N, len(x)))
    iterates, trace = [], []
    for t, ids in enumerate(cohorts):
        ids = [int(i) for i in ids]
        total = sum(population[i] for i in ids)
        p = {i: population[i] / total for i in ids}

        if isinstance(step, DoG) and t == 0:
            mean_steps = sum(K) / N  # K of the plan: the mean over the population
            full = {i: problem.grad(i, x) + decay * x for i in ids}
            step.start(x, mean_steps, sum(p[i] * square(full[i]) for i in ids))

        dbar, q, grad_sq, trials, lr = np.zeros_like(x), 0.0, 0.0, 0, 0.0
        c_change = np.zeros_like(x)
        for i in ids:
            shift = np.zeros_like(x) if control is None else c - own[i]
            step.begin(factor(schedule, t, len(cohorts)))
            y, grad_sum, grad_sq_sum = local(
                problem,
                i,
                x,
                K[i],
                step,
                lambda k, t=t, i=i: None if batch is None else batch(t, i, k),
                mu=mu,
                shift=shift,
                decay=decay,
                clip=clip,
            )
            delta = y - x
            dbar += p[i] * delta
            q += p[i] * square(delta)
            grad_sq += p[i] * grad_sq_sum
            trials += getattr(step, "trials", 0)
            if isinstance(step, LiveDoG):
                lr += p[i] * np.mean(step.rates)
            if control is not None:
                new = grad_sum / K[i] if control == "II" else problem.grad(i, x) + decay * x
                c_change += population[i] * (new - own[i])  # 1/N, or n_i/n with sample weights
                own[i] = new
        x, eta = server(x, dbar, q)
        c = c + c_change

        row = {"server_step": float(eta), "trials": trials}
        if hasattr(step, "rate"):
            row["lr"] = float(step.rate)
        if isinstance(step, Armijo):
            row["margin"] = step.margin
        if isinstance(step, LiveDoG):
            row["lr"] = float(lr)
        if isinstance(step, DoG):
            step.end_round(dbar, grad_sq)
            row |= {"r": float(step.r), "v": float(step.v)}
        trace.append(row)
        iterates.append(x.copy())
    return Run(iterates, trace, {"c": c, "own": own})


def fedavg(problem, x0, cohorts, steps, *, lr, server_lr=1.0, **common):
    return federated(problem, x0, cohorts, steps, Constant(lr), Average(server_lr), **common)


def fedavgm(problem, x0, cohorts, steps, *, lr, server_lr=1.0, momentum=0.9, **common):
    server = ServerMomentum(server_lr, momentum)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, **common)


def fedprox(problem, x0, cohorts, steps, *, lr, mu, server_lr=1.0, **common):
    server = Average(server_lr)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, mu=mu, **common)


def scaffold(problem, x0, cohorts, steps, *, lr, server_lr=1.0, option="II", **common):
    server = Average(server_lr)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, control=option, **common)


def fedexp(
    problem, x0, cohorts, steps, *, lr, eps=1e-3, max_server_step=None, eps_decay=1.0, **common
):
    server = FedExP(eps, max_server_step, eps_decay)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, **common)


def fedexpm(problem, x0, cohorts, steps, *, lr, eps=1e-3, momentum=0.9, **common):
    server = FedExPM(eps, momentum)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, **common)


def split(settings):
    """Separate the line search's arguments from the common ones."""
    names = ("c", "backtrack", "max_lr", "max_backtracks", "reset", "growth")
    search = {name: settings[name] for name in names if name in settings}
    return search, {name: v for name, v in settings.items() if name not in names}


def fedsls(problem, x0, cohorts, steps, *, server_lr=1.0, **settings):
    search, common = split(settings)
    step, server = Armijo(**search), Average(server_lr)
    return federated(problem, x0, cohorts, steps, step, server, **common)


def fedexpsls(
    problem, x0, cohorts, steps, *, eps=1e-3, max_server_step=None, eps_decay=1.0, **settings
):
    search, common = split(settings)
    step, server = Armijo(**search), FedExP(eps, max_server_step, eps_decay)
    return federated(problem, x0, cohorts, steps, step, server, **common)


def fedduadagrad(problem, x0, cohorts, steps, *, lr, eps=1e-9, eps_g=0.0, **common):
    server = FedDuAdagrad(eps, eps_g)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, **common)


def fedduadam(
    problem, x0, cohorts, steps, *, lr, beta1=0.9, beta2=0.99, eps=1e-9, eps_g=0.0, **common
):
    server = FedDuAdam(beta1, beta2, eps, eps_g)
    return federated(problem, x0, cohorts, steps, Constant(lr), server, **common)


def dog_with_server(problem, x0, cohorts, steps, server, *, r_rel=1e-2, weighted=False, **common):
    return federated(problem, x0, cohorts, steps, DoG(r_rel, weighted), server, **common)


def feddog(problem, x0, cohorts, steps, *, r_rel=1e-2, **common):
    return dog_with_server(problem, x0, cohorts, steps, Average(), r_rel=r_rel, **common)


def feddowg(problem, x0, cohorts, steps, *, r_rel=1e-2, **common):
    return dog_with_server(
        problem, x0, cohorts, steps, Average(), r_rel=r_rel, weighted=True, **common
    )


def feddowgdua(problem, x0, cohorts, steps, **common):
    step, server = LiveDoG(weighted=True), FedDuAdagrad(max_move=1.0)
    return federated(problem, x0, cohorts, steps, step, server, **common)


def auto(problem, x0, cohorts, steps, *, schedule=(("linear", 0.0, 0.75),), **common):
    """Of a model with one matrix."""
    return feddowgdua(problem, x0, cohorts, steps, schedule=schedule, **common)


def fedrace(problem, x0, cohorts, steps, *, weights="uniform", batch=None, panel=None):
    """Arms of 7 % of the rounds from x0, then a run from the best arm's average.

    `panel` are the clients that judge, all of them by default. The trace has the rate of every
    round and the arm, None in the run.
    """
    T, N = len(cohorts), problem.clients
    K = [steps] * N if isinstance(steps, int) else list(steps)
    population = [1 / N] * N
    if weights == "samples":
        population = [n / sum(problem.sizes) for n in problem.sizes]

    def mean(ids, f):
        total = sum(population[i] for i in ids)
        return sum(population[i] / total * f(i) for i in ids)

    def loss(ids, x):
        return mean(ids, lambda i: problem.value(i, x))

    start = np.array(x0, dtype=np.float64)
    f0, slope = loss(cohorts[0], start), mean(cohorts[0], lambda i: problem.grad(i, start))
    along = {k: loss(cohorts[0], start - 3.0**k * slope) for k in range(-12, 13)}
    longest = 3.0 ** min(along, key=along.get)  # both problems are convex: one minimum
    first = max(longest / 27, min(longest, 1 / 27))
    L = max(1, round(0.07 * T))
    race = int(0.35 * T) if int(0.35 * T) >= 3 * L else 0

    iterates, trace = [], []

    def one_round(x, server, ids, lr, arm):
        t, dbar, q, seen = len(iterates), np.zeros_like(x), 0.0, 0.0
        total = sum(population[i] for i in ids)
        for i in ids:
            y, values = x, []
            for k in range(K[i]):
                rows = None if batch is None else batch(t, i, k)
                values.append(problem.value(i, y, rows))
                y = y - lr * problem.grad(i, y, rows)
            w = population[i] / total
            dbar, q, seen = dbar + w * (y - x), q + w * square(y - x), seen + w * np.mean(values)
        new, eta = server(x, dbar, q)
        iterates.append(new)
        trace.append({"lr": lr, "arm": arm, "server_step": float(eta)})
        return new, seen

    judges = range(N) if panel is None else panel
    best, arms, lr, up = None, 0, first, True
    while race - len(iterates) >= L:
        x, server, failed, means = start, FedDuAdagrad(), False, []
        for j in range(L):
            x, seen = one_round(x, server, cohorts[j], lr * (1 - j / L), arms)
            means.append(x)
            if seen > 4 * f0:
                failed = True
                break
        arms += 1
        judged = np.inf if failed else loss(judges, polynomial(means)[-1])
        tried = lr
        if best is None:
            least = np.inf
        elif lr < best[1]:
            least = best[0]
        elif lr > 0.05:
            least = 0.95 * min(best[0], loss(judges, start))
        else:
            least = 1.03 * best[0]
        if better := judged < least:
            best = (judged, lr, polynomial(means)[-1], server)
        if up and better:
            lr *= 3
        elif up and arms <= 2:
            up, lr = False, first / 3
        elif not up and (better or best is None):
            lr /= 3
        else:
            break
    if best is None:
        best = (f0, lr if race == 0 else tried / 3, start, FedDuAdagrad())
    least, lr, x, server = best
    saved, least, smooth, back, began = (
        (x, deepcopy(server)),
        min(least, f0),
        None,
        0,
        len(iterates),
    )
    for t in range(began, T):
        # The first cohort of the run is the one with which an arm would have begun.
        ids = cohorts[0] if t == began and race else cohorts[t]
        x, seen = one_round(x, server, ids, lr * (1 - (t - began) / (T - began)), None)
        smooth = seen if smooth is None else 0.7 * smooth + 0.3 * seen
        least = min(least, smooth)
        lost = (smooth - least) / max(f0 - least, 0.2 * abs(f0))
        if back < 6 and (seen > 4 * f0 or lost > 0.9):
            x, server, lr, back, smooth = saved[0], deepcopy(saved[1]), lr / 3, back + 1, None
            iterates[-1] = x
        elif lost < 0.25:
            saved = (x, deepcopy(server))
    return Run(iterates, trace, {})


def last_two(x0, iterates):
    """Mean of the last two iterates; x0 counts as the one before the first."""
    points = [np.asarray(x0), *iterates]
    return [(a + b) / 2 for a, b in pairwise(points)]


def polynomial(iterates, gamma=8.0):
    """xbar <- (1-a) xbar + a x with a = (gamma+1)/(t+gamma), t = 1 at the first server iterate."""
    averages, mean = [], np.zeros_like(iterates[0])
    for t, x in enumerate(iterates, start=1):
        a = (gamma + 1) / (t + gamma)
        mean = (1 - a) * mean + a * x
        averages.append(mean)
    return averages
