"""The mean with client-level differential privacy: clip, sum, add noise, divide by a fixed count.

McMahan et al., ICLR 2018, Algorithm 1 (arXiv:1710.06963), and Andrew et al., NeurIPS 2021. With u_i
a client's channels in units of their `Bounds`, z the noise multiplier, S the size of a cohort and
a_b the budget share of block b (all vectors together are one block, each scalar is one):

    mean_b = (sum_i u_ib + z / sqrt(a_b) g) / S,    g ~ N(0, I),    sum_b a_b = 1

Together the blocks are one Gaussian mechanism of multiplier z, since 1 / z^2 = sum_b a_b / z^2.
Scalars such as losses and norms reveal as much about a client as its vectors, so they get noise as
well.

Differences from the papers: cohorts have a fixed size, so that the accounting is that of `epsilon`;
the bounds are given, not learned. S is the planned size of the cohort: a client that does not
answer adds 0 (for a scalar, the middle of its range), since the number of answers is private too.

Noise is a function of a seed for experiments, and comes from the system's random numbers otherwise:

    g = Phi^-1((n + 1/2) / 2^53),    n uniform in 0 .. 2^53 - 1

Noise from a seed can be subtracted by anybody who knows the seed, so it only serves to repeat an
experiment. Floating-point noise has gaps that an adversary with exact outputs may use (Mironov, CCS
2012); an exact guarantee needs discrete noise (Canonne, Kamath & Steinke, NeurIPS 2020), which is
not implemented.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import (
    ArgumentError,
    check_argument,
    check_cohort,
    check_finite,
    check_in_range,
    check_positive,
)
from ..core.fields import Checked, NonNegative, PositiveInt
from ..core.random import key, purpose, uniform
from ..core.types import Channels
from ..server.aggregate import Aggregator, Mean
from .epsilon import Cohorts, epsilon


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on what one client adds to a sum, and the clipping that enforces them.

    The vectors v_c of a client are clipped jointly, each in units of its own bound B_c, and a
    scalar s in [a, b] is shifted and scaled to [-1, 1]:

        u = (v_c / B_c)_c,       u <- u / max(1, |u|)                 so that |u| <= 1
        r = (s - (a + b) / 2) / ((b - a) / 2),   r <- clip(r, -1, 1)  so that |r| <= 1

    A vector or scalar that is not finite is replaced by 0. In these units an absent client adds 0,
    a present client at most 1, and replacing one client by another changes the sum of a block by at
    most 2 (McMahan et al., ICLR 2018, arXiv:1710.06963, clip joint vectors this way).

    Args:
        vectors: By name, the norm at which a vector is clipped if it is the only one.
        scalars: By name, the range (low, high) to which a scalar is clipped.
        share: Share of the privacy budget for each scalar, in (0, 1 / number of scalars); the
            vectors have the rest. In units of 1 / noise^2, in which Gaussian mechanisms add up.
    """

    vectors: Mapping[str, float]
    scalars: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    share: float = 0.05

    def __post_init__(self) -> None:
        for kind in ("vectors", "scalars"):
            given = getattr(self, kind)
            check_argument("Bounds", kind, given, "a dict by name", isinstance(given, Mapping))
        for name, bound in self.vectors.items():
            check_positive("Bounds", name, bound)
        for name, (low, high) in self.scalars.items():
            check_finite("Bounds", name, low)
            check_finite("Bounds", name, high)
            check_argument("Bounds", name, (low, high), "a range low < high", low < high)
        both = sorted(self.vectors.keys() & self.scalars.keys())
        if both:
            raise ArgumentError(f"Bounds: {both[0]!r} is a vector or a scalar, not both.")
        if self.scalars:
            check_positive("Bounds", "share", self.share)
            check_in_range("Bounds", "share", self.share, 0, 1 / len(self.scalars))

    def budget_share(self, name: str) -> float:
        """Return the share of the privacy budget of a channel's block.

        >>> Bounds(vectors={"delta": 1.0}, scalars={"loss": (0.0, 5.0)}).budget_share("delta")
        0.95
        """
        return self.share if name in self.scalars else 1 - self.share * len(self.scalars)

    def scale(self, rows: Channels) -> Channels:
        """Clip rows (m, ...) and return them in units of their bounds."""
        for name, value in rows.items():
            kind = "vectors" if value.ndim > 1 else "scalars"
            if name not in getattr(self, kind):
                leak = f"The channel {name!r} has no bound, and would leak"
                raise ArgumentError(f"{leak}; name it in Bounds({kind}=...).")
        vectors = {n: v / self.vectors[n] for n, v in rows.items() if v.ndim > 1}
        out = _clip(vectors)
        for name, value in rows.items():
            if value.ndim == 1:
                low, high = self.scalars[name]
                r = (value.double() - (low + high) / 2) / ((high - low) / 2)
                out[name] = r.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1).to(value.dtype)
        return {name: out[name] for name in rows}

    def unscale(self, name: str, unit: Tensor) -> Tensor:
        """Undo `scale` for a mean; a scalar that noise moved out of its range is clamped to it."""
        if name in self.vectors:
            return unit * self.vectors[name]
        low, high = self.scalars[name]
        return (unit * ((high - low) / 2) + (low + high) / 2).clamp(low, high)


