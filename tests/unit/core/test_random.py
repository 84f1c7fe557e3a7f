"""The draws are part of the format: these bits must never change."""

import hashlib
from collections import Counter
from itertools import combinations

import pytest
import torch

from tunefree.core import random

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    """Splitmix64's finaliser on Python's own integers, modulo 2^64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def key(seed, name, *parts):
    purpose = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    out = mix((mix(seed % WORD) + mix(purpose) + GOLDEN) % WORD)
    for part in parts:
        out = mix(((out ^ mix((part + GOLDEN) % WORD)) + GOLDEN) % WORD)
    return out


def bits(k, position):
    return mix((mix(k ^ mix(position ^ GOLDEN)) + GOLDEN) % WORD)


def subset(k, population, size):
    order = sorted(range(population), key=lambda j: signed(bits(k, j)))
    return sorted(order[:size])


def signed(z):
    return z - WORD if z >= WORD // 2 else z


def test_the_finaliser_is_splitmix64():
    """Published outputs for seed 0 (Vigna's splitmix64.c)."""
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for i, expected in enumerate(known):
        state = GOLDEN * (i + 1) % WORD
        assert mix(state) == expected
        assert int(random.mix(torch.tensor(signed(state)))) == signed(expected)


@pytest.mark.parametrize("seed", [0, 1, -5, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("parts", [(), (0,), (3, 17), (2**40, 5, 0)])
def test_keys_and_bits_are_those_of_plain_integers(seed, parts):
    k = key(seed, "cohort", *parts)
    ours = random.key(seed, "cohort", *parts)
    assert int(ours) == signed(k)
    positions = [0, 1, 2, 1000, 2**40]
    got = random.bits(ours, torch.tensor(positions)).tolist()
    assert got == [signed(bits(k, p)) for p in positions]
    got = random.stream(ours, torch.tensor(positions)).tolist()
    assert got == [signed(mix((k ^ p) * GOLDEN % WORD)) for p in positions]


FROZEN = {
    (0, "cohort", (0,), 0): 6017718439903762059,
    (7, "batch", (3, 5), 2): 7809850007690013514,
    (123456789, "dropout", (1, 2, 3), 10**6): -8297665327812006947,
}
COHORTS = {(0, 0): [7, 9, 10, 14, 17], (0, 1): [0, 9, 10, 12, 15], (7, 3): [1, 10, 11, 15, 19]}


@pytest.mark.parametrize("case", FROZEN)
def test_frozen_bits(case):
    seed, name, parts, position = case
    assert int(random.bits(random.key(seed, name, *parts), torch.tensor(position))) == FROZEN[case]
    assert signed(bits(key(seed, name, *parts), position)) == FROZEN[case]


@pytest.mark.parametrize("case", COHORTS)
def test_frozen_cohorts(case):
    seed, t = case
    assert random.cohort(seed, t, clients=20, size=5).tolist() == COHORTS[case]
    assert subset(key(seed, "cohort", t), 20, 5) == COHORTS[case]


def test_parts_broadcast():
    clients = torch.arange(4)
    keys = random.key(0, "batch", 3, clients, 1)
    assert keys.tolist() == [int(random.key(0, "batch", 3, i, 1)) for i in range(4)]
    table = random.bits(keys[:, None], torch.arange(6))
    assert table.shape == (4, 6)
    assert int(table[2, 5]) == int(random.bits(keys[2], torch.tensor(5)))


def test_keys_differ():
    keys = {
        int(random.key(seed, name, *parts))
        for seed in range(5)
        for name in ("a", "b", "ab")
        for parts in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    }
    assert len(keys) == 5 * 3 * 7


@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, 53), (torch.float32, 24)])
def test_uniform(dtype, width):
    k, positions = random.key(0, "test"), torch.arange(20_000)
    u = random.uniform(k, positions, dtype)
    assert u.dtype == dtype
    expected = [(bits(key(0, "test"), p) >> (64 - width)) / 2**width for p in range(50)]
    assert u[:50].tolist() == expected
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    counts = torch.histc(u.double(), 20, 0, 1)
    chi = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi < 43.8  # 19 degrees of freedom, p = 0.001
    assert abs(float(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1])) < 0.025


@pytest.mark.parametrize("draw", [random.bits, random.stream])
def test_every_bit_is_fair(draw):
    draws = draw(random.key(1, "test"), torch.arange(20_000))
    for bit in range(64):
        ones = int(((draws >> bit) & 1).sum())
        assert abs(ones - 10_000) < 300  # 4 standard deviations are 283


def test_bits_of_a_stream_are_unrelated():
    """Of positions at every power of two, and of each bit with every other."""
    draws = random.stream(random.key(2, "test"), torch.arange(1 << 15))
    signs = 1.0 - 2.0 * ((draws[:, None] >> torch.arange(64)) & 1)  # (n, 64)
    limit = 5.5 / len(draws) ** 0.5  # standard deviations
    for shift in (1 << i for i in range(15)):
        there = signs[torch.arange(len(draws)) ^ shift]
        assert (
            float((signs * there).mean(0).abs().max()) < limit * 2**0.5
        )  # each pair is there twice
    between = signs.T @ signs / len(draws) - torch.eye(64)
    assert float(between.abs().max()) < limit


def test_below():
    draws = random.below(random.key(0, "test"), torch.arange(6000), 6)
    counts = torch.bincount(draws)
    assert counts.shape == (6,)
    assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 20.5  # 5 degrees, p = 0.001
    assert random.below(random.key(0, "test"), torch.arange(5), 1).tolist() == [0] * 5


def test_subsets_are_without_replacement_and_equally_likely():
    counts = Counter(tuple(random.cohort(3, t, 5, 2).tolist()) for t in range(3000))
    assert set(counts) == set(combinations(range(5), 2))
    assert sum((n - 300) ** 2 / 300 for n in counts.values()) < 27.9  # 9 degrees, p = 0.001


def test_everyone():
    assert random.cohort(0, 4, 6, 6).tolist() == list(range(6))


def test_few_of_many_are_the_first_distinct_draws():
    """Also where many draws repeat, and without a look at everyone."""
    for population, size in ((20, 5), (20, 19), (20_000, 10_000), (10**12, 50)):
        k = random.key(5, "few")
        draws = random.below(k, torch.arange(40 * size), population).tolist()
        expected = list(dict.fromkeys(draws))[:size]  # in the order of their first appearance
        assert random.few(k, population, size).tolist() == sorted(expected)


def test_few_of_many_are_equally_likely():
    counts = Counter(tuple(random.few(random.key(3, "few", t), 5, 2).tolist()) for t in range(3000))
    assert len(counts) == 10
    assert all(200 < n < 400 for n in counts.values())


def test_a_cohort_of_a_million():
    ids = random.cohort(0, 4, 10**6, 100)
    assert ids.tolist() == random.few(random.key(0, "cohort", 4), 10**6, 100).tolist()
    assert len(set(ids.tolist())) == 100
    assert 0 <= int(ids.min()) <= int(ids.max()) < 10**6
    assert len(random.cohort(0, 4, 10_001, 9_000)) == 9_000
