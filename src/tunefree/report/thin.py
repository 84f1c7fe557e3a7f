"""Fewer points for the same curve: every peak and every dip stays."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def kept(low: Numbers, high: Numbers, most: int = 600) -> NDArray[np.int64]:
    """Return which points of a band to draw, at most `most` of them, in order.

    The first and the last stay; between them each stretch keeps its lowest `low` and its highest
    `high`.

    >>> y = np.zeros(10_000)
    >>> y[1234] = 7.0
    >>> 1234 in kept(y, y), len(kept(y, y)) <= 600
    (True, True)
    """
    n = len(low)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(1, n - 1, (most - 2) // 2 + 1).astype(int)
    found = {0, n - 1}
    for a, b in pairwise(edges):
        found |= {a + int(np.argmin(low[a:b])), a + int(np.argmax(high[a:b]))}
    return np.array(sorted(found))


def spaced(n: int, most: int = 600) -> NDArray[np.int64]:
    """Return at most `most` places of n, evenly spaced, both ends included.

    >>> spaced(9, 3).tolist()
    [0, 4, 8]
    """
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.arange(0)


def short(values: Any) -> list[float | None]:
    """Return numbers with six digits, as many as a screen can show; None where there is none.

    >>> short(np.array([0.123456789, 2.0, np.nan]))
    [0.123457, 2, None]
    """
    return [_short(float(v)) for v in values]


def _short(value: float) -> float | None:
    if not np.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")
