"""Claims over paired seeds, by hand: with 2 degrees of freedom P(T >= t) is
(1 - t / sqrt(2 + t^2)) / 2; the critical t at 5 % is 2.920. With 1 it is 6.314, with 3 2.353.
"""

import math

import pytest
import torch
from experiments.significance import judge, one_sided_p


def tail(t):
    return (1 - t / math.sqrt(2 + t * t)) / 2


def test_one_sided_by_hand():
    """d = 1, 2, 3: t = (2 - m) sqrt(3)."""
    each = [1.0, 2.0, 3.0]
    assert one_sided_p(each) == pytest.approx(tail(2 * math.sqrt(3)), abs=1e-12)
    assert one_sided_p(each, 3.0) == pytest.approx(1 - tail(math.sqrt(3)), abs=1e-12)
    assert one_sided_p(each, 2.0) == 0.5
    assert one_sided_p([1.0]) is None


def test_without_spread_the_mean_decides():
    assert one_sided_p([0.1, 0.1]) == 0.0
    assert one_sided_p([0.1, 0.1], 0.2) == 1.0
    assert one_sided_p([0.1, 0.1], 0.1) == 0.5
    assert one_sided_p([0.0, 0.0]) == 0.5
    assert one_sided_p([math.inf] * 2) == 0.0
    assert one_sided_p([-math.inf] * 2) == 1.0


def test_a_diverged_run_makes_it_a_sign_test():
    assert one_sided_p([math.inf, 0.1]) == 1 / 4
    assert one_sided_p([math.inf, -0.1]) == 3 / 4
    assert one_sided_p([math.inf, 0.1, 0.1, 0.2, 0.1]) == 1 / 32
    assert one_sided_p([math.inf, -math.inf, 0.1], 0.05) == (3 + 1) / 8


@pytest.mark.parametrize(
    ("each", "margin", "verdict"),
    [
        ([0.02, 0.03, 0.04], 0.0, "holds"),  # t = 5.2
        ([0.01, 0.01, 0.10], 0.0, "open"),  # every seed agrees, but t = 1.33
        ([-0.01, 0.02, 0.05], 0.0, "open"),  # t = 1.15
        ([-0.001, 0.02, 0.021, 0.022], 0.0, "holds"),  # one seed disagrees; t = 2.82 > 2.353
        ([0.02, 0.03], 0.0, "open"),  # t = 5 < 6.314
        ([0.02, 0.021], 0.0, "holds"),  # t = 41
        ([-0.02, -0.03, -0.04], 0.0, "fails"),
        ([-0.01, -0.01, -0.10], 0.0, "open"),
        ([-0.01, -0.012, -0.011], -0.02, "holds"),
        ([0.02, 0.03, 0.04], 0.05, "fails"),  # t = -3.46
        ([0.0, 0.0], 0.0, "open"),
        ([0.1, 0.1], 0.0, "holds"),
        ([0.3], 0.0, "open"),
        ([math.inf], 0.0, "open"),
        ([], 0.0, "not tested"),
        ([math.inf] * 3, 0.0, "holds"),
        ([-math.inf] * 3, 0.0, "fails"),
        ([math.inf, 0.1, 0.2], 0.0, "open"),  # 1 / 8
        ([math.inf, 0.1, 0.2, 0.3, 0.4], 0.0, "holds"),  # 1 / 32
        ([math.inf, -0.1, -0.1, -0.2, -0.3], 0.0, "open"),
    ],
)
def test_claims_of_an_advantage(each, margin, verdict):
    assert judge(each, margin).verdict == verdict


@pytest.mark.parametrize(
    ("each", "verdict"),
    [
        ([0.001, -0.001, 0.0], "holds"),  # s.e. 0.00058: t = 34 on both sides
        ([0.01, -0.01, 0.005], "holds"),  # s.e. 0.0060, t = 3.05 above, 3.6 below
        ([0.012, -0.012, 0.005], "open"),  # s.e. 0.0073, t = 2.53
        ([0.018, 0.022, 0.019], "open"),
        ([-0.05, -0.06, -0.055], "fails"),  # t = 12
        ([0.0, 0.0], "holds"),
        ([math.inf, math.inf], "fails"),
        ([math.inf, 0.0, 0.0], "open"),
        ([0.0], "open"),
    ],
)
def test_claims_of_equivalence(each, verdict):
    assert judge(each, within=0.02).verdict == verdict


def test_mean_error_and_p_of_a_judgement():
    found = judge([0.01, 0.03])
    assert found.mean == pytest.approx(0.02)
    assert found.error == pytest.approx(0.01)  # sd 0.01414 / sqrt(2)
    assert found.p == pytest.approx(0.5 - math.atan(2.0) / math.pi)  # Cauchy at t = 2
    both = judge([1.0, 2.0, 3.0], within=4.0)
    assert both.p == pytest.approx(tail(2 * math.sqrt(3)))  # the nearer bound decides


def test_one_claim_in_twenty_holds_by_chance():
    """At the border of what is claimed, with three seeds: 5 % hold, 5 % fail; TOST is no laxer."""
    draw = torch.Generator().manual_seed(0)
    each = torch.randn(4000, 3, generator=draw, dtype=torch.float64).tolist()
    found = [judge(d).verdict for d in each]
    for verdict in ("holds", "fails"):
        assert 0.04 < found.count(verdict) / len(found) < 0.06
    apart = [judge([v + 10.0 for v in d], within=10.0).verdict for d in each]
    assert 0.04 < apart.count("holds") / len(apart) < 0.06
    assert 0.04 < apart.count("fails") / len(apart) < 0.06
