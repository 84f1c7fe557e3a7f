"""Fewer points, same picture."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefree.report.payload import downsample, round_values, space_evenly


def test_short_curves_stay_as_they_are():
    y = np.arange(600.0)
    assert downsample(y, y).tolist() == list(range(600))


@given(st.integers(0, 2**32 - 1), st.integers(601, 5000))
def test_the_extremes_and_the_ends_stay(seed, n):
    draws = np.random.default_rng(seed)
    low = draws.normal(size=n)
    high = low + draws.random(n)
    at = downsample(low, high)
    assert len(at) <= 600
    assert (np.diff(at) > 0).all()
    assert {0, n - 1, int(low.argmin()), int(high.argmax())} <= set(at.tolist())


def test_every_stretch_keeps_its_own_peak():
    """A curve that is zero but for a peak every 100 rounds keeps all of the peaks."""
    y = np.zeros(10_000)
    y[50::100] = 1.0
    assert set(np.arange(50, 10_000, 100)) <= set(downsample(y, y).tolist())


def test_no_stretch_is_left_out():
    y = np.random.default_rng(0).normal(size=10_000)
    assert np.diff(downsample(y, y)).max() < 2 * 10_000 / 299


@pytest.mark.parametrize(("n", "most"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 600)])
def test_spaced(n, most):
    at = space_evenly(n, most).tolist()
    assert len(at) == min(n, most)
    assert at == sorted(set(at))
    if n:
        assert (at[0], at[-1]) == (0, n - 1)


def test_numbers_are_short():
    assert round_values([1 / 3, 1e20, 12345678.0, float("inf"), 0.0]) == [
        0.333333,
        1e20,
        12345678,
        None,
        0,
    ]
