"""The mean with client-level differential privacy: clipped, summed, noised, over a fixed count.

McMahan et al., ICLR 2018, Algorithm 1 (arXiv:1710.06963), and Andrew et al., NeurIPS 2021. With u_i
a client's channels in units of their `Bounds`, z the noise multiplier, S the size of a cohort and
a_b the share of the budget that block b has (all vectors together are a block, each number is one):

    mean_b = (sum_i u_ib + z / sqrt(a_b) g) / S,    g ~ N(0, I),    sum_b a_b = 1

Blocks are one Gaussian mechanism of multiplier z, since 1 / z^2 = sum_b a_b / z^2. Numbers such as
losses and norms say as much about a client as its vectors do, so that they are noised too.

Differences from the papers: cohorts have a fixed size, so that the accounting is that of `epsilon`;
the bounds are given, not learned. S is the count that was planned: whoever does not answer adds 0
(to a number, the middle of its range), since the count of those who did is data of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..core.errors import ArgumentError, check_int, check_nonnegative
from ..core.types import Channels
from ..server.aggregate import Aggregator, Mean
from .bounds import Bounds
from .epsilon import Cohorts, epsilon
from .noise import NoiseSource, seeded_noise, system_noise


@dataclass(kw_only=True)
class Privacy:
    """Makes private aggregators: one for each release.

    Args:
        noise: Noise multiplier z: standard deviation of a sum over the bound of one client.
        clients: Number of clients N.
        cohort: Clients in a round S.
        bounds: What a client may add at most.
        seed: Repeats the noise, in a simulation; None draws it from the system, as a deployment
            must: noise that can be computed again protects nobody.
        aggregate: What sums the clipped rows, made of a weight: `Mean`, or
            `Secure(bound=1.0)`.
        delta: Probability with which the promise may fail, in (0, 1); with it, every evaluated
            round has its `epsilon` in the history, of the run so far.
        cohorts: Whether those who see the models know who took part, as in `epsilon`.
    """

    noise: float
    clients: int
    cohort: int
    bounds: Bounds
    seed: int | None = None
    aggregate: Callable[[float], Aggregator] = Mean
    delta: float | None = None
    cohorts: Cohorts = "known"
    _made: int = field(default=0, init=False, repr=False)
    _spent: set[tuple[int, str]] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        check_nonnegative("Privacy", "noise", self.noise)
        check_int("Privacy", "clients", self.clients)
        check_int("Privacy", "cohort", self.cohort)
        if self.cohort > self.clients:
            raise ArgumentError(
                f"Privacy(cohort=...) must be at most the {self.clients} clients, got "
                f"{self.cohort}."
            )
        if self.delta is not None:
            self.cost(1)  # what it cannot compute, it says now

    def cost(
        self, rounds: int, *, prepares: bool = False, memory: bool = False
    ) -> dict[str, float]:
        """Return the epsilon of so many rounds, for the history; nothing without a delta.

        Args:
            rounds: Rounds played.
            prepares: Whether everybody sent once before the first.
            memory: Whether clients remember anything between rounds.
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
            memory=memory,
        )
        return {"epsilon": spent}

    def __call__(self, weight: float, round: int | None = None, what: str = "") -> "PrivateMean":
        """Return the aggregator of a release.

        Args:
            weight: The clients' share of the population's weight; says whether it is a cohort or
                everybody.
            round: The round; a channel is released once in it. None counts releases instead, which
                neither checks that nor survives a restart.
            what: Tells releases of a round apart.
        """
        everybody = weight * self.clients > self.cohort + 0.5
        people = self.clients if everybody else self.cohort
        self._made += 1
        index = self._made - 1 if round is None else round
        noise = system_noise if self.seed is None else seeded_noise(self.seed, index, what)
        return PrivateMean(self, people, noise, round)

    def spend(self, round: int, names: list[str]) -> None:
        """Note that a round releases these channels; refuse what it has released already."""
        blocks = {n if n in self.bounds.scalars else "vectors" for n in names}
        twice = sorted(b for b in blocks if (round, b) in self._spent)
        if twice:
            raise ArgumentError(
                f"Round {round} releases {twice[0]!r} twice, but the budget counts it once; a "
                "method that asks clients more than once in a round cannot be private this way."
            )
        self._spent |= {(round, b) for b in blocks}


class PrivateMean:
    """A mean of clipped rows with noise; each row is one client.

    Args:
        privacy: How.
        people: The fixed count that the sum is divided by.
        noise: Where noise comes from.
        round: The round, where releases are counted.
    """

    def __init__(
        self, privacy: Privacy, people: int, noise: NoiseSource, round: int | None
    ) -> None:
        self._privacy, self._people, self._noise, self._round = privacy, people, noise, round
        self._inner = privacy.aggregate(people / privacy.clients)
        self._rows = 0
        self._done: Channels | None = None

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,), which must be the same for all clients."""
        if not bool(((p.double() * self._privacy.clients - 1).abs() < 1e-5).all()):
            raise ArgumentError(
                "Client-level privacy takes weights='uniform': weights by samples are data of "
                "clients themselves, and let one of them count for many."
            )
        self._rows += len(p)
        if self._rows > self._people:
            raise ArgumentError(
                f"{self._rows} rows were added for {self._people} clients; each may add one."
            )
        self._inner.add(p, self._privacy.bounds.scale(rows))

    def result(self) -> Channels:
        """Return the means, noised once."""
        if self._done is not None:
            return self._done
        found = self._inner.result()
        if self._round is not None:
            self._privacy.spend(self._round, list(found))
        out: Channels = {}
        for name, unit in found.items():
            bounds = self._privacy.bounds
            deviation = self._privacy.noise / math.sqrt(bounds.budget_share(name)) / self._people
            g = self._noise(name, unit.numel()).reshape(unit.shape).to(unit.device)
            out[name] = bounds.unscale(name, unit.double() + deviation * g).to(unit.dtype)
        self._done = out
        return out
