"""What goes in front of a rule where clients' data differ: rows are averaged with others first.

Allouah et al., AISTATS 2023 (nearest-neighbour mixing), arXiv:2302.01772;
Karimireddy, He & Jaggi, ICLR 2022, Algorithm 1 (bucketing), arXiv:2006.09365.

    NNM:        z_i <- mean of the m - f rows nearest to z_i, itself included
    bucketing:  the rows in a random order, each `size` of them averaged: ceil(m / size) rows

Differences from the papers: the means may be weighted, a bucket weighs what its clients do; rows
equally near are all taken. Numbers of clients (losses) are not mixed: a client with a decent
vector could otherwise spread its lie.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_int
from ..core.random import bits, key, purpose
from ..core.types import Channels, Rows
from .rule import Robust, Sight, check_f, check_rows, distances, hostile, mixed


@dataclass(frozen=True)
class _Before(Robust):
    """A rule that changes rows for another."""

    inner: Robust

    def _check(self) -> None:
        if not isinstance(self.inner, Robust):
            raise ArgumentError(
                f"{type(self).__name__}(inner=...) must be a robust rule, got {self.inner!r}."
            )

    def number(self, values: Rows, p: Tensor, sight: Sight) -> Tensor:
        """Return what the inner rule makes of the clients' numbers as they are."""
        return self.inner.number(values, p, sight)


@dataclass(frozen=True)
class NNM(_Before):
    """Nearest-neighbour mixing in front of a rule.

    Args:
        inner: The rule.
        f: Hostile clients to withstand: a number of them, or a share of those who answer.
    """

    f: int | float

    def __post_init__(self) -> None:
        self._check()
        check_f("NNM", self.f)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse a cohort half of which may be hostile."""
        check_rows("NNM", self.f, clients, clients if rows is None else rows, 1)
        self.inner.check(clients, rows)

    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return what the inner rule makes of the mixed rows."""
        m = len(p)
        apart = distances(rows)
        farthest = apart.kthvalue(m - hostile(self.f, sight, m), dim=1, keepdim=True).values
        matrix = torch.where(apart <= farthest, p.cpu(), 0.0)
        matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1e-300)
        return self.inner.vectors(mixed(matrix, rows), p, sight)


@dataclass(frozen=True)
class Bucketing(_Before):
    """Random buckets of clients in front of a rule.

    Args:
        inner: The rule; it withstands as many hostile buckets as it would clients.
        size: Clients in a bucket, >= 1.
        seed: Who shares a bucket is a function of it and the round.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        check_int("Bucketing", "size", self.size)
        check_int("Bucketing", "seed", self.seed, 0)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse too few buckets for the inner rule."""
        self.inner.check(clients, -(-(clients if rows is None else rows) // self.size))

    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return what the inner rule makes of the buckets' means."""
        m = len(p)
        draws = bits(key(self.seed, "bucketing", sight.round, purpose(sight.what)), torch.arange(m))
        bucket = torch.empty(m, dtype=torch.int64)
        bucket[torch.argsort(draws, stable=True)] = torch.arange(m) // self.size
        matrix = torch.where(torch.arange(-(-m // self.size))[:, None] == bucket, p.cpu(), 0.0)
        weight = matrix.sum(1)
        matrix = matrix / weight[:, None].clamp(min=1e-300)
        return self.inner.vectors(mixed(matrix, rows), weight, sight)