def _clip(vectors: Channels) -> Channels:
    """Scale each client's vectors jointly down to norm 1 if they are longer."""
    if not vectors:
        return {}
    largest = [v.abs().amax(1).double() for v in vectors.values()]
    top = torch.stack(largest).amax(0)  # (m,)
    is_finite = top.isfinite()  # amax propagates NaN
    unit = torch.where(is_finite & (top > 0), top, 1.0)
    parts = [torch.linalg.vector_norm(v.double() / unit[:, None], dim=1) for v in vectors.values()]
    length = unit * torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factor = torch.where(length > 1, 1 / length, 1.0)
    out: Channels = {}
    for name, v in vectors.items():
        slack = 1 - 4 * torch.finfo(v.dtype).eps  # so that rounding does not exceed 1
        each = torch.where(length > 1 - 1e-6, factor * slack, factor).to(v.dtype)
        out[name] = torch.where(is_finite[:, None], v * each[:, None], 0.0)
    return out


NoiseSource = Callable[[str, int], Tensor]
"""Takes a channel's name and a size; returns standard normal numbers in float64."""


def seeded_noise(seed: int, round: int, what: str = "") -> NoiseSource:
    """Return the noise source of a round, a function of the seed, the round and the channel.

    >>> same = seeded_noise(0, 3)("delta", 4), seeded_noise(0, 3)("delta", 4)
    >>> torch.equal(*same), torch.equal(same[0], seeded_noise(0, 4)("delta", 4))
    (True, False)
    """

    def draw(name: str, size: int) -> Tensor:
        k = key(seed, "privacy", round, purpose(what), purpose(name))
        return _normal(uniform(k, torch.arange(size)))

    return draw


