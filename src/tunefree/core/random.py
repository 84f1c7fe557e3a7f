"""Counter-based random numbers: functions of seed, purpose, round, client and position.

A draw is a 64-bit mix (splitmix64's finaliser, Steele, Lea & Flood 2014) of a key and a position,
in int64 tensor arithmetic. It has the same bits on any device, for any order of clients, any chunk
size and any number of processes. There is no state.

    mix(z):  z ^= z >> 30;  z *= M1;  z ^= z >> 27;  z *= M2;  z ^= z >> 31
    key:     k = mix(mix(seed) + G + mix(purpose)),
             then for each part  k = mix((k ^ mix(part + G)) + G)
    bits:    mix(mix(key ^ mix(position ^ G)) + G)
    stream:  mix((key ^ position) G)

with G the golden ratio's 64 bits; all arithmetic is modulo 2^64, shifts are logical. Positions
enter by xor because a compiler may fold `position * G` into an index, which does not wrap.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed int64; tensor arithmetic wraps
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)
_WORD = (1 << 64) - 1


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's `>>` on int64 keeps the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """Mix int64 values: a bijection in which every input bit affects every output bit."""
    z = _shift(z, 30).bitwise_xor_(z).mul_(_M1)
    z = _shift(z, 27).bitwise_xor_(z).mul_(_M2)
    return _shift(z, 31).bitwise_xor_(z)


def _mix_int(z: int) -> int:
    """Return `mix` of one int; Python's arithmetic is faster for one number."""
    z &= _WORD
    z = (z ^ (z >> 30)) * _M1 & _WORD
    z = (z ^ (z >> 27)) * _M2 & _WORD
    return z ^ (z >> 31)


def _to_signed(z: int) -> int:
    return z - (1 << 64) if z >> 63 else z


@lru_cache
def purpose(name: str) -> int:
    """Return the int64 of a purpose; the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)


def numpy_generator(seed: int, name: str) -> np.random.Generator:
    """Return a NumPy generator for a purpose under a seed, for splits and synthetic data."""
    return np.random.Generator(np.random.Philox([seed & _WORD, purpose(name) & _WORD]))


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Seed torch's generator on the CPU within the context, for the initialisation of networks.

    Its state is restored at the end; `torch.manual_seed` would also seed the GPUs.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def key(seed: int, name: str, *parts: int | Tensor) -> Tensor:
    """Return the key (int64) of a purpose under a seed, a round, clients, ...; parts broadcast.

    >>> int(key(0, "cohort", 3)) == int(key(0, "cohort", 3))
    True
    >>> key(0, "batch", 3, torch.arange(5)).shape
    torch.Size([5])
    """
    one = _mix_int(_mix_int(seed) + _GOLDEN + _mix_int(purpose(name)))  # while parts are ints
    out: Tensor | None = None
    for part in parts:
        if out is None and not isinstance(part, Tensor):
            one = _mix_int((one ^ _mix_int(int(part) + _GOLDEN)) + _GOLDEN)
            continue
        value = torch.as_tensor(part, dtype=torch.int64)
        before = _to_signed(one) if out is None else out.to(value.device)
        out = mix((before ^ mix(value + _GOLDEN)) + _GOLDEN)
    return torch.tensor(_to_signed(one)) if out is None else out


def bits(key: Tensor, position: Tensor) -> Tensor:
    """Return 64 random bits (int64) for each position under each key; shapes broadcast."""
    return mix(mix(key ^ mix(position ^ _GOLDEN)) + _GOLDEN)


def stream(key: Tensor, position: Tensor) -> Tensor:
    """Return 64 random bits (int64) for each position under a key that is already mixed.

    Takes a third of the work of `bits`, which also accepts similar keys.
    """
    return mix((key ^ position) * _GOLDEN)


def uniform(key: Tensor, position: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return numbers in [0, 1) with 53 random bits in float64, 24 in float32.

    >>> u = uniform(key(0, "demo"), torch.arange(10_000))
    >>> bool((u >= 0).all() and (u < 1).all()), round(float(u.mean()), 2)
    (True, 0.5)
    """
    width = 53 if dtype == torch.float64 else 24
    return _shift(bits(key, position), 64 - width).to(dtype) * 2.0**-width


def below(key: Tensor, position: Tensor, limit: int) -> Tensor:
    """Return ints in 0 .. limit-1 (bias at most limit / 2**53)."""
    return (uniform(key, position) * limit).to(torch.int64).clamp(max=limit - 1)


def subset(key: Tensor, population: int, size: int) -> Tensor:
    """Return `size` distinct numbers below `population`, each subset equally likely, ascending.

    >>> subset(key(0, "demo"), 10, 4).shape
    torch.Size([4])
    """
    if size == population:
        return torch.arange(population)
    draws = bits(key, torch.arange(population))
    return torch.argsort(draws, stable=True)[:size].sort().values


def cohort(seed: int, round: int, clients: int, size: int) -> Tensor:
    """Return the ids of the clients that take part in a round, uniformly without replacement."""
    k = key(seed, "cohort", round)
    many = clients > MANY and 2 * size <= clients
    return few(k, clients, size) if many else subset(k, clients, size)


MANY = 10_000  # with more clients than this, a round does not visit all of them


def few(key: Tensor, population: int, size: int) -> Tensor:
    """Return a random subset as `subset` does, in time independent of the population.

    It consists of the first `size` distinct draws with replacement; `subset` returns another one.

    >>> few(key(0, "demo"), 10**6, 4).shape
    torch.Size([4])
    """
    draws = 0
    while True:
        draws += size + 16
        found = below(key, torch.arange(draws), population)
        distinct, place = torch.unique(found, return_inverse=True)
        if len(distinct) >= size:
            break
    first = torch.full_like(distinct, draws).scatter_reduce(0, place, torch.arange(draws), "amin")
    chosen: Tensor = distinct[torch.argsort(first)[:size]]
    return chosen.sort().values
