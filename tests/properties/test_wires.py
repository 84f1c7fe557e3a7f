"""What wires claim, for layouts, numbers and bytes that hypothesis picks."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tunefree.core import random
from tunefree.core.errors import DataError
from tunefree.core.layout import Layout
from tunefree.wire import (
    QSGD,
    Choose,
    Dense,
    ErrorFeedback,
    LowRank,
    Natural,
    RandK,
    Sender,
    Sign,
    TopK,
)

RATIO = st.floats(0.001, 1)
PLAIN = st.one_of(
    st.just(Dense()),
    st.builds(TopK, RATIO, st.booleans()),
    st.builds(RandK, RATIO, st.booleans(), st.booleans()),
    st.builds(QSGD, st.integers(1, 65535), st.one_of(st.none(), st.integers(1, 40))),
    st.just(Natural()),
    st.builds(Sign, st.booleans()),
    st.builds(LowRank, st.integers(1, 5), st.integers(1, 3)),
)
WIRE = st.one_of(
    PLAIN,
    PLAIN.map(ErrorFeedback),
    st.lists(PLAIN, min_size=1, max_size=4).map(
        lambda wires: Choose(lambda client, t: wires[(client + t) % len(wires)])
    ),
)
SHAPE = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
)
LAYOUT = st.lists(SHAPE, min_size=1, max_size=4).map(
    lambda shapes: Layout(tuple(map(str, range(len(shapes)))), tuple(shapes))
)
KEY = st.integers(-(2**63), 2**63 - 1)


@st.composite
def vectors(draw, m=2):
    """A layout, rows of float32 or float64, and who sends them."""
    layout = draw(LAYOUT)
    width = draw(st.sampled_from([32, 64]))
    number = st.floats(-1e6, 1e6, width=width)
    number = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0]), number)
    rows = draw(arrays(f"float{width}", (m, layout.size), elements=number))
    keys = torch.tensor(draw(st.lists(KEY, min_size=m, max_size=m)))
    who = Sender(torch.arange(m), draw(st.integers(-1, 5)), keys)
    return layout, torch.from_numpy(rows), who


def bits(v):
    return v.contiguous().view(torch.int32 if v.dtype == torch.float32 else torch.int64)


def memory(wire, rows):
    return {name: v.expand(len(rows), -1).clone() for name, v in wire.init(rows[0]).items()}


@given(WIRE, vectors())
@settings(max_examples=200, deadline=None)
def test_rows_and_bytes_are_the_real_ones(wire, given):
    layout, rows, who = given
    packed = wire.pack(rows, memory(wire, rows), who, layout)
    assert packed.rows.dtype == rows.dtype
    assert bool(packed.rows.isfinite().all())
    total = 0
    for j, row in enumerate(wire.corrected(rows, memory(wire, rows))):
        data = wire.encode(row, who.row(j), layout)
        total += len(data)
        back = wire.decode(data, row, who.row(j), layout)
        assert torch.equal(bits(back), bits(packed.rows[j]))
    assert packed.bytes == total


@given(st.one_of(st.builds(TopK, RATIO, st.booleans()), st.builds(Sign, st.booleans())), vectors())
@settings(max_examples=150, deadline=None)
def test_contractions_without_chance_contract_always(wire, given):
    layout, rows, who = given
    arrived = wire.pack(rows, {}, who, layout).rows.double()
    off, size = (arrived - rows.double()).square().sum(1), rows.double().square().sum(1)
    slack = 1e-5 if rows.dtype == torch.float32 else 1e-12
    lost = layout.size * torch.finfo(rows.dtype).tiny ** 2  # half of the least number is 0
    assert bool((off <= (wire.contraction(layout) + slack) * size + lost).all())


@given(vectors(), RATIO, st.booleans(), st.integers(-30, 30))
@settings(max_examples=100, deadline=None)
def test_topk_is_positively_homogeneous(given, ratio, per_layer, power):
    layout, rows, who = given
    rows = torch.where(rows.abs() < 1e-6, 0, rows)  # so that the products are exact
    wire, a = TopK(ratio, per_layer), 2.0**power
    kept = wire.pack(rows, {}, who, layout).rows
    assert torch.equal(wire.pack(a * rows, {}, who, layout).rows, a * kept)


@given(vectors(), st.integers(1, 65535), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_qsgd_goes_to_a_neighbouring_level(given, levels, bucket):
    layout, rows, who = given
    arrived = QSGD(levels, bucket).pack(rows, {}, who, layout).rows.double()
    slack = 1e-5 if rows.dtype == torch.float32 else 1e-12
    for v, got in zip(rows.double(), arrived, strict=True):
        for part, near in zip(v.split(bucket), got.split(bucket), strict=True):
            norm = math.hypot(*part.tolist())
            assert bool(((near - part).abs() <= norm * (1 / levels + slack)).all())
            assert bool((near * part >= 0).all())


@given(vectors())
@settings(max_examples=100, deadline=None)
def test_natural_goes_to_a_neighbouring_power(given):
    layout, rows, who = given
    arrived = Natural().pack(rows, {}, who, layout).rows
    for v, near in zip(rows.flatten().tolist(), arrived.flatten().tolist(), strict=True):
        least = torch.finfo(rows.dtype).tiny
        if abs(v) >= least:
            low = 2.0 ** (math.frexp(abs(v))[1] - 1)
            assert abs(near) in (low, 2 * low)
            assert (abs(near) == low) or (abs(v) > low)
        else:
            assert abs(near) in (0.0, least)
        assert math.copysign(1, near) == math.copysign(1, v)


@given(vectors(), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_low_rank_never_lengthens(given, rank, passes):
    layout, rows, who = given
    arrived = LowRank(rank, passes).pack(rows, {}, who, layout).rows.double()
    slack = 1e-4 if rows.dtype == torch.float32 else 1e-10
    v = rows.double()
    size = v.square().sum(1) + torch.finfo(rows.dtype).tiny
    assert bool(((arrived - v).square().sum(1) <= size * (1 + slack)).all())
    assert bool((((arrived - v) * arrived).sum(1).abs() <= size * slack).all())


@given(PLAIN, vectors(m=3), st.lists(st.sets(st.integers(0, 2)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_error_feedback_loses_nothing(inner, given, cohorts):
    layout, rows, who = given
    if inner.contraction(layout) is None:
        inner = TopK(0.1)  # errors of what does not contract may grow without bound
    rows, wire = rows.double(), ErrorFeedback(inner)
    error, meant, arrived = (torch.zeros_like(rows) for _ in range(3))
    for t, cohort in enumerate(cohorts):
        js = sorted(cohort)
        if not js:
            continue
        sent = rows[js] * (t + 1)
        before = error.clone()
        now = Sender(who.ids, t, random.mix(who.keys + t)).rows(js)
        packed = wire.pack(sent, {"error": error[js]}, now, layout)
        meant[js], arrived[js] = meant[js] + sent, arrived[js] + packed.rows
        error[js] = packed.own["error"]
        away = [j for j in range(3) if j not in cohort]
        assert torch.equal(error[away], before[away])
    close = 1e-9 * (1 + rows.abs().max())
    assert bool(((arrived + error - meant).abs() <= close).all())


@given(WIRE, vectors(m=1), st.data())
@settings(max_examples=250, deadline=None)
def test_any_bytes_are_a_vector_or_refused(wire, given, data):
    layout, rows, who = given
    sent = wire.encode(rows[0], who, layout)
    bent = bytearray(sent)
    for _ in range(data.draw(st.integers(0, 3))):
        if bent:
            bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    message = data.draw(
        st.one_of(
            st.binary(max_size=len(sent) + 9),
            st.binary(min_size=len(sent), max_size=len(sent)),
            st.just(bytes(bent)),
            st.just(sent[: data.draw(st.integers(0, len(sent)))]),
            st.just(sent + sent),
        )
    )
    try:
        got = wire.decode(message, rows[0], who, layout)
    except DataError:
        got = rows[0] if message != sent else None
    assert (got.shape, got.dtype) == (rows[0].shape, rows.dtype)
