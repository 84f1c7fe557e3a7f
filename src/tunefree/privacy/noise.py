"""Gaussian noise: a function of a seed for experiments, the system's random numbers otherwise.

    g = Phi^-1((n + 1/2) / 2^53),    n uniform in 0 .. 2^53 - 1

Noise from a seed can be subtracted by anybody who knows the seed, so it only serves to repeat an
experiment. Floating-point noise has gaps that an adversary with exact outputs may use (Mironov, CCS
2012); an exact guarantee needs discrete noise (Canonne, Kamath & Steinke, NeurIPS 2020), which is
not implemented.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.random import key, purpose, uniform

NoiseSource = Callable[[str, int], Tensor]
"""Takes a channel's name and a size; returns standard normal numbers in float64."""


def seeded_noise(seed: int, round: int, what: str = "") -> NoiseSource:
    """Return the noise source of a round, a function of the seed, the round and the channel.

    >>> same = seeded_noise(0, 3)("delta", 4), seeded_noise(0, 3)("delta", 4)
    >>> torch.equal(*same), torch.equal(same[0], seeded_noise(0, 4)("delta", 4))
    (True, False)
    """

    def draw(name: str, size: int) -> Tensor:
        k = key(seed, "privacy", round, purpose(what), purpose(name))
        return _normal(uniform(k, torch.arange(size)))

    return draw


def system_noise(name: str, size: int) -> Tensor:
    """Return noise from the system's random numbers, which cannot be repeated."""
    if not size:
        return torch.zeros(0, dtype=torch.float64)
    words = torch.frombuffer(bytearray(os.urandom(8 * size)), dtype=torch.int64)
    return _normal(((words >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53)


def _normal(u: Tensor) -> Tensor:
    """Convert uniform numbers in [0, 1), multiples of 2^-53, to standard normal numbers."""
    upper = u >= 0.5  # near 1 half a step would be rounded away, so use the other tail
    tail = torch.where(upper, 1 - 2.0**-53 - u, u) + 2.0**-54
    g = torch.special.ndtri(tail)
    return torch.where(upper, -g, g)
