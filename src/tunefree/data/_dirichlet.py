"""The draws behind the Dirichlet splits, in NumPy."""

import numpy as np

from ._arrays import Array

_BLOCK = 4096  # rows dealt at once in the balanced split


def cut_classes(labels: Array, clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """Cut each class's shuffled rows among clients in proportions p ~ Dir(alpha)."""
    out = np.empty(len(labels), np.int64)
    for rows in _by_label(labels, rng):
        p = np.exp(_log_dirichlet(rng, alpha, (1, clients)))[0]
        ends = np.floor(np.cumsum(p) / p.sum() * len(rows) + 1e-9).astype(np.int64)
        ends[-1] = len(rows)
        out[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return out


def deal_evenly(labels: Array, clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """Give each place of a shuffled row of clients a class, then the next row of that class."""
    classes = _by_label(labels, rng)
    left = np.array([len(rows) for rows in classes])
    log_p = _log_dirichlet(rng, alpha, (clients, len(classes)))
    places = rng.permutation(np.arange(len(labels)) % clients)  # clients in dealing order
    u = rng.random(len(labels))
    picked = np.empty(len(labels), np.int64)
    cdf, done = _cdf(log_p, left), 0
    while done < len(labels):
        block = slice(done, min(done + _BLOCK, len(labels)))
        pick = (cdf[places[block]] <= u[block, None]).sum(1)
        # The classes stay as they are until one has given its last row.
        seen = np.cumsum(pick[:, None] == np.arange(len(classes)), axis=0)  # (block, classes)
        last = (seen >= left) & (left > 0)
        good = int(last.any(1).argmax()) + 1 if last.any() else len(pick)
        picked[done : done + good] = pick[:good]
        left = left - seen[good - 1]
        cdf, done = _cdf(log_p, left) if last.any() else cdf, done + good
    out = np.empty(len(labels), np.int64)
    for c, rows in enumerate(classes):
        out[rows] = places[picked == c]
    return out


def top_up(owner: Array, clients: int, least: int, rng: np.random.Generator) -> Array:
    """Move random rows from the largest clients, levelled together, to those short of `least`."""
    sizes = np.bincount(owner, minlength=clients)
    short = (least - sizes).clip(min=0)
    need = int(short.sum())
    if need == 0:
        return owner
    low, high = least, int(sizes.max())  # the highest level that frees enough rows
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if (sizes - level).clip(min=0).sum() >= need else (low, level - 1)
    give = (sizes - low).clip(min=0)
    spare = int(give.sum()) - need
    give[np.flatnonzero(give)[:spare]] -= 1
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    rank = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
    moved = rng.permutation(order[rank < give[owner[order]]])
    out = owner.copy()
    out[moved] = np.repeat(np.arange(clients), short)
    return out


def _by_label(labels: Array, rng: np.random.Generator) -> list[Array]:
    """Return the shuffled rows of each class that occurs."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    ends = np.unique(labels[order], return_index=True)[1][1:]
    return np.split(order, ends)


def _log_dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> Array:
    """Draw log p, p ~ Dir(alpha), in each row; exact where p itself would underflow.

    A Gamma(a) variable is a Gamma(a + 1) variable times U^(1/a), and the largest log is set to 0
    before anything is exponentiated.
    """
    log_u = np.log1p(-rng.random(shape))
    logs = np.log(rng.standard_gamma(alpha + 1.0, shape)) + log_u / max(alpha, 1e-300)
    logs -= logs.max(axis=1, keepdims=True)
    out: Array = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return out


def _cdf(log_p: Array, left: Array) -> Array:
    """Return each client's cumulative preference over the classes that still have rows."""
    if not left.any():
        return np.ones_like(log_p)
    open_ = np.where(left > 0, log_p, -np.inf)
    p = np.exp(open_ - open_.max(axis=1, keepdims=True))
    cdf: Array = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
    cdf[:, int(np.flatnonzero(left)[-1]) :] = 1.0  # u < 1 never falls behind the last open class
    return cdf
