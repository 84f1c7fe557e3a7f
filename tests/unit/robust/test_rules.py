"""Robust rules: against oracles written from the papers, and what each must withstand."""

import math
import random

import numpy as np
import pytest
import torch

import tunefree as tf
from oracle import robust as rules
from tunefree.core.errors import ArgumentError

r = tf.robust
D, M = 7, 9
EVERY = {
    "median": r.Median(),
    "trimmed": r.TrimmedMean(f=2),
    "geometric": r.GeometricMedian(),
    "krum": r.Krum(f=2),
    "multi-krum": r.MultiKrum(f=2),
    "norm-clip": r.NormClip(),
    "centred-clip": r.CentredClip(),
    "nnm": r.NNM(r.TrimmedMean(f=2), f=2),
    "nnm-krum": r.NNM(r.Krum(f=2), f=2),
}
ALL = EVERY | {
    "bucketing": r.Bucketing(r.Median(), size=2),
    "bucketing-geometric": r.Bucketing(r.GeometricMedian(), size=2, seed=4),
}


def rows(seed=0, m=M, d=D, spread=1.0):
    draw = torch.Generator().manual_seed(seed)
    return 1 + spread * torch.randn(m, d, generator=draw, dtype=torch.float64)


def weights(kind, m=M):
    p = torch.ones(m, dtype=torch.float64)
    return p / m if kind == "equal" else torch.arange(1.0, m + 1).double() / (m * (m + 1) / 2)


def made(rule, p, channels, chunk=None, weighted=True):
    gathered = (r.Weighted(rule) if weighted else rule)(float(p.sum()), 0, "train")
    for low in range(0, len(p), chunk or len(p)):
        part = slice(low, low + (chunk or len(p)))
        gathered.add(p[part], {n: v[part] for n, v in channels.items()})
    return gathered.result()


def vector(rule, p, z):
    return made(rule, p, {"delta": z})["delta"]


@pytest.mark.parametrize("name", ALL)
def test_clients_count_alike_unless_told_otherwise(name):
    """A client that claims more samples than all others together is one client."""
    channels = {"delta": rows(), "delta_sq": rows(2, d=1)[:, 0], "loss": rows(3, d=1)[:, 0]}
    claims = torch.ones(M, dtype=torch.float64)
    claims[3] = 2.0**40
    found = made(ALL[name], claims / claims.sum(), channels, weighted=False)
    alike = made(ALL[name], weights("equal"), channels, weighted=False)
    assert all(torch.equal(found[n], alike[n]) for n in channels)
    if name == "median":
        told = made(ALL[name], claims / claims.sum(), channels)
        assert torch.equal(told["delta"], channels["delta"][3])


def test_weighted_is_a_prefix():
    assert r.parse("weighted+nnm:f=2+median") == r.Weighted(r.NNM(r.Median(), f=2))
    with pytest.raises(ArgumentError, match="needs at least 7 uploads"):
        r.Weighted(r.Krum(f=2)).check(6)


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("m", [5, 8, 9])
def test_rules_are_the_papers(kind, m):
    z, p = rows(1, m), weights(kind, m)
    own, q = list(z.numpy()), p.numpy()
    wanted = {
        r.Median(): rules.median(own, q),
        r.TrimmedMean(f=2): rules.trimmed_mean(own, q, 2),
        r.TrimmedMean(f=0): q @ z.numpy(),
        r.Krum(f=1): rules.krum(own, q, 1),
        r.MultiKrum(f=1, keep=3): rules.multi_krum(own, q, 1, 3),
        r.MultiKrum(f=1): rules.multi_krum(own, q, 1, m - 1),
        r.NormClip(radius=2.0): rules.norm_clip(own, q, 2.0),
        r.CentredClip(radius=0.7, steps=4): rules.centred_clip(own, q, 0.7, 4),
        r.NNM(r.Median(), f=2): rules.median(rules.nnm(own, q, 2), q),
        r.NNM(r.Krum(f=1), f=1): rules.krum(rules.nnm(own, q, 1), q, 1),
    }
    for rule, want in wanted.items():
        np.testing.assert_allclose(vector(rule, p, z).numpy(), want, rtol=1e-12, err_msg=str(rule))


@pytest.mark.parametrize("kind", ["equal", "unequal"])
def test_the_geometric_median_has_the_least_distance(kind):
    for seed in range(4):
        z, p = rows(seed), weights(kind)
        z[0] *= 50
        own, q = list(z.numpy()), p.numpy()
        found = vector(r.GeometricMedian(steps=400), p, z).numpy()
        least = rules.geometric_objective(found, own, q)
        for other in (*own, q @ z.numpy(), rules.median(own, q)):
            assert least <= rules.geometric_objective(other, own, q) + 1e-9
        draw = np.random.default_rng(seed)
        for _ in range(50):
            near = found + 1e-3 * draw.standard_normal(D)
            assert least <= rules.geometric_objective(near, own, q) + 1e-9


