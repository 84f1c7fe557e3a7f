"""Where methods end on least squares of six unlike clients, full batches, everyone in every round.

A method that claims to be exact reaches the minimiser of f + h, taken from a proximal gradient loop
in NumPy; a method that drifts ends where its own closed form says, and not there.
"""

import numpy as np
import pytest
import torch

import tunefree as tf

get = tf.methods.get
START = [1.0, -2.0, 0.5]
LR, STEPS = 0.1, 5


class Problem:
    """f_i(x) = mean_j (a_ij . x - y_ij)^2: gradient H_i x - b_i, H_i from 0.06 to 4.4."""

    def __init__(self, clients=6, rows=8, d=3):
        random = np.random.default_rng(0)
        scale = np.linspace(0.5, 1.2, clients)[:, None, None]
        self.a = random.normal(size=(clients, rows, d)) * scale
        self.a *= random.uniform(0.6, 1.2, (clients, 1, d))
        truth = 2 * random.normal(size=(clients, d))
        self.y = np.einsum("nrd,nd->nr", self.a, truth) + 0.1 * random.normal(size=(clients, rows))
        self.H = 2 * np.einsum("nri,nrj->nij", self.a, self.a) / rows
        self.b = 2 * np.einsum("nri,nr->ni", self.a, self.y) / rows
        self.optimum = np.linalg.solve(self.H.mean(0), self.b.mean(0))

    def minimiser(self, prox):
        """Of f + h, by x <- prox_{0.1 h}(x - 0.1 grad f(x)) until it stands still."""
        H, b, x = self.H.mean(0), self.b.mean(0), np.zeros(len(START))
        for _ in range(5000):
            x = prox(x - 0.1 * (H @ x - b), 0.1)
        assert np.abs(prox(x - 0.1 * (H @ x - b), 0.1) - x).max() < 1e-14
        return x

    def biased(self, lr, steps):
        """Where K gradient steps of every client cancel in the mean.

        They take client i from x to m_i + (I - lr H_i)^K (x - m_i), m_i its own minimiser, so that
        sum_i M_i (m_i - x) = 0 with M_i = I - (I - lr H_i)^K.
        """
        eye = np.eye(len(START))
        M = [eye - np.linalg.matrix_power(eye - lr * H, steps) for H in self.H]
        right = [m @ np.linalg.solve(H, b) for m, H, b in zip(M, self.H, self.b, strict=True)]
        return np.linalg.solve(sum(M), sum(right))

    def fit(self, method, rounds, steps=STEPS, **settings):
        clients, rows, d = self.a.shape
        owner = np.arange(clients).repeat(rows)
        model = torch.nn.Linear(d, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([START]))
        return tf.fit(
            model,
            tf.Federation(self.a.reshape(-1, d), self.y.reshape(-1, 1), owner),
            method,
            rounds=rounds,
            steps=steps,
            batch=None,
            loss="mse",
            dtype=torch.float64,
            device="cpu",
            eval_every=rounds,
            **settings,
        )

    def end(self, *arguments, **settings):
        return self.fit(*arguments, **settings).output.numpy()


@pytest.fixture(scope="module")
def problem():
    return Problem()


def distance(a, b):
    return float(np.linalg.norm(a - b))


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


def l1(v, alpha, lam=1.0):
    return soft(v, alpha * lam)


def mcp(v, alpha, lam=1.0, gamma=3.0):
    inside = soft(v, alpha * lam) / (1 - alpha / gamma)
    return np.where(np.abs(v) <= gamma * lam, inside, v)


def penalties():
    return {"l1": (tf.penalties.L1(1.0), l1), "mcp": (tf.penalties.MCP(1.0, gamma=3.0), mcp)}


# id: (name, arguments, rounds)
EXACT = {
    "scaffold": ("scaffold", {"lr": LR}, 30),
    "scaffoldm": ("scaffoldm", {"lr": LR, "beta": 0.5}, 45),
    "fedlin": ("fedlin", {"lr": LR}, 35),
    "mime": ("mime", {"lr": LR, "momentum": 0.0}, 35),
    "mime-momentum": ("mime", {"lr": LR, "momentum": 0.5}, 50),
    "fedcanon": ("fedcanon", {"lr": LR}, 30),
    "fedcanon2": ("fedcanon2", {"lr": LR}, 30),
    "za1": ("za1", {"lr": LR}, 30),
    "scaffnew": ("scaffnew", {"lr": LR}, 50),
    "feddyn-steps": ("feddyn", {"lr": LR, "mu": 2.0}, 45),
    "feddyn-exact": ("feddyn", {"mu": 2.0, "solver": "exact"}, 40),
    "feddc": ("feddc", {"lr": LR, "mu": 1.0}, 40),
    "feddr-steps": ("feddr", {"lr": LR, "mu": 2.0}, 50),
    "feddr-exact": ("feddr", {"mu": 2.0, "relax": 1.2, "solver": "exact"}, 40),
    "fedadmm-steps": ("fedadmm", {"lr": LR, "mu": 2.0}, 50),
    "fedadmm-exact": ("fedadmm", {"mu": 2.0, "solver": "exact"}, 40),
    "fedpd-steps": ("fedpd", {"lr": LR, "mu": 2.0}, 50),
    "fedpd-exact": ("fedpd", {"mu": 2.0, "solver": "exact"}, 40),
}


