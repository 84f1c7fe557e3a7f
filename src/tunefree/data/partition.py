"""Partitions of a dataset's rows: even, with label skew, by shards, or by their natural owners.

A partitioner is a frozen dataclass with `assign`, which returns the client of each row. Every row
goes to exactly one client (`ByOwner` may leave rows out, marked -1), every client gets at least
`min_samples`, and the same seed gives the same assignment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ArgumentError, DataError, check_int
from ..core.fields import Checked, Positive, PositiveInt
from ..core.random import bits, key, numpy_generator
from ..core.text import Registry
from ..core.types import Array

_BLOCK = 4096  # rows assigned at once in the balanced split
_DRAWS = 1000  # of a split that is drawn until it is even enough


@runtime_checkable
class Partitioner(Protocol):
    """Anything that says which client owns each row."""

    def assign(self, y: Tensor, clients: int | None, seed: int, owner: Tensor | None) -> Tensor:
        """Return the client of each row, (n,) int64; -1 leaves a row out.

        Args:
            y: Targets, (n, ...).
            clients: Number of clients.
            seed: Decides every random choice.
            owner: Natural owner of each row, where the dataset knows it.
        """


class _AllRows(Checked, ABC):
    """A partitioner that gives every row to one of a number of clients."""

    by_label: ClassVar[bool] = True  # whether it reads the classes of the rows
    min_samples = 1

    def assign(
        self, y: Tensor, clients: int | None, seed: int, owner: Tensor | None = None
    ) -> Tensor:
        """Return the client of each row."""
        name, rows, least = type(self).__name__, len(y), self.min_samples
        if self.by_label and (y.ndim != 1 or y.is_floating_point()):
            raise DataError(
                f"{name} needs class labels, integers in one axis, but y is {y.dtype} of shape "
                f"{tuple(y.shape)}; use Iid or ByOwner."
            )
        if clients is None:
            use = "give split(..., clients=...)"
            raise ArgumentError(f"{name} needs the number of clients; {use}.")
        check_int("split", "clients", clients)
        if clients * least > rows:
            raise DataError(
                f"{name} cannot give {clients} clients at least {least} of {rows} rows each; use "
                f"at most {rows // least} clients."
            )
        rng = numpy_generator(seed, f"split {name.lower()}")
        return torch.from_numpy(self._divide(y.cpu().numpy(), clients, rng))

    @abstractmethod
    def _divide(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        """Return the client of each row."""


@dataclass(frozen=True)
class Iid(_AllRows):
    """Divide shuffled rows evenly; sizes differ by at most 1.

    >>> Iid().assign(torch.zeros(5), 2, 0).bincount().tolist()
    [3, 2]
    """

    by_label = False

    def _divide(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        out = np.empty(len(labels), np.int64)
        out[rng.permutation(len(labels))] = np.arange(len(labels)) % clients
        return out


@dataclass(frozen=True)
class Dirichlet(_AllRows):
    """Skewed labels: the smaller alpha, the fewer classes a client has.

    Per class (Hsu et al. 2019, arXiv:1909.06335, in the form of Yurochkin et al. 2019): draw
    p ~ Dir(alpha) over clients and cut the class's shuffled rows in these proportions; client
    sizes then differ. With `balanced`, sizes differ by at most 1: each client draws its
    preference p_i ~ Dir(alpha) over classes, and rows are assigned one at a time, clients in random
    order, without replacement; p_i is renormalised over what is left when a class runs out (as in
    the code of FedDyn and FedExP).

    Differences from the papers: drawn once instead of again until every client has enough; clients
    that end short of `min_samples` get random rows of the largest clients, which are levelled down
    together. So it ends for any alpha. Gammas are drawn in log space, so tiny alphas are exact.
    In the balanced form the order of clients is a shuffle of all places to fill.

    Args:
        alpha: Concentration, > 0; 0.1 is strong skew, 100 nearly none.
        balanced: Give every client the same number of rows.
        min_samples: Rows that every client gets at least, >= 1.

    >>> y = torch.arange(100) % 10
    >>> Dirichlet(0.1, balanced=True).assign(y, 4, 0).bincount().tolist()
    [25, 25, 25, 25]
    """

    alpha: Positive
    balanced: bool = False
    min_samples: PositiveInt = 1

    def _divide(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        if self.balanced:
            return _divide_evenly(labels, clients, self.alpha, rng)
        out = np.empty(len(labels), np.int64)
        for rows in _by_label(labels, rng):
            ends = _cut(len(rows), np.exp(_log_dirichlet(rng, self.alpha, (1, clients)))[0])
            out[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        return _top_up(out, clients, self.min_samples, rng)


@dataclass(frozen=True)
class RelaySum(_AllRows):
    """Skewed labels with clients of similar size: at least half of the mean each.

    The split of Vogels et al. 2021 (arXiv:2110.04175), after Lin et al. 2021 (arXiv:2102.04761).
    Rows are shuffled and cut into parts for at most `group` clients each, in proportion to their
    number. Within a part, class after class: draw p ~ Dir(alpha) over its clients, set p to 0 where
    a client has the mean of the part or more, and cut the class's rows in these proportions. All is
    drawn again until every client has half of the mean of its part.

    Differences from the authors' code: it does not end where no draw is even enough; this is an
    error after 1,000. Gammas are drawn in log space. Their training then levels the sizes by
    moving rows between neighbours; here sizes stay as they were drawn.

    Args:
        alpha: Concentration, > 0; 0.1 is strong skew, 100 nearly none.
        group: Clients that share a part, >= 1.

    >>> RelaySum(1.0).assign(torch.arange(100) % 10, 4, 0).bincount().tolist()
    [28, 18, 29, 25]
    """

    alpha: Positive
    group: PositiveInt = 10

    def _divide(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        n = len(labels)
        order, out = rng.permutation(n), np.empty(n, np.int64)
        for first in range(0, clients, self.group):
            end = min(first + self.group, clients)
            rows = order[n * first // clients : n * end // clients]
            out[rows] = first + self._divide_part(labels[rows], end - first, rng)
        return out

    def _divide_part(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        """Return the client of each row of a part."""
        classes = _by_label(labels, rng)
        mean = len(labels) / clients
        for _ in range(_DRAWS):
            log_p = _log_dirichlet(rng, self.alpha, (len(classes), clients))
            sizes, cuts = np.zeros(clients, np.int64), []
            for rows, log_share in zip(classes, log_p, strict=True):
                logs = np.where(sizes < mean, log_share, -np.inf)  # some client is below the mean
                cuts.append(_cut(len(rows), np.exp(logs - logs.max())))
                sizes += np.diff(cuts[-1], prepend=0)
            if sizes.min() >= max(1, int(mean / 2)):
                break
        else:
            raise DataError(
                f"RelaySum(alpha={self.alpha}) found no split of {len(labels)} rows of "
                f"{len(classes)} classes in which each of {clients} clients has half of the mean; "
                "use a larger alpha, fewer clients, or Dirichlet."
            )
        out = np.empty(len(labels), np.int64)
        for rows, ends in zip(classes, cuts, strict=True):
            out[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        return out


@dataclass(frozen=True)
class Shards(_AllRows):
    """Sort rows by label, cut them into clients * k shards, give k to each client.

    McMahan et al. 2017, arXiv:1602.05629, section 3. Differences from the paper: shards may differ
    by one row where the number of rows does not divide.

    Args:
        k: Shards per client, >= 1; about the number of classes a client sees.

    >>> Shards(1).assign(torch.tensor([0, 1, 0, 1]), 2, 0).bincount().tolist()
    [2, 2]
    """

    k: PositiveInt

    def _divide(self, labels: Array, clients: int, rng: np.random.Generator) -> Array:
        n, shards = len(labels), clients * self.k
        if n < shards:
            raise DataError(
                f"Shards(k={self.k}) with clients={clients} needs at least {shards} rows, but "
                f"there are {n}; use fewer shards or clients."
            )
        owner_of = rng.permutation(np.arange(shards) // self.k)
        out = np.empty(n, np.int64)
        out[np.argsort(labels, kind="stable")] = owner_of[np.arange(n) * shards // n]
        return out


@dataclass(frozen=True)
class ByOwner(Checked):
    """The dataset's natural owners: writers, speaking roles.

    With `clients` smaller than the number of owners, that many are taken in a random order of
    owners set by the seed, so that more clients always include the earlier ones.

    Args:
        min_samples: Owners with fewer rows are left out, >= 1.

    >>> ByOwner().assign(torch.zeros(3), None, 0, torch.tensor([4, 4, 7])).tolist()
    [0, 0, 1]
    """

    min_samples: PositiveInt = 1

    def assign(
        self, y: Tensor, clients: int | None, seed: int, owner: Tensor | None = None
    ) -> Tensor:
        """Return the client of each row, -1 for rows of owners that are left out."""
        if owner is None:
            raise DataError(
                "ByOwner() needs a dataset that knows the owner of each row; use Iid, Dirichlet or "
                "Shards for this one."
            )
        kept = self.owners(owner, clients, seed)
        place = torch.searchsorted(kept, owner).clamp(max=len(kept) - 1)
        return torch.where(kept[place] == owner, place, -1)

    def owners(self, owner: Tensor, clients: int | None, seed: int) -> Tensor:
        """Return the owners that become clients, ascending."""
        labels, counts = np.unique(owner.cpu().numpy(), return_counts=True)
        found = torch.from_numpy(labels[counts >= self.min_samples])
        count = len(found) if clients is None else clients
        if not 1 <= count <= len(found):
            raise DataError(
                f"ByOwner(min_samples={self.min_samples}) with clients={clients} must take between "
                f"1 and {len(found)} clients, as {len(found)} owners have that many rows."
            )
        draws = bits(key(seed, "owners"), found)
        return found[torch.argsort(draws, stable=True)[:count]].sort().values


SPLITS: Registry[Partitioner] = Registry(
    "split",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "relaysum": RelaySum,
        "shards": Shards,
        "owner": ByOwner,
    },
)
parse = SPLITS.parse


def _cut(rows: int, p: Array) -> Array:
    """Return where each client's share of some rows ends; p is known up to a factor."""
    ends: Array = np.floor(np.cumsum(p) / p.sum() * rows + 1e-9).astype(np.int64)
    ends[int(np.flatnonzero(p)[-1]) :] = rows
    return ends


def _divide_evenly(labels: Array, clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """Give each place of a shuffled row of clients a class, then the next row of that class."""
    classes = _by_label(labels, rng)
    left = np.array([len(rows) for rows in classes])
    log_p = _log_dirichlet(rng, alpha, (clients, len(classes)))
    places = rng.permutation(np.arange(len(labels)) % clients)  # clients in this order
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


def _top_up(owner: Array, clients: int, least: int, rng: np.random.Generator) -> Array:
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
