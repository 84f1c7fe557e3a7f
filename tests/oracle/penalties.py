"""Penalties and compressors, entry by entry, from their formulas.

A penalty is a tuple: ("l1", lam), ("l2", lam), ("elastic", lam1, lam2), ("mcp", lam, gamma) or
("scad", lam, a); None is h = 0. A compressor is ("topk", ratio); None is the identity.
"""

import numpy as np


def value(penalty, x):
    """h(x)."""
    if penalty is None:
        return 0.0
    return float(sum(_value(penalty, abs(float(v))) for v in x))


def _value(penalty, v):
    kind, lam, *more = penalty
    if kind == "l1":
        return lam * v
    if kind == "l2":
        return lam / 2 * v * v
    if kind == "elastic":
        return lam * v + more[0] / 2 * v * v
    if kind == "mcp":
        gamma = more[0]
        return lam * v - v * v / (2 * gamma) if v <= gamma * lam else gamma * lam * lam / 2
    assert kind == "scad"
    a = more[0]
    if v <= lam:
        return lam * v
    if v <= a * lam:
        return (2 * a * lam * v - v * v - lam * lam) / (2 * (a - 1))
    return lam * lam * (a + 1) / 2


def prox(penalty, alpha, x):
    """argmin_u h(u) + |u - x|^2 / (2 alpha); the point itself when alpha = 0 or h = 0."""
    if penalty is None or alpha == 0:
        return x.copy()
    return np.array([np.sign(v) * _prox(penalty, alpha, abs(float(v))) for v in x])


def _prox(penalty, alpha, v):
    kind, lam, *more = penalty
    soft = max(v - alpha * lam, 0.0)
    if kind == "l1":
        return soft
    if kind == "l2":
        return v / (1 + alpha * lam)
    if kind == "elastic":
        return soft / (1 + alpha * more[0])
    if kind == "mcp":
        gamma = more[0]
        assert alpha < gamma, "the subproblem is not convex"
        return soft / (1 - alpha / gamma) if v <= gamma * lam else v
    assert kind == "scad"
    a = more[0]
    assert alpha < a - 1, "the subproblem is not convex"
    if v <= (1 + alpha) * lam:
        return soft
    return ((a - 1) * v - a * alpha * lam) / (a - 1 - alpha) if v <= a * lam else v


class Compressor:
    """Top-k of every layer: the max(1, floor(ratio d_l)) entries that are largest in size.

    `margin`: the narrowest gap yet between an entry kept and one left out.
    """

    def __init__(self, compressor, layers):
        self.compressor, self.layers, self.margin = compressor, layers, np.inf

    def __call__(self, v):
        if self.compressor is None:
            return v.copy()
        kind, ratio = self.compressor
        assert kind == "topk"
        out, begin = np.zeros_like(v), 0
        for size in self.layers:
            keep = max(1, int(np.floor(ratio * size)))
            order = sorted(range(begin, begin + size), key=lambda j: -abs(v[j]))
            for j in order[:keep]:
                out[j] = v[j]
            if keep < size:
                self.margin = min(self.margin, abs(v[order[keep - 1]]) - abs(v[order[keep]]))
            begin += size
        assert begin == len(v)
        return out


def layers(problem):
    """Sizes of the layers in the flat vector: weight then bias, or the weight alone."""
    if hasattr(problem, "classes"):
        return [problem.classes * problem.features, problem.classes]
    return [problem.d]
