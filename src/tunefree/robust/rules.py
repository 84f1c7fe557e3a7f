"""Robust rules: medians, trimmed means, selection, clipping, and mixing before another rule."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.fields import NonNegativeInt, Positive, PositiveInt
from ..core.random import bits, key, purpose
from ..core.types import Channels, Rows
from .rule import (
    Hostile,
    MeanContext,
    Robust,
    SelectionRule,
    combine,
    count_hostile,
    distances,
    median,
    norms,
    weights_like,
)


@dataclass(frozen=True)
class Median(Robust):
    """Coordinate-wise median and trimmed mean.

    Yin, Chen, Ramchandran & Bartlett, ICML 2018, Definitions 1 and 2. arXiv:1803.01498

        median:        out_j = median_i z_ij
        trimmed mean:  out_j = mean of z_ij without the f smallest and the f largest

    Differences from the paper: weights may be unequal. The median is then the weighted median; the
    trimmed mean drops f clients at each end, independent of weights, and averages the rest by
    weight.
    """

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        return {name: median(z, p) for name, z in rows.items()}


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its f smallest and f largest entries.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    f: Hostile

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        return {name: self.aggregate_number(z, p, context) for name, z in rows.items()}

    def aggregate_number(self, values: Rows, p: Tensor, context: MeanContext) -> Tensor:
        m = values.shape[0]
        f = count_hostile(self.f, context, m)
        light = torch.argsort(p, stable=True)  # ties: the entry with the smaller weight comes first
        ordered, order = values[light.to(values.device)].sort(dim=0, stable=True)
        w = weights_like(p[light], values)[order][f : m - f]
        w = w / w.sum(0).clamp(min=torch.finfo(values.dtype).tiny)
        return (w * ordered[f : m - f]).sum(0)


@dataclass(frozen=True)
class GeometricMedian(SelectionRule):
    """Geometric median by smoothed Weiszfeld steps.

    Pillutla, Kakade & Harchaoui, IEEE TSP 2022, Algorithm 2 (RFA). arXiv:1912.13445

        out = argmin_z sum_i p_i |z - z_i|
        w_i = p_i / max(nu, |z - z_i|),    z <- sum_i w_i z_i / sum_i w_i

    Differences from the paper: starts at the coordinate median instead of the mean, which one very
    large row can move so far that many steps are needed; nu is relative to the median distance; it
    stops once weights change by less than 1e-7, or after `steps`.

    Args:
        steps: Maximum number of Weiszfeld steps, >= 1.
        nu: Lower bound on distances, in units of the median distance, > 0.
    """

    steps: PositiveInt = 50
    nu: Positive = 1e-6

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        w, p = p.double().cpu(), p.double().cpu()
        centre = {name: median(z, p) for name, z in rows.items()}
        for _ in range(self.steps):
            away = norms({name: z - centre[name] for name, z in rows.items()})
            new = p / away.clamp(min=max(self.nu * float(away.median()), 1e-300))
            new = new / new.sum()
            same = float((new - w).abs().max()) < 1e-7
            w = new
            if same:
                break
            centre = {name: z[0] for name, z in combine(w[None], rows).items()}
        return rows, weights_like(w, next(iter(rows.values())))


def krum_weights(rows: Channels, p: Tensor, f: int, keep: int) -> Tensor:
    """Return the weights (m,) of the `keep` clients with the least scores, 0 for the others."""
    m = len(p)
    near = distances(rows).sort(1).values[:, 1:]  # without itself
    score = near[:, : max(1, m - f - 2)].sum(1)
    taken = score <= score.kthvalue(keep).values
    p = p.cpu()
    w = torch.where(taken, p, 0.0) if float(p[taken].sum()) > 0 else taken.to(p.dtype)
    return w / w.sum()


@dataclass(frozen=True)
class Krum(SelectionRule):
    """Krum and multi-Krum: select the clients with the nearest neighbours.

    Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017, Section 3. arXiv:1703.02757

        score_i = sum of |z_i - z_j|^2 over the m - f - 2 nearest j != i
        Krum: the row of the least score;  multi-Krum: the mean of the `keep` rows of least scores

    Differences from the paper: rows with the same score are all selected, so that the order of
    clients does not matter; the mean of multi-Krum may be weighted.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    more: ClassVar[int] = 3
    f: Hostile

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        return rows, krum_weights(rows, p, count_hostile(self.f, context, len(p)), 1)


