"""The base classes of robust rules, which replace the weighted mean over a cohort.

The vectors of a client are treated as one long vector: distances and norms are over all channels
together, so that a rule that selects clients, or clips their uploads, does so on every channel.

    delta_sq = |v|^2 + sum_i p_i min(|z_i - v|, r)^2,    r = median_i |z_i - v|

where v is the rule's result for the updates z_i. Without the bound r it would be the mean of
|z_i|^2 if v is the mean. With it, no client has a large effect, whatever it sends or reports, so
that server steps computed from delta_sq / |delta|^2 (FedExP, FedDuA) stay bounded: r is at most the
distance of the farthest honest client if hostile clients have less than half of the weight. Numbers
(losses, gradient norms) are aggregated by their median, or by the trimmed mean if that is the rule.

Clients count alike, whatever the method's weights are: with weights by samples, a client that
claims many would be the median. `Weighted` lets them count by their weights.

Rules have no state between rounds. Memory is O(S d): all rows are held until the last one arrived.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_argument
from ..core.fields import Checked
from ..core.types import Channels, Rows, Vector, to_device
from ..core.vectors import row_sq


@dataclass(frozen=True)
class MeanContext:
    """The mean that is computed.

    Args:
        clients: Number of clients that sent something.
        round: The round.
        what: Distinguishes the means of a round, such as "train" and "probe 0".
    """

    clients: int
    round: int
    what: str


class Robust(Checked, ABC):
    """A robust rule; calling it creates an aggregator.

    A field `f`, if a rule has one, is the number or the share of hostile clients that it tolerates.
    """

    weighted: ClassVar[bool] = False  # whether clients count by their weights instead of alike
    more: ClassVar[int] = 1  # the rule needs 2 f uploads and this many more

    def __call__(self, weight: float, round: int, what: str) -> "RobustAggregator":
        """Return the aggregator of one mean; see `server.aggregate.Aggregation`."""
        return RobustAggregator(self, round, what)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if the cohort is too small for the rule.

        Args:
            clients: Cohort size.
            rows: Rows that reach the rule, if clients were averaged before; None is `clients`.
        """
        f, rows = getattr(self, "f", 0), clients if rows is None else rows
        need = 2 * _count(f, clients) + self.more
        if rows < need:
            bucketed = "" if rows == clients else f", put together to {rows}"
            raise ArgumentError(
                f"{type(self).__name__}(f={f!r}) needs at least {need} uploads a round, but the "
                f"cohort has {clients} clients{bucketed}; take a larger cohort or a smaller f."
            )

    @abstractmethod
    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the aggregate of each channel (m, d), with weights p (m,) that sum to 1."""

    def aggregate_number(self, values: Rows, p: Tensor, context: MeanContext) -> Tensor:
        """Return the aggregate of one number per client (m,)."""
        return median(values, p)


class SelectionRule(Robust):
    """A rule that assigns weights to clients, or clips their uploads."""

    @abstractmethod
    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the rows to average, and the clients' weights (m,), which sum to 1."""

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        rows, w = self.select(rows, p, context)
        return {name: z[0] for name, z in combine(w[None], rows).items()}