def system_noise(name: str, size: int) -> Tensor:
    """Return noise from the system's random numbers, which cannot be repeated."""
    if not size:
        return torch.zeros(0, dtype=torch.float64)
    words = torch.frombuffer(bytearray(os.urandom(8 * size)), dtype=torch.int64)
    return _normal(((words >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53)


def _normal(u: Tensor) -> Tensor:
    """Convert uniform numbers in [0, 1), multiples of 2^-53, to standard normal numbers."""
    upper = u >= 0.5  # near 1 half a step would be rounded away, so use the other tail
    tail = torch.where(upper, 1 - 2.0**-53 - u, u) + 2.0**-54
    g = torch.special.ndtri(tail)
    return torch.where(upper, -g, g)


@dataclass(kw_only=True)
class Privacy(Checked):
    """Settings of differential privacy; calling it creates the aggregator of a release.

    Args:
        noise: Noise multiplier z: standard deviation of a sum over the bound of one client.
        clients: Number of clients N.
        cohort: Clients in a round S.
        bounds: Bounds on what a client adds.
        seed: Seed of the noise, to repeat an experiment; None takes the system's random numbers, as
            a deployment must, since noise from a known seed can be subtracted.
        aggregate: Sums the clipped rows: `Mean`, or `Secure(bound=1.0)`.
        delta: Delta of the guarantee, in (0, 1); with it, every evaluated round has the `epsilon`
            of the run so far in the history.
        cohorts: Whether those who see the models know the cohorts, as in `epsilon`.
    """

    noise: NonNegative
    clients: PositiveInt
    cohort: PositiveInt
    bounds: Bounds
    seed: int | None = None
    aggregate: Callable[[float], Aggregator] = Mean
    delta: float | None = None
    cohorts: Cohorts = "known"
    _releases: int = field(default=0, init=False, repr=False)
    _spent: set[tuple[int, str]] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cohort("Privacy", self.cohort, self.clients)
        if self.delta is not None:
            self.cost(1)  # raise errors now, not after a round

    def cost(
        self, rounds: int, *, prepares: int = 0, replays: int = 0, memory: bool = False
    ) -> dict[str, float]:
        """Return the epsilon of a run, for the history; an empty dict without a delta.

        Args:
            rounds: Number of rounds.
            prepares: How often all clients sent before round 0.
            replays: How many releases were made again, with other noise.
            memory: Whether clients have a memory between rounds.
        """
        if self.delta is None:
            return {}
        spent = epsilon(
            self.noise,
            rounds=rounds,
            clients=self.clients,
            cohort=self.cohort,
            delta=self.delta,
            cohorts=self.cohorts,
            prepares=prepares,
            replays=replays,
            memory=memory,
        )
        return {"epsilon": spent}

    def __call__(self, weight: float, round: int | None = None, what: str = "") -> "PrivateMean":
        """Return the aggregator of a release.

        Args:
            weight: The clients' share of the population's weight, which distinguishes a cohort from
                all clients.
            round: The round, in which a channel may be released once. None numbers releases
                instead, which neither checks that nor survives a restart.
            what: Distinguishes the releases of a round.
        """
        is_everyone = weight * self.clients > self.cohort + 0.5
        count = self.clients if is_everyone else self.cohort
        index = self._releases if round is None else round
        self._releases += 1
        noise = system_noise if self.seed is None else seeded_noise(self.seed, index, what)
        return PrivateMean(self, count, noise, round)

    def spend(self, round: int, names: list[str]) -> None:
        """Record that a round releases channels; refuse a second release."""
        blocks = {n if n in self.bounds.scalars else "vectors" for n in names}
        twice = sorted(b for b in blocks if (round, b) in self._spent)
        if twice:
            raise ArgumentError(
                f"Round {round} releases {twice[0]!r} twice, but the budget counts it once; a "
                "method that asks clients more than once in a round cannot be private this way."
            )
        self._spent |= {(round, b) for b in blocks}


class PrivateMean:
    """A mean of clipped rows with noise, divided by a fixed count; each row is one client.

    The round is None if releases are only numbered.
    """

    def __init__(self, privacy: Privacy, count: int, noise: NoiseSource, round: int | None) -> None:
        self._privacy, self._count, self._noise, self._round = privacy, count, noise, round
        self._inner = privacy.aggregate(count / privacy.clients)
        self._rows = 0
        self._done: Channels | None = None

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,), which must be the same for all clients."""
        if not bool(((p.double() * self._privacy.clients - 1).abs() < 1e-5).all()):
            raise ArgumentError(
                "Client-level privacy needs weights='uniform': weights by samples are private "
                "data, and let one client count for many."
            )
        self._rows += len(p)
        if self._rows > self._count:
            added = f"{self._rows} rows were added for {self._count} clients"
            raise ArgumentError(f"{added}; each may add one.")
        self._inner.add(p, self._privacy.bounds.scale(rows))

    def result(self) -> Channels:
        """Return the means with noise; the same means when called again."""
        if self._done is not None:
            return self._done
        found = self._inner.result()
        if self._round is not None:
            self._privacy.spend(self._round, list(found))
        out: Channels = {}
        for name, unit in found.items():
            bounds = self._privacy.bounds
            deviation = self._privacy.noise / math.sqrt(bounds.budget_share(name)) / self._count
            g = self._noise(name, unit.numel()).reshape(unit.shape).to(unit.device)
            out[name] = bounds.unscale(name, unit.double() + deviation * g).to(unit.dtype)
        self._done = out
        return out
