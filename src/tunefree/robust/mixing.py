"""Mixing before a rule, for clients with different data: rows are averaged with others first.

Allouah et al., AISTATS 2023 (nearest-neighbour mixing), arXiv:2302.01772;
Karimireddy, He & Jaggi, ICLR 2022, Algorithm 1 (bucketing), arXiv:2006.09365.

    NNM:        z_i <- mean of the m - f rows nearest to z_i, itself included
    bucketing:  the rows in a random order, each `size` of them averaged: ceil(m / size) rows

Differences from the papers: the means may be weighted, and the weight of a bucket is that of its
clients; rows at the same distance are all included. Numbers (losses) are not mixed, since a hostile
client with an honest vector could otherwise spread its false number.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.fields import NonNegativeInt, PositiveInt
from ..core.random import bits, key, purpose
from ..core.types import Channels, Rows
from .rule import Hostile, MeanContext, Robust, check_rows, combine, count_hostile, distances


@dataclass(frozen=True)
class PreAggregation(Robust):
    """A rule that mixes the rows and passes them to another rule."""

    inner: Robust

    def aggregate_number(self, values: Rows, p: Tensor, context: MeanContext) -> Tensor:
        """Return the inner rule's aggregate of the clients' numbers, which are not mixed."""
        return self.inner.aggregate_number(values, p, context)


@dataclass(frozen=True)
class Weighted(PreAggregation):
    """A rule in which clients count by the method's weights instead of alike.

    With weights by samples, a client that claims more samples than all others decides alone.
    """

    weighted: ClassVar[bool] = True

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if the inner rule does."""
        self.inner.check(clients, rows)

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the inner rule's aggregate."""
        return self.inner.aggregate_vectors(rows, p, context)


@dataclass(frozen=True)
class NNM(PreAggregation):
    """Nearest-neighbour mixing before a rule.

    Args:
        inner: The rule.
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    f: Hostile

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if half of the cohort may be hostile."""
        check_rows("NNM", self.f, clients, clients if rows is None else rows, 1)
        self.inner.check(clients, rows)

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the inner rule's aggregate of the mixed rows."""
        m = len(p)
        apart = distances(rows)
        farthest = apart.kthvalue(m - count_hostile(self.f, context, m), dim=1, keepdim=True).values
        matrix = torch.where(apart <= farthest, p.cpu(), 0.0)
        matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1e-300)
        return self.inner.aggregate_vectors(combine(matrix, rows), p, context)


@dataclass(frozen=True)
class Bucketing(PreAggregation):
    """Random buckets of clients before a rule.

    Args:
        inner: The rule; its f counts hostile buckets.
        size: Clients in a bucket, >= 1.
        seed: Seed of the assignment to buckets, which also depends on the round.
    """

    size: PositiveInt = 2
    seed: NonNegativeInt = 0

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if there are too few buckets for the inner rule."""
        self.inner.check(clients, -(-(clients if rows is None else rows) // self.size))

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the inner rule's aggregate of the buckets' means."""
        m = len(p)
        seed = key(self.seed, "bucketing", context.round, purpose(context.what))
        draws = bits(seed, torch.arange(m))
        bucket = torch.empty(m, dtype=torch.int64)
        bucket[torch.argsort(draws, stable=True)] = torch.arange(m) // self.size
        matrix = torch.where(torch.arange(-(-m // self.size))[:, None] == bucket, p.cpu(), 0.0)
        weight = matrix.sum(1)
        matrix = matrix / weight[:, None].clamp(min=1e-300)
        return self.inner.aggregate_vectors(combine(matrix, rows), weight, context)