@pytest.mark.parametrize("case", EXACT)
def test_exact_methods_reach_the_optimum(problem, case):
    name, settings, rounds = EXACT[case]
    end = problem.end(get(name, **settings), rounds)
    assert distance(end, problem.optimum) < 1e-6


# (name, penalty, arguments, rounds, steps)
COMPOSITE = [
    ("fedcanon", "l1", {"lr": 0.4}, 40, 1),
    ("fedcanon", "mcp", {"lr": LR, "alpha": 0.4}, 50, 1),
    ("za1", "l1", {"lr": LR}, 40, STEPS),
    ("za1", "mcp", {"lr": LR}, 40, STEPS),
    ("feddr", "l1", {"lr": LR, "mu": 2.0}, 50, STEPS),
    ("feddr", "mcp", {"mu": 2.0, "solver": "exact"}, 50, STEPS),
    ("fedadmm", "l1", {"lr": LR, "mu": 2.0}, 50, STEPS),
    ("fedadmm", "mcp", {"mu": 2.0, "solver": "exact"}, 50, STEPS),
]


@pytest.mark.parametrize(("name", "kind", "settings", "rounds", "steps"), COMPOSITE)
def test_exact_methods_reach_the_minimiser_of_the_sum(problem, name, kind, settings, rounds, steps):
    penalty, prox = penalties()[kind]
    target = problem.minimiser(prox)
    assert (target == 0).sum() == 1
    assert distance(target, problem.optimum) > 0.5
    end = problem.end(get(name, penalty=penalty, **settings), rounds, steps=steps)
    assert distance(end, target) < 1e-6


def test_references(problem):
    """The loop finds the smooth optimum, and what it finds is stationary with a penalty."""
    assert distance(problem.minimiser(lambda v, alpha: v), problem.optimum) < 1e-12
    x = problem.minimiser(l1)
    slope = -(problem.H.mean(0) @ x - problem.b.mean(0))
    assert np.allclose(slope[x != 0], np.sign(x[x != 0]), atol=1e-12)
    assert np.abs(slope[x == 0]).max() < 1
    x = problem.minimiser(mcp)
    slope = -(problem.H.mean(0) @ x - problem.b.mean(0))
    bend = np.maximum(1 - np.abs(x) / 3, 0) * np.sign(x)
    assert np.allclose(slope[x != 0], bend[x != 0], atol=1e-12)
    assert np.abs(slope[x == 0]).max() < 1


# Local steps without correction end elsewhere.

BIASED = {
    "fedavg": ("fedavg", {"lr": LR}, LR, 40),
    "fedavgm": ("fedavgm", {"lr": LR, "momentum": 0.3}, LR, 40),
    "mimelite": ("mimelite", {"lr": LR, "momentum": 0.0}, LR, 40),
    "fedavgcm": ("fedavgcm", {"lr": 2 * LR, "beta": 0.5}, LR, 50),  # p -> 0: steps of lr beta
    "fedmid": ("fedmid", {"lr": LR}, LR, 40),
    "fedda": ("fedda", {"lr": LR}, LR, 40),
}


@pytest.mark.parametrize("case", BIASED)
def test_drifting_methods_end_at_their_biased_point(problem, case):
    name, settings, lr, rounds = BIASED[case]
    target = problem.biased(lr, STEPS)
    assert distance(target, problem.optimum) > 0.5
    assert distance(problem.end(get(name, **settings), rounds), target) < 1e-6


def test_one_step_has_no_bias(problem):
    assert distance(problem.biased(LR, 1), problem.optimum) < 1e-12
    end = problem.end(get("fedavg", lr=0.4), 50, steps=1)
    assert distance(end, problem.optimum) < 1e-6


@pytest.mark.parametrize("kind", ["l1", "mcp"])
def test_fedcanon_misses_by_its_drift(problem, kind):
    """h != 0 and K > 1: by O(lr K |h'|), half as much with half the step; alpha stays."""
    penalty, prox = penalties()[kind]
    target = problem.minimiser(prox)
    wide, narrow = (
        distance(problem.end(get("fedcanon", lr=lr, alpha=0.4, penalty=penalty), 40), target)
        for lr in (0.02, 0.01)
    )
    assert 1e-2 < wide < 0.02 * STEPS
    assert 1.95 < wide / narrow < 2.15


def test_parfrefl_ends_within_its_own_step(problem):
    """K = 1, so that only the server's moves of length gamma keep it away; gamma ~ T^(-3/4)."""
    ends = []
    for rounds in (50, 200):
        tail = []

        def watch(event, tail=tail):
            tail.append(distance(event.x.numpy(), problem.optimum))

        problem.fit(get("parfrefl"), rounds, steps=1, callbacks=[watch])
        gamma = 6**0.25 / rounds**0.75
        ends.append(max(tail[-rounds // 5 :]))
        assert ends[-1] < 2 * gamma
        assert ends[-1] > 0.25 * gamma  # it cannot come to rest
    assert ends[1] < 0.5 * ends[0]
