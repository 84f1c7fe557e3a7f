"""Gaussian noise: a function of a seed in simulation, the system's randomness in earnest.

    g = Phi^-1((n + 1/2) / 2^53),    n uniform in 0 .. 2^53 - 1

Whoever knows the seed can take the noise off again, so that a seed protects nobody: it is there to
repeat an experiment. Noise of floating-point numbers has gaps that an adversary with exact outputs
may use (Mironov, CCS 2012); a guarantee to the last bit needs discrete noise (Canonne, Kamath &
Steinke, NeurIPS 2020), which is not here.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.random import key, purpose, uniform

NoiseSource = Callable[[str, int], Tensor]
"""Returns so many standard normal numbers, float64, for a channel."""


def seeded_noise(seed: int, round: int, what: str = "") -> NoiseSource:
    """Return the noise of a round: the same for the same seed, another for each channel.

    >>> same = seeded_noise(0, 3)("delta", 4), seeded_noise(0, 3)("delta", 4)
    >>> torch.equal(*same), torch.equal(same[0], seeded_noise(0, 4)("delta", 4))
    (True, False)
    """

    def draw(name: str, size: int) -> Tensor:
        k = key(seed, "privacy", round, purpose(what), purpose(name))
        return _normal(uniform(k, torch.arange(size)))

    return draw


def system_noise(name: str, size: int) -> Tensor:
    """Return noise that nobody can repeat."""
    if not size:
        return torch.zeros(0, dtype=torch.float64)
    words = torch.frombuffer(bytearray(os.urandom(8 * size)), dtype=torch.int64)
    return _normal(((words >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53)


def _normal(u: Tensor) -> Tensor:
    """Return the normal numbers of uniform ones in [0, 1) that are multiples of 2^-53."""
    upper = u >= 0.5  # near 1, half a step would be lost to rounding: use the other tail
    tail = torch.where(upper, 1 - 2.0**-53 - u, u) + 2.0**-54
    g = torch.special.ndtri(tail)
    return torch.where(upper, -g, g)
