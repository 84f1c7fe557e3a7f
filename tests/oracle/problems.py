"""Small heterogeneous problems as plain data: for the oracles, and for the public API.

Every problem has `clients`, `sizes` (rows per client), `start` (first row of each client), and the
whole data set `x`, `y`, `owner` with the rows sorted by client. A parameter vector `w` is flat.

    value(i, w, rows)   mean loss of client i over its own rows (indices from 0), all when None
    grad(i, w, rows)    its gradient
"""

import numpy as np


class _Problem:
    def __init__(self, clients):
        self.parts = [(np.asarray(x, dtype=np.float64), np.asarray(y)) for x, y in clients]
        self.clients = len(self.parts)
        self.sizes = [len(x) for x, _ in self.parts]
        self.start = [sum(self.sizes[:i]) for i in range(self.clients)]
        self.x = np.concatenate([x for x, _ in self.parts])
        self.y = np.concatenate([y for _, y in self.parts])
        self.owner = np.repeat(np.arange(self.clients), self.sizes)

    def rows(self, i, rows):
        x, y = self.parts[i]
        if rows is None:
            return x, y
        rows = np.asarray(rows)
        return x[rows], y[rows]

    def mean_value(self, w):
        return sum(self.value(i, w) for i in range(self.clients)) / self.clients


class LeastSquares(_Problem):
    """Linear model without bias, loss (prediction - y)^2 per sample; d = features."""

    def __init__(self, clients):
        super().__init__(clients)
        self.d = self.x.shape[1]

    def value(self, i, w, rows=None):
        x, y = self.rows(i, rows)
        total = 0.0
        for features, target in zip(x, y, strict=True):
            total += (features @ w - target) ** 2
        return total / len(y)

    def grad(self, i, w, rows=None):
        x, y = self.rows(i, rows)
        total = np.zeros(self.d)
        for features, target in zip(x, y, strict=True):
            total += 2.0 * (features @ w - target) * features
        return total / len(y)


class Softmax(_Problem):
    """Linear with bias, cross entropy; w = weight (classes, features) by rows, then bias."""

    def __init__(self, clients, classes):
        super().__init__(clients)
        self.features, self.classes = self.x.shape[1], classes
        self.d = classes * self.features + classes

    def split(self, w):
        cut = self.classes * self.features
        return w[:cut].reshape(self.classes, self.features), w[cut:]

    def value(self, i, w, rows=None):
        weight, bias = self.split(w)
        x, y = self.rows(i, rows)
        total = 0.0
        for features, label in zip(x, y, strict=True):
            logits = weight @ features + bias
            top = logits.max()
            total += top + np.log(np.exp(logits - top).sum()) - logits[label]
        return total / len(y)

    def grad(self, i, w, rows=None):
        weight, bias = self.split(w)
        x, y = self.rows(i, rows)
        d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
        for features, label in zip(x, y, strict=True):
            logits = weight @ features + bias
            error = np.exp(logits - logits.max())
            error /= error.sum()
            error[label] -= 1.0
            d_weight += np.outer(error, features)
            d_bias += error
        return np.concatenate([d_weight.ravel(), d_bias]) / len(y)


SIZES = (3, 9, 5, 12, 4, 7, 6)


def least_squares(seed=1, sizes=SIZES, features=4):
    """Every client has its own scale, centre and true weights."""
    random = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        scale = random.uniform(0.5, 1.3, features)
        x = random.normal(size=(n, features)) * scale + 0.3 * random.normal(size=features)
        truth = np.linspace(-1.0, 1.0, features) + 1.8 * random.normal(size=features)
        clients.append((x, x @ truth + 0.2 * random.normal(size=n)))
    return LeastSquares(clients)


def softmax(seed=2, sizes=SIZES, features=5, classes=3):
    """Every client has its own centre, and prefers one class."""
    random = np.random.default_rng(seed)
    clients = []
    for i, n in enumerate(sizes):
        x = 1.6 * random.normal(size=(n, features)) + random.normal(size=features)
        y = random.integers(0, classes, size=n)
        y[random.random(n) < 0.5] = i % classes
        clients.append((x, y))
    return Softmax(clients, classes)


def toy():
    """P3 Fig. 1: F1 = (w1 + w2 - 3)^2, F2 = (w1 + 2 w2 - 3)^2, both zero at (3, 0)."""
    return LeastSquares([([[1.0, 1.0]], [3.0]), ([[1.0, 2.0]], [3.0])])


def start(problem, seed=3):
    """A starting point away from zero."""
    return 0.5 * np.random.default_rng(seed).normal(size=problem.d)


def close(a, b, tolerance=1e-12):
    """Require equality up to one relative and absolute tolerance."""
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
