"""How private a run was: epsilon of a noise multiplier, and the multiplier for an epsilon.

A run of T rounds releases T Gaussian mechanisms. Two federations are neighbours if one client's
data are replaced by other data: the number of clients N and of a cohort S are public and fixed, so
that "a client more or less" is not what is compared. A clipped sum then changes by up to 2 units,
and the mechanism's own multiplier is z / 2.

- cohorts="known": somebody who sees the models also knows who took part: the server, and whoever
  has the run's seed, of which cohorts are a function. Nothing is gained by sampling. T Gaussians
  are one of multiplier z / (2 sqrt T), exactly (Dong, Roth & Su, JRSS B 2022, arXiv:1905.02383;
  Balle & Wang, ICML 2018, arXiv:1805.06530).
- cohorts="secret": nobody who sees the models knows who took part. Cohorts are drawn uniformly,
  of fixed size, without replacement and anew each round: Wang, Balle & Kasiviswanathan, AISTATS
  2019, Theorem 27 (arXiv:1808.00087), composed in Renyi divergence (Mironov 2017). Not for clients
  with a memory (control variates, error feedback): what they send tells when they took part
  before, so that rounds are not drawn anew given what was seen, and the theorem does not compose.
  A round that is run again has the cohort that it had: its releases count as if that were known.

Poisson sampling, for which most published numbers are, is not how cohorts are drawn here: its
numbers are for neighbours with a client more or less, and would be too small.

`dp_accounting` (0.6) takes the multiplier of a Gaussian as it is under both kinds of neighbours,
though its documentation defines it by the bound of one record
(github.com/google/differential-privacy/issues/378); hence it is given z / 2.
"""

import math
from typing import Any, Literal

from ..core.errors import (
    ArgumentError,
    check_between,
    check_cohort,
    check_int,
    check_known,
    check_nonnegative,
    check_positive,
    import_optional,
)

Cohorts = Literal["known", "secret"]
ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 96, 128)  # any set gives a valid epsilon


def _import_dp(name: str) -> Any:
    return import_optional(name, "Epsilon", "dp-accounting", extra="privacy")


def epsilon(
    noise: float,
    *,
    rounds: int,
    clients: int,
    cohort: int,
    delta: float,
    cohorts: Cohorts = "known",
    prepares: int = 0,
    replays: int = 0,
    memory: bool = False,
) -> float:
    """Return epsilon of (epsilon, delta)-differential privacy for the replacement of one client.

    Args:
        noise: Noise multiplier z, as in `Privacy`.
        rounds: Rounds T.
        clients: Number of clients N.
        cohort: Clients in a round S.
        delta: Probability with which the promise may fail, in (0, 1); well below 1 / N.
        cohorts: Whether those who see the models know who took part.
        prepares: How often everybody sends before round 0: 1 if the method prepares, and 1 if the
            columns of a table are standardised.
        replays: How many releases were made again, with other noise, after a run was resumed.
        memory: Whether clients remember anything between rounds.
    """
    check_nonnegative("epsilon", "noise", noise)
    check_between("epsilon", "delta", delta, 0, 1)
    for name, value in (("rounds", rounds), ("clients", clients), ("cohort", cohort)):
        check_int("epsilon", name, value)
    for name, value in (("prepares", prepares), ("replays", replays)):
        check_int("epsilon", name, int(value) if isinstance(value, bool) else value, 0)
    check_cohort("epsilon", cohort, clients)
    check_known("cohorts", cohorts, ("known", "secret"))
    if memory and cohorts == "secret":
        reason = "What clients with a memory send reveals when they took part"
        raise ArgumentError(f"{reason}; take cohorts='known'.")
    if not noise:
        return math.inf
    multiplier = noise / 2 / math.sqrt(rounds + prepares + replays)
    known = float(_import_dp("dp_accounting").get_epsilon_gaussian(multiplier, delta))
    if cohorts == "known" or cohort == clients:
        return known
    again = min(replays, rounds)  # rounds that were run again, at most
    seen = prepares + replays + again
    return min(known, _sampled(noise / 2, rounds - again, clients, cohort, delta, seen))


def _sampled(
    multiplier: float, rounds: int, clients: int, cohort: int, delta: float, seen: int
) -> float:
    """Return epsilon of `rounds` releases of secret cohorts and of `seen` ones that are known."""
    dp, rdp = _import_dp("dp_accounting"), _import_dp("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    one = dp.GaussianDpEvent(multiplier)
    if rounds:
        accountant.compose(dp.SampledWithoutReplacementDpEvent(clients, cohort, one), rounds)
    if seen:
        accountant.compose(one, int(seen))
    return float(accountant.get_epsilon(delta))


def noise_for(target: float, *, tolerance: float = 1e-3, **run: Any) -> float:
    """Return a noise multiplier with which epsilon is at most the target.

    Args:
        target: The epsilon, > 0.
        tolerance: The multiplier is the least one up to this relative error, and never below it.
        run: What else `epsilon` takes.
    """
    check_positive("noise_for", "target", target)
    check_positive("noise_for", "tolerance", tolerance)
    high = 1.0
    while epsilon(high, **run) > target:
        high *= 2
        if high > 2**40:
            raise ArgumentError(f"No noise gives epsilon {target} at this delta.")
    low = high / 2
    while epsilon(low, **run) <= target:
        high, low = low, low / 2
        if low < 2**-20:
            return high
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle, **run) <= target else (middle, high)
    return high
