"""Robust rules as the papers write them: NumPy, one row at a time, nothing of the package.

`rows` is a list of one long vector a client; `p` are weights that sum to 1.
"""

import math

import numpy as np


def weighted_median(values, p):
    pairs = sorted(zip(values, p, strict=True))
    total = 0.0
    for k, (value, w) in enumerate(pairs):
        total += w
        if abs(total - 0.5) < 1e-9:
            return (value + pairs[k + 1][0]) / 2
        if total > 0.5:
            return value
    raise AssertionError


def median(rows, p):
    return np.array([weighted_median([z[j] for z in rows], p) for j in range(len(rows[0]))])


def trimmed_mean(rows, p, f):
    out = []
    for j in range(len(rows[0])):
        left = sorted((z[j], w) for z, w in zip(rows, p, strict=True))[f : len(rows) - f]
        out.append(sum(v * w for v, w in left) / sum(w for _, w in left))
    return np.array(out)


def geometric_objective(point, rows, p):
    return sum(w * np.linalg.norm(point - z) for z, w in zip(rows, p, strict=True))


def krum_scores(rows, f):
    scores = []
    for i, z in enumerate(rows):
        apart = sorted(float(((z - y) ** 2).sum()) for j, y in enumerate(rows) if j != i)
        scores.append(sum(apart[: len(rows) - f - 2]))
    return scores


def krum(rows, p, f):
    return rows[int(np.argmin(krum_scores(rows, f)))]


def multi_krum(rows, p, f, keep):
    best = np.argsort(krum_scores(rows, f))[:keep]
    return sum(p[i] * rows[i] for i in best) / sum(p[i] for i in best)


def norm_clip(rows, p, radius):
    return sum(w * z * min(1.0, radius / np.linalg.norm(z)) for z, w in zip(rows, p, strict=True))


def centred_clip(rows, p, radius, steps):
    v = median(rows, p)
    for _ in range(steps):
        moves = []
        for z, w in zip(rows, p, strict=True):
            away = np.linalg.norm(z - v)
            moves.append(w * (z - v) * (min(1.0, radius / away) if away > 0 else 1.0))
        v = v + sum(moves)
    return v


def nnm(rows, p, f):
    out = []
    for z in rows:
        near = sorted(range(len(rows)), key=lambda j: float(((z - rows[j]) ** 2).sum()))
        near = near[: len(rows) - f]
        out.append(sum(p[j] * rows[j] for j in near) / sum(p[j] for j in near))
    return out


def quantile(share):
    """Return the standard normal's quantile by bisection."""
    low, high = -10.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + math.erf(middle / 2**0.5)) / 2 < share else (low, middle)
    return (low + high) / 2


def little_is_enough(honest, clients, hostile):
    s = clients // 2 + 1 - hostile
    z = max(0.0, quantile((clients - hostile - s) / (clients - hostile)))
    return honest.mean(0) - z * honest.std(0)
