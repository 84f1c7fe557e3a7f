"""Epsilons against closed forms, theorems computed here, and published numbers."""

import math

import pytest

from tunefree.core.errors import ArgumentError
from tunefree.privacy import epsilon, noise_for

dp = pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")

RUN = {"rounds": 50, "clients": 1000, "cohort": 40, "delta": 1e-5}


def gaussian_delta(eps, mu):
    """Balle & Wang 2018, Theorem 8: delta of the Gaussian mechanism, sensitivity / deviation mu."""

    def phi(t):
        return math.erfc(-t / math.sqrt(2)) / 2

    return phi(mu / 2 - eps / mu) - math.exp(eps) * phi(-mu / 2 - eps / mu)


@pytest.mark.parametrize("noise", [4.0, 20.0, 100.0])
@pytest.mark.parametrize("prepares", [False, True])
def test_known_cohorts_give_the_exact_epsilon_of_gaussians(noise, prepares):
    eps = epsilon(noise, prepares=prepares, **RUN)
    mu = 2 * math.sqrt(50 + prepares) / noise  # a replaced client moves a sum by two bounds
    assert gaussian_delta(eps, mu) == pytest.approx(1e-5, rel=1e-3)


def theorem_9(q, sigma, order):
    """Wang, Balle & Kasiviswanathan 2019: Renyi divergence of a sampled Gaussian, whole orders."""

    def base(a):
        return a / (2 * sigma**2)

    two = min(4 * (math.exp(base(2)) - 1), 2 * math.exp(base(2)))
    total = 1 + q**2 * math.comb(order, 2) * two
    for j in range(3, order + 1):
        total += q**j * math.comb(order, j) * math.exp((j - 1) * base(j)) * 2
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("noise", [2.0, 3.0, 6.0])
def test_secret_cohorts_are_within_the_theorem(noise):
    """Below the plain theorem (the accountant's is sharper for Gaussians), and not far below."""
    eps = epsilon(noise, cohorts="secret", **RUN)
    orders = range(2, 20)
    theirs = [50 * theorem_9(0.04, noise / 2, a) + math.log(1e5) / (a - 1) for a in orders]
    assert 0.4 * min(theirs) < eps < min(theirs)
    assert eps < epsilon(noise, **RUN)


def test_of_everybody_nobody_is_secret():
    whole = RUN | {"cohort": 1000}
    assert epsilon(9.0, cohorts="secret", **whole) == epsilon(9.0, **whole)
    nearly = epsilon(9.0, cohorts="secret", **RUN | {"cohort": 999})
    assert nearly == pytest.approx(epsilon(9.0, **whole))


def test_a_pass_before_the_rounds_costs():
    plain, more = (epsilon(4.0, cohorts="secret", prepares=p, **RUN) for p in (False, True))
    alone = epsilon(4.0, **RUN | {"rounds": 1})
    assert plain < more < plain + alone


@pytest.mark.parametrize(
    ("noise", "epochs", "published"), [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)]
)
def test_the_accountant_has_its_published_numbers(noise, epochs, published):
    """TensorFlow Privacy's table for MNIST: 60,000 samples, batches of 256, delta 1e-5, Poisson.

    By the conversion of its time, log(1/delta) / (order - 1).
    """
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    accountant = dp.rdp.RdpAccountant(orders)
    one = dp.PoissonSampledDpEvent(256 / 60000, dp.GaussianDpEvent(noise))
    accountant.compose(one, epochs * 60000 // 256)
    found = min(r + math.log(1e5) / (a - 1) for a, r in zip(orders, accountant._rdp, strict=True))
    assert found == pytest.approx(published, abs=0.006)
    assert accountant.get_epsilon(1e-5) < found


def test_the_accountant_takes_the_multiplier_as_it_is():
    """If it begins to halve it for replaced records itself, `epsilon` must not do so again."""
    accountant = dp.rdp.RdpAccountant([8], dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(10, 10, dp.GaussianDpEvent(3.0)))
    assert accountant._rdp[0] == pytest.approx(8 / (2 * 3.0**2))


@pytest.mark.parametrize("cohorts", ["known", "secret"])
def test_noise_for_a_target(cohorts):
    run = RUN | {"cohorts": cohorts}
    noise = noise_for(3.0, tolerance=0.01, **run)
    assert epsilon(noise, **run) <= 3.0 < epsilon(noise / 1.02, **run)


def test_bad_arguments():
    assert epsilon(0.0, **RUN) == math.inf
    for change, said in (
        ({"delta": 0.0}, "delta"),
        ({"cohort": 1001}, "at most the number of clients, 1000"),
        ({"cohorts": "poisson"}, "Known: known, secret"),
        ({"cohorts": "secret", "memory": True}, "take cohorts='known'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            epsilon(1.0, **RUN | change)
    with pytest.raises(ArgumentError, match="target"):
        noise_for(0.0, **RUN)


def test_a_cohort_that_took_part_again_is_no_secret():
    """The round has the cohort that it had: two Gaussians of one draw, not two of two draws."""
    plan = {"clients": 1000, "cohort": 50, "delta": 1e-5}
    secret = {"cohorts": "secret", **plan}
    once, again = (epsilon(2.0, rounds=9, replays=k, **secret) for k in (0, 1))
    assert epsilon(2.0, rounds=10, **secret) < again
    assert again == epsilon(2.0, rounds=8, prepares=2, **secret)
    assert once < again <= epsilon(2.0, rounds=10, **plan)
    assert epsilon(2.0, rounds=9, replays=3, **plan) == epsilon(2.0, rounds=12, **plan)
    assert epsilon(2.0, rounds=1, replays=1, **secret) == epsilon(2.0, rounds=2, **plan)


@pytest.mark.parametrize("name", ["prepares", "replays"])
@pytest.mark.parametrize("value", [-1, 0.5, float("nan"), "1", None])
def test_counts_of_releases_are_counts(name, value):
    with pytest.raises(ArgumentError, match=rf"epsilon\({name}=\.\.\.\) must be an int >= 0"):
        epsilon(1.0, rounds=1, clients=2, cohort=1, delta=1e-3, **{name: value})