def test_the_geometric_median_of_a_majority_is_its_point():
    z = rows(3)
    z[:6] = z[0].clone()
    torch.testing.assert_close(vector(r.GeometricMedian(), weights("equal"), z), z[0])


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("name", ALL)
def test_one_row_and_equal_rows_stay_as_they_are(name, kind):
    z = rows(2)
    for m in (1, 2, 5, 9):
        same = z[:1].expand(m, -1)
        p = weights(kind, m)
        found = made(ALL[name], p, {"delta": same, "delta_sq": same.square().sum(1), "loss": p * 0})
        torch.testing.assert_close(found["delta"], z[0])
        torch.testing.assert_close(found["delta_sq"], z[0].square().sum())
        assert float(found["loss"]) == 0


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_clients_does_not_matter(name, kind):
    """Nor do chunks, nor rows that are tied; buckets are drawn by place, and are not here."""
    z, p = rows(4), weights(kind)
    z[3] = z[5]
    numbers = {"delta_sq": z.square().sum(1), "loss": z[:, 0].clone()}
    first = made(EVERY[name], p, {"delta": z, **numbers})
    order = list(range(M))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        turned = {n: v[order] for n, v in {"delta": z, **numbers}.items()}
        for chunk in (None, 2):
            again = made(EVERY[name], p[order], turned, chunk)
            for n, v in first.items():
                torch.testing.assert_close(again[n], v, rtol=1e-9, atol=1e-12)


def test_ties_are_taken_together():
    z = torch.tensor([[0.0], [1.0], [10.0], [11.0]]).double()
    assert float(vector(r.Krum(f=0), weights("equal", 4), z)) == 5.5  # 1 and 10 have one score
    even = torch.tensor([[1.0], [2.0], [3.0], [100.0]]).double()
    assert float(vector(r.Median(), weights("equal", 4), even)) == 2.5


@pytest.mark.parametrize("size", [1e3, 1e12])
@pytest.mark.parametrize("name", ALL)
def test_two_of_nine_move_nothing_far(name, size):
    """Breakdown: however long hostile rows are, the result stays where the honest ones are."""
    z, p = rows(5), weights("equal")
    if name.startswith("bucketing"):
        z, p = rows(5, 12), weights("equal", 12)
    honest = z[2:]
    for hostile in (size * torch.ones(2, D), torch.stack([size * torch.ones(D)] * 2) * -1):
        found = made(
            ALL[name],
            p,
            {
                "delta": torch.cat([hostile.double(), honest]),
                "delta_sq": torch.full((len(p),), size),
                "loss": torch.cat([torch.full((2,), size).double(), honest[:, 0]]),
            },
        )
        far = (found["delta"] - honest.mean(0)).norm()
        assert float(far) <= 2 * float((honest - honest.mean(0)).norm(dim=1).max())
        assert float(found["loss"]) <= float(honest[:, 0].max())
        length = found["delta"].square().sum()
        assert float(length) * (1 - 1e-9) <= float(found["delta_sq"])
        farthest = (honest - found["delta"]).norm(dim=1).max().square()
        assert float(found["delta_sq"]) <= float(length + farthest) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["median", "trimmed", "geometric"])
def test_half_of_the_clients_is_too_many(name):
    """A test of the test above: with five of nine hostile they all break."""
    z, p = rows(5), weights("equal")
    z[:5] = 1e6
    assert float(vector(EVERY[name], p, z).norm()) > 1e5


def test_weights_count_not_heads():
    """Three clients with most of the weight are a majority."""
    z = torch.cat([torch.zeros(4, 2), torch.ones(3, 2)]).double()
    p = torch.tensor([0.05] * 4 + [0.8 / 3] * 3).double()
    for rule in (r.Median(), r.GeometricMedian()):
        torch.testing.assert_close(vector(rule, p, z), torch.ones(2).double(), atol=1e-5, rtol=0)


def test_clients_are_chosen_once_for_all_channels():
    """The second channel says nothing; the row of the chosen client is taken nevertheless."""
    z, p = rows(6), weights("equal")
    z[0] += 100
    marks = torch.arange(M).double()[:, None].expand(M, 3) * 1e-9
    for rule, wanted in ((r.Krum(f=2), 1), (r.MultiKrum(f=2, keep=4), 4)):
        found = made(rule, p, {"delta": z, "control": marks})
        chosen = (z - found["delta"]).norm(dim=1) < 1e-9
        if wanted == 1:
            assert int(chosen.sum()) == 1
            torch.testing.assert_close(found["control"], marks[chosen][0])
    long = {"a": z[:, :3], "b": z[:, 3:]}
    for name, rule in EVERY.items():
        found = made(rule, p, long)
        whole = vector(rule, p, z)
        torch.testing.assert_close(torch.cat([found["a"], found["b"]]), whole, msg=name)


