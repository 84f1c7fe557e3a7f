"""Significance over paired seeds: Student's distribution from tables, the rest by hand."""

import math

import pytest

from tunefree.study.significance import holm, student_p, two_sided_p

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