class RobustAggregator:
    """Collects the rows of all clients and applies a rule; arguments as in `MeanContext`."""

    def __init__(self, rule: Robust, round: int, what: str) -> None:
        self._rule, self._round, self._what = rule, round, what
        self._p: list[Tensor] = []
        self._rows: list[Channels] = []

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); each row is one client."""
        self._p.append(p)
        self._rows.append(rows)

    def result(self) -> Channels:
        """Return the aggregate of each channel; clients with non-finite rows are left out."""
        if not self._rows:
            return {}
        p = torch.cat(self._p)
        rows = {name: torch.cat([r[name] for r in self._rows]) for name in self._rows[0]}
        finite = [z.reshape(len(z), -1).isfinite().all(1) for z in rows.values()]
        good = torch.stack(finite).all(0)
        if bool(good.any()) and not bool(good.all()):
            p, rows = p[good.to(p.device)], {name: z[good] for name, z in rows.items()}
        is_kept = self._rule.weighted or bool((p == p[0]).all())
        p = p / p.sum() if is_kept and float(p.sum()) > 0 else torch.full_like(p, 1 / len(p))
        context = MeanContext(len(p), self._round, self._what)
        vectors = {name: z for name, z in rows.items() if z.ndim > 1}
        out = dict(self._rule.aggregate_vectors(vectors, p, context)) if vectors else {}
        for name, z in rows.items():
            if name == "delta_sq" and "delta" in vectors:
                out[name] = bounded_square(vectors["delta"], p, out["delta"])
            elif name not in vectors:
                out[name] = self._rule.aggregate_number(z, p, context)
        return {name: out[name] for name in rows}


def weights_like(p: Tensor, z: Tensor) -> Tensor:
    """Return weights with the dtype and device of the rows."""
    return to_device(p.to(z.dtype), z.device)


def bounded_square(z: Rows, p: Tensor, v: Vector) -> Tensor:
    """Return |v|^2 plus the mean squared distance from v, each distance at most the median one."""
    away = row_sq(z - v)
    near = torch.minimum(away, median(away, p))
    return torch.dot(v, v) + torch.dot(weights_like(p, near), near)


def combine(matrix: Tensor, rows: Channels) -> Channels:
    """Return linear combinations of rows: a matrix (k, m) times each channel (m, d)."""
    return {name: torch.tensordot(weights_like(matrix, z), z, dims=1) for name, z in rows.items()}


def distances(rows: Channels) -> Tensor:
    """Return the squared distances between clients (m, m), over all channels, float64."""
    exact = "donot_use_mm_for_euclid_dist"
    parts = [torch.cdist(z, z, compute_mode=exact).double().square() for z in rows.values()]
    return torch.stack(parts).sum(0).cpu()


def norms(rows: Channels) -> Tensor:
    """Return the clients' norms (m,), over all channels, float64."""
    return torch.stack([row_sq(z).double() for z in rows.values()]).sum(0).sqrt().cpu()


def median(z: Rows, p: Tensor) -> Tensor:
    """Return the weighted median of each column; the midpoint if it lies between two values.

    >>> median(torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.full((4,), 0.25))
    tensor(2.5000)
    """
    m = z.shape[0]
    ordered, order = z.sort(0)
    if bool((p == p[0]).all()):
        return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2
    total = weights_like(p, z)[order].cumsum(0)
    half, least = 0.5, 1e-6  # tolerance for rounding in the sums
    low = (total < half - least).sum(0, keepdim=True)
    high = (total <= half + least).sum(0, keepdim=True).clamp(max=m - 1)
    return (ordered.gather(0, low)[0] + ordered.gather(0, high)[0]) / 2


def count_hostile(f: float, context: MeanContext, rows: int) -> int:
    """Return the number of rows that may be hostile: f of the clients, and less than half of them.

    >>> count_hostile(0.2, MeanContext(12, 0, "train"), 12)
    3
    >>> count_hostile(4, MeanContext(5, 0, "train"), 5)
    2
    """
    return min(_count(f, context.clients), (rows - 1) // 2)


def _count(f: float, clients: int) -> int:
    return f if isinstance(f, int) else math.ceil(f * clients - 1e-9)


def check_f(owner: str, name: str, f: float) -> None:
    """Raise an ArgumentError if f is neither a number of clients nor a share below one half."""
    is_count = isinstance(f, int) and not isinstance(f, bool) and f >= 0
    is_share = isinstance(f, float) and 0 <= f < 0.5
    rule = "an int >= 0 (clients), or a fraction of them below 0.5"
    check_argument(owner, name, f, rule, is_count or is_share)


Hostile: TypeAlias = Annotated[int | float, check_f]
"""Hostile clients to tolerate: a number, or a share of the clients that answer."""