def test_the_squared_length_is_about_the_result():
    """Not what clients report; the mean of |z_i|^2 where all are equally far from the mean."""
    z, p = rows(7), weights("unequal")
    lies = torch.full((M,), 1e30).double()
    for rule in EVERY.values():
        found = made(rule, p, {"delta": z, "delta_sq": lies})
        v = found["delta"].numpy()
        away = [float(np.linalg.norm(y - v)) for y in z.numpy()]
        most = rules.weighted_median(away, p.numpy())
        near = sum(w * min(a, most) ** 2 for a, w in zip(away, p.numpy(), strict=True))
        assert float(found["delta_sq"]) == pytest.approx(float(v @ v) + near, rel=1e-12)
    cross = torch.cat([torch.eye(4), -torch.eye(4)]).double() + 3
    mean = made(r.TrimmedMean(f=0), weights("equal", 8), {"delta": cross, "delta_sq": lies[:8]})
    torch.testing.assert_close(mean["delta_sq"], cross.square().sum(1).mean())


def test_f_may_be_a_share_and_is_what_can_be_withstood():
    z = rows(8, 12)
    p = weights("equal", 12)
    share, count = vector(r.TrimmedMean(f=0.2), p, z), vector(r.TrimmedMean(f=3), p, z)
    assert torch.equal(share, count)
    few = vector(r.TrimmedMean(f=3), weights("equal", 4), z[:4])  # as many as can be: 1
    assert torch.equal(few, vector(r.TrimmedMean(f=1), weights("equal", 4), z[:4]))
    z, p = rows(8, 20), weights("equal", 20)
    buckets = [vector(r.Bucketing(r.TrimmedMean(f=f), size=2), p, z) for f in (0.1, 2, 1)]
    assert torch.equal(buckets[0], buckets[1])  # of the clients, not of the ten buckets
    assert not torch.equal(buckets[0], buckets[2])


def test_buckets_are_means_of_every_client_once():
    z, p = rows(9, 10), weights("unequal", 10)
    found = vector(r.Bucketing(r.TrimmedMean(f=0), size=3), p, z)
    torch.testing.assert_close(found, p @ z)
    seen = [vector(r.Bucketing(r.Median(), size=3, seed=s), p, z) for s in range(3)]
    assert not torch.equal(seen[0], seen[1])
    again = vector(r.Bucketing(r.Median(), size=3, seed=0), p, z)
    assert torch.equal(seen[0], again)


def test_rows_that_are_not_finite_do_not_count():
    z, p = rows(10), weights("equal")
    z[2, 3] = math.nan
    rest = [i for i in range(M) if i != 2]
    for rule in EVERY.values():
        torch.testing.assert_close(vector(rule, p, z), vector(rule, p[rest], z[rest]))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: r.Krum(f=-1), r"Krum\(f=...\) must be an int >= 0 \(clients\), or a fraction"),
        (lambda: r.TrimmedMean(f=0.5), "below 0.5, got 0.5"),
        (lambda: r.MultiKrum(f=1, keep=0), r"MultiKrum\(keep=...\) must be an int >= 1"),
        (lambda: r.NormClip(radius=0), r"NormClip\(radius=...\) must be a finite number > 0"),
        (lambda: r.NNM(torch.median, f=1), r"NNM\(inner=...\) must be a Robust"),
        (lambda: r.Krum(f=2).check(6), "needs at least 7 uploads a round, but the cohort has 6"),
        (lambda: r.Bucketing(r.Krum(f=2), size=2).check(12), "put together to 6"),
        (lambda: r.parse("krumm:f=2"), "Did you mean 'krum'. Known: bucketing.AGGREGATION"),
        (lambda: r.parse("nnm:f=2"), "goes in front of another one; write nnm:f=2.median"),
        (lambda: r.parse("nnm+krum:f=1"), "'nnm' lacks f"),
        (lambda: r.parse("krum"), "lacks f; write krum:f="),
        (lambda: r.parse("krum:f=two"), "krum: f must be a number"),
        (lambda: r.parse("krum:2:3"), "'3' is one value too many"),
        (lambda: r.parse("median+krum:f=1"), "Unknown aggregation 'median.krum'"),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        make()


def test_words_stand_for_rules():
    assert r.parse("multi-krum:f=2:keep=3") == r.MultiKrum(f=2, keep=3)
    assert r.parse("nnm:f=0.1+bucketing:size=3+centred-clip:radius=none") == r.NNM(
        r.Bucketing(r.CentredClip(), size=3), f=0.1
    )
    assert r.parse("mean") is tf.server.aggregate.weighted_mean
