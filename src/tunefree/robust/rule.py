"""What a robust aggregation is: it stands where the mean does and sees all rows of a cohort.

A client's vectors are one long vector: distances and lengths are over all channels together, so
that a rule which chooses clients, or shortens what they sent, does the same to all their channels.

    delta_sq = |v|^2 + sum_i p_i min(|z_i - v|, r)^2,    r = median_i |z_i - v|

where v is what the rule makes of the moves z_i. Without the bound r it would be the mean of |z_i|^2
if v is the mean; with it no client moves it far, whatever it sends or reports, so that a server
step made of delta_sq over |delta|^2 (FedExP, FedDuA) stays bounded: r is at most the distance of
the farthest honest client, as long as hostile ones have less than half the weight. Other numbers
(losses, gradient norms) are medians over the clients, or trimmed means where the rule is one.

Nothing is kept between rounds. Memory is O(S d), as all rows are held until the last has come.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.types import Channels, Rows, Vector, to_device
from ..core.vectors import row_sq


@dataclass(frozen=True)
class Sight:
    """Which mean is made: of how many clients, in which round, and what of it."""

    clients: int
    round: int
    what: str


class Robust(ABC):
    """Makes robust aggregators; every rule here is one."""

    def __call__(self, weight: float, round: int, what: str) -> "Gathered":
        """Return the aggregator of a mean."""
        return Gathered(self, round, what)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse a cohort that is too small to withstand what it should, before round 0.

        Args:
            clients: Clients that send.
            rows: Rows that come of it, where clients were put together.
        """

    @abstractmethod
    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return what comes of each channel of vectors (m, d) with weights p (m,), sum 1."""
        ...

    def number(self, values: Rows, p: Tensor, sight: Sight) -> Tensor:
        """Return what comes of a number of each client (m,)."""
        return median(values, p)


class Choosing(Robust):
    """A rule that gives whole clients weights, or shortens what they sent."""

    @abstractmethod
    def counted(self, rows: Channels, p: Tensor, sight: Sight) -> tuple[Channels, Tensor]:
        """Return the rows that count, and the clients' weights (m,), sum 1."""
        ...

    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return the weighted means of the rows that count."""
        rows, w = self.counted(rows, p, sight)
        return {name: z[0] for name, z in mixed(w[None], rows).items()}


class Gathered:
    """Holds rows until the last has come.

    Args:
        rule: What is made of them.
        round: The round.
        what: Tells means of a round apart.
    """

    def __init__(self, rule: Robust, round: int, what: str) -> None:
        self._rule, self._round, self._what = rule, round, what
        self._p: list[Tensor] = []
        self._rows: list[Channels] = []

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); each row is one client."""
        self._p.append(p)
        self._rows.append(rows)

    def result(self) -> Channels:
        """Return what stands for the means; rows that are not finite do not count."""
        if not self._rows:
            return {}
        p = torch.cat(self._p)
        rows = {name: torch.cat([r[name] for r in self._rows]) for name in self._rows[0]}
        sound = torch.stack([z.flatten(1).isfinite().all(1) for z in map(_wide, rows.values())])
        good = sound.all(0)
        if bool(good.any()) and not bool(good.all()):
            p, rows = p[good.to(p.device)], {name: z[good] for name, z in rows.items()}
        p = p / p.sum() if float(p.sum()) > 0 else torch.full_like(p, 1 / len(p))
        sight = Sight(len(p), self._round, self._what)
        vectors = {name: z for name, z in rows.items() if z.ndim > 1}
        out = dict(self._rule.vectors(vectors, p, sight)) if vectors else {}
        for name, z in rows.items():
            if name == "delta_sq" and "delta" in vectors:
                out[name] = square(vectors["delta"], p, out["delta"])
            elif name not in vectors:
                out[name] = self._rule.number(z, p, sight)
        return {name: out[name] for name in rows}


def _wide(z: Tensor) -> Tensor:
    return z[:, None] if z.ndim == 1 else z


def like(p: Tensor, z: Tensor) -> Tensor:
    """Return weights where and as the rows are."""
    return to_device(p.to(z.dtype), z.device)


def square(z: Rows, p: Tensor, v: Vector) -> Tensor:
    """Return the mean square of rows about v, none counted farther than the median one."""
    away = row_sq(z - v)
    near = torch.minimum(away, median(away, p))
    return torch.dot(v, v) + torch.dot(like(p, near), near)


def mixed(matrix: Tensor, rows: Channels) -> Channels:
    """Return combinations of rows: a matrix (k, m) times each channel (m, d)."""
    return {name: torch.tensordot(like(matrix, z), z, dims=1) for name, z in rows.items()}


def distances(rows: Channels) -> Tensor:
    """Return the squared distances between clients (m, m), over all channels, float64."""
    exact = "donot_use_mm_for_euclid_dist"
    parts = [torch.cdist(z, z, compute_mode=exact).double().square() for z in rows.values()]
    return torch.stack(parts).sum(0).cpu()


def lengths(rows: Channels) -> Tensor:
    """Return the clients' lengths (m,), over all channels, float64."""
    return torch.stack([row_sq(z).double() for z in rows.values()]).sum(0).sqrt().cpu()


def median(z: Rows, p: Tensor) -> Tensor:
    """Return the weighted median of each column; between two values, their middle.

    >>> median(torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.full((4,), 0.25))
    tensor(2.5000)
    """
    low, high = middles(z, p)
    return (low + high) / 2


def middles(z: Rows, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper median of each column, which differ where weights balance."""
    m = z.shape[0]
    if bool((p == p[0]).all()):
        ordered = z.sort(0).values
        return ordered[(m - 1) // 2], ordered[m // 2]
    ordered, order = z.sort(0)
    total = like(p, z)[order].cumsum(0)
    half, least = 0.5, 1e-6  # of rounding in the sums
    low = (total < half - least).sum(0, keepdim=True)
    high = (total <= half + least).sum(0, keepdim=True).clamp(max=m - 1)
    return ordered.gather(0, low)[0], ordered.gather(0, high)[0]


def hostile(f: float, sight: Sight, rows: int) -> int:
    """Return how many rows may be hostile: f of the clients, as far as any rule can withstand.

    >>> hostile(0.2, Sight(12, 0, "train"), 12), hostile(4, Sight(5, 0, "train"), 5)
    (3, 2)
    """
    count = f if isinstance(f, int) else math.ceil(f * sight.clients - 1e-9)
    return min(int(count), (rows - 1) // 2)


def check_f(owner: str, f: float) -> None:
    """Refuse what is neither a number of clients nor a share of them below one half."""
    if isinstance(f, int) and not isinstance(f, bool) and f >= 0:
        return
    if isinstance(f, float) and 0 <= f < 0.5:
        return
    raise ArgumentError(
        f"{owner}(f=...) must be a whole number of clients >= 0, or a share of them below 0.5, "
        f"got {f!r}."
    )


def check_rows(owner: str, f: float, clients: int, rows: int, more: int) -> None:
    """Refuse fewer than 2 f + more rows."""
    count = f if isinstance(f, int) else math.ceil(f * clients - 1e-9)
    need = 2 * int(count) + more
    if rows < need:
        bucketed = "" if rows == clients else f", put together to {rows}"
        raise ArgumentError(
            f"{owner}(f={f!r}) needs at least {need} uploads a round, but the cohort has "
            f"{clients} clients{bucketed}; take a larger cohort or a smaller f."
        )
