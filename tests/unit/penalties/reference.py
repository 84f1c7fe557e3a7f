"""Penalties one number at a time, in NumPy, from their definitions."""

import numpy as np

ALPHAS = (0.05, 0.5, 1.0, 2.0)


def l1(t, weight):
    return weight * abs(t)


def l2(t, weight):
    return weight / 2 * t * t


def elastic_net(t, first, second):
    return first * abs(t) + second / 2 * t * t


def mcp(t, lam, gamma):
    t = abs(t)
    return np.where(t <= gamma * lam, lam * t - t * t / (2 * gamma), gamma * lam * lam / 2)


def scad(t, lam, a):
    t = abs(t)
    middle = (2 * a * lam * t - t * t - lam * lam) / (2 * (a - 1))
    return np.where(t <= lam, lam * t, np.where(t <= a * lam, middle, lam * lam * (a + 1) / 2))


def box(t, low, high):
    return np.where((low <= t) & (t <= high), 0.0, np.inf)


def search(h, v, alpha):
    """Minimise h(u) + (u - v)^2 / (2 alpha), a convex sum, on a grid that closes in."""
    middle, width = 0.0, 8.0
    for _ in range(3):
        u = np.append(np.linspace(middle - width, middle + width, 4001), 0.0)  # the kink too
        middle = u[np.argmin(h(u) + (u - v) ** 2 / (2 * alpha))]
        width /= 1000
    return middle


def level(v, total):
    """Halve an interval until sum_j max(v_j - tau, 0) is total."""
    low, high = v.min() - total, v.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(v - tau, 0).sum() > total else (low, tau)
    return tau
