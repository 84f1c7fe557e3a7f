"""Significance over paired seeds: Student's distribution from tables, the rest by hand."""

import math

import pytest
import torch

from tunefree.study.significance import holm, judge, one_sided_p, student_p, two_sided_p

# Two-sided critical values of Student's t, as printed in tables: degrees, t, p.
TABLE = [
    (1, 12.706, 0.05),
    (1, 63.657, 0.01),
    (2, 4.303, 0.05),
    (2, 9.925, 0.01),
    (3, 3.182, 0.05),
    (4, 2.776, 0.05),
    (4, 8.610, 0.001),
    (5, 2.571, 0.05),
    (9, 2.262, 0.05),
    (9, 3.250, 0.01),
    (10, 1.812, 0.10),
    (30, 2.042, 0.05),
]


@pytest.mark.parametrize(("degrees", "t", "p"), TABLE)
def test_students_table(degrees, t, p):
    assert student_p(t, degrees) == pytest.approx(p, rel=2e-3)
    assert student_p(-t, degrees) == student_p(t, degrees)


@pytest.mark.parametrize("degrees", range(1, 12))
def test_against_the_integral(degrees):
    """The tail's area by the density itself, on a fine grid."""
    t, steps, high = 1.5, 100_000, 1.0
    c = math.gamma((degrees + 1) / 2) / math.sqrt(degrees * math.pi) / math.gamma(degrees / 2)
    width = t * high / steps
    points = ((i + 0.5) * width for i in range(steps))
    inside = 2 * width * sum(c * (1 + u * u / degrees) ** (-(degrees + 1) / 2) for u in points)
    assert student_p(t, degrees) == pytest.approx(1 - inside, abs=1e-8)
    assert student_p(0.0, degrees) == 1.0


def test_by_hand():
    """d = 1, 2, 3: mean 2, sd 1, t = 2 sqrt(3); with two degrees p = 1 - t / sqrt(2 + t^2)."""
    t = 2 * math.sqrt(3)
    assert two_sided_p([1.0, 2.0, 3.0]) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


def test_where_nothing_can_be_tested():
    assert two_sided_p([0.1]) is None
    assert (
        two_sided_p([0.1, 0.1, 0.1]) is None
    )  # no spread: a step of the accuracy, or no randomness
    assert two_sided_p([0.1, 0.1 + 1e-17, 0.1]) is None
    assert two_sided_p([0.0, 0.0, 0.0]) == 1.0


def test_holm():
    """Sorted .01 .02 .03 .5: times 4, 3, 2, 1, never falling."""
    found = holm({"a": 0.5, "b": 0.01, "c": 0.03, "d": 0.02})
    assert found == pytest.approx({"b": 0.04, "d": 0.06, "c": 0.06, "a": 0.5})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


# One-sided tests, and the verdicts on claims. With 2 degrees of freedom P(T >= t) is
# (1 - t / sqrt(2 + t^2)) / 2; the critical t at 5 % is 2.920. With 1 it is 6.314, with 3 2.353.


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
