import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefree.core.errors import ArgumentError, DataError
from tunefree.privacy import Channel, Quantizer, make_quantizer


@given(
    people=st.integers(1, 300),
    bits=st.sampled_from([32, 64]),
    bound=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**20),
    extreme=st.booleans(),
)
@settings(deadline=None)
def test_sums_are_read_within_a_step_for_each_client(people, bits, bound, seed, extreme):
    draw = np.random.default_rng(seed)
    quantizer = Quantizer((Channel("a", (3,), bound), Channel("b", (), bound)), people, bits)
    step = quantizer.step(quantizer.channels[0])
    total, exact = np.zeros(4, f"<u{bits // 8}"), [Fraction(0)] * 4
    for _ in range(people):
        v = np.full(4, bound) if extreme else draw.uniform(-bound, bound, 4)
        w = 1.0 if extreme else float(draw.uniform(0.01, 1))
        rows = {"a": torch.tensor(v[:3]), "b": torch.tensor(v[3])}
        total = total + quantizer.encode(rows, w)
        exact = [e + Fraction(w) * Fraction(x) for e, x in zip(exact, v.tolist(), strict=True)]
    found = quantizer.decode(total)
    got = [*found["a"].tolist(), float(found["b"])]
    assert all(abs(Fraction(g) - e) <= people * step for g, e in zip(got, exact, strict=True))
    if bits == 32 and people > 1:  # the step is not finer than what fits, nor twice as coarse
        assert bound / step * people < 2**31 <= 4 * people * (bound / step + 1)


def test_the_worst_sum_does_not_wrap():
    quantizer = Quantizer((Channel("a", (1,), 1.0),), 7, 32)
    one = quantizer.encode({"a": torch.tensor([-1.0])})
    assert float(quantizer.decode(one * np.uint32(7))["a"]) == pytest.approx(-7, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.5, 0.0], "beyond its bound"),
        ([math.nan, 0.0], "finite"),
        ([math.inf, 0.0], "finite"),
        ([0.0], "shape"),
    ],
)
def test_what_does_not_fit_is_refused(value, said):
    quantizer = Quantizer((Channel("a", (2,), 1.0),), 4)
    with pytest.raises(DataError, match=said):
        quantizer.encode({"a": torch.tensor(value)})


def test_other_channels_totals_weights_and_bits_are_refused():
    quantizer = Quantizer((Channel("a", (2,), 1.0),), 4)
    with pytest.raises(DataError, match="channels must be"):
        quantizer.encode({"b": torch.zeros(2)})
    with pytest.raises(DataError, match="2 numbers of 64 bits"):
        quantizer.decode(np.zeros(3, "<u8"))
    with pytest.raises(ArgumentError, match=r"weight=\.\.\."):
        quantizer.encode({"a": torch.zeros(2)}, 1.5)
    with pytest.raises(ArgumentError, match="32 or 64"):
        Quantizer((), 4, 16)
    with pytest.raises(ArgumentError, match="fewer than 256 steps"):
        Quantizer((), 2**24, 32)
    with pytest.raises(ArgumentError, match="'b' has no bound"):
        make_quantizer({"a": torch.zeros(1, 2), "b": torch.zeros(1)}, {"a": 1.0}, 4)