@dataclass(frozen=True)
class MultiKrum(SelectionRule):
    """The mean of several clients' uploads, those nearest to their neighbours.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
        keep: Number of selected clients, >= 1; None is all but f.
    """

    more: ClassVar[int] = 3
    f: Hostile
    keep: PositiveInt | None = None

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        f = count_hostile(self.f, context, len(p))
        keep = len(p) - f if self.keep is None else min(self.keep, len(p))
        return rows, krum_weights(rows, p, f, keep)


def _clip_norms(rows: Channels, p: Tensor, radius: float | None) -> Channels:
    size = norms(rows)
    most = float(median(size, p.cpu())) if radius is None else radius
    factor = (most / size.clamp(min=1e-300)).clamp(max=1.0)
    return {name: z * weights_like(factor, z)[:, None] for name, z in rows.items()}


@dataclass(frozen=True)
class NormClip(SelectionRule):
    """Clipping: uploads are clipped to a radius around zero or a centre, and averaged.

    Sun, Kairouz, Suresh & McMahan 2019, arXiv:1911.07963 (norm clipping); Karimireddy, He & Jaggi,
    ICML 2021, Algorithm 2, arXiv:2012.10333 (centred clipping).

        norm:     out = sum_i p_i z_i min(1, r / |z_i|)
        centred:  v <- v + sum_i p_i (z_i - v) min(1, r / |z_i - v|)       `steps` times

    Differences from the papers: without a radius, r is the median norm (or distance from v), so
    that nothing depends on the model's scale. Centred clipping starts at this round's coordinate
    median instead of the last round's result, so that the rule has no state.

    Args:
        radius: Largest norm, > 0; None is the median norm of the round.
    """

    radius: Positive | None = None

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        return _clip_norms(rows, p, self.radius), p


@dataclass(frozen=True)
class CentredClip(SelectionRule):
    """The mean of uploads, clipped to a radius around a centre that is updated to that mean.

    Args:
        radius: Largest distance from the centre, > 0; None is the median distance.
        steps: Updates of the centre, >= 1.
    """

    radius: Positive | None = None
    steps: PositiveInt = 3

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        centre = {name: median(z, p) for name, z in rows.items()}
        near = rows
        for _ in range(self.steps):
            away = {name: z - centre[name] for name, z in rows.items()}
            short = _clip_norms(away, p, self.radius)
            near = {name: centre[name] + z for name, z in short.items()}
            centre = {name: z[0] for name, z in combine(p[None], near).items()}
        return near, p


@dataclass(frozen=True)
class PreAggregation(Robust):
    """Mixing before a rule, for clients with different data: rows are averaged with others first.

    Allouah et al., AISTATS 2023 (nearest-neighbour mixing), arXiv:2302.01772; Karimireddy, He &
    Jaggi, ICLR 2022, Algorithm 1 (bucketing), arXiv:2006.09365.

        NNM:        z_i <- mean of the m - f rows nearest to z_i, itself included
        bucketing:  the rows in a random order, each `size` of them averaged: ceil(m / size) rows

    Differences from the papers: the means may be weighted, and the weight of a bucket is that of
    its clients; rows at the same distance are all included. Numbers (losses) are not mixed, since a
    hostile client with an honest vector could otherwise spread its false number.
    """

    inner: Robust

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if there are too few rows for the mixing or the inner rule."""
        super().check(clients, rows)
        self.inner.check(clients, rows)

    def aggregate_number(self, values: Rows, p: Tensor, context: MeanContext) -> Tensor:
        return self.inner.aggregate_number(values, p, context)


@dataclass(frozen=True)
class Weighted(PreAggregation):
    """A rule in which clients count by the method's weights instead of alike.

    With weights by samples, a client that claims more samples than all others decides alone.
    """

    weighted: ClassVar[bool] = True

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        return self.inner.aggregate_vectors(rows, p, context)


@dataclass(frozen=True)
class NNM(PreAggregation):
    """Nearest-neighbour mixing before a rule.

    Args:
        inner: The rule.
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    f: Hostile

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
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
        m = len(p)
        seed = key(self.seed, "bucketing", context.round, purpose(context.what))
        draws = bits(seed, torch.arange(m))
        bucket = torch.empty(m, dtype=torch.int64)
        bucket[torch.argsort(draws, stable=True)] = torch.arange(m) // self.size
        matrix = torch.where(torch.arange(-(-m // self.size))[:, None] == bucket, p.cpu(), 0.0)
        weight = matrix.sum(1)
        matrix = matrix / weight[:, None].clamp(min=1e-300)
        return self.inner.aggregate_vectors(combine(matrix, rows), weight, context)
