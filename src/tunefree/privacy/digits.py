"""Numbers of any size as digits, whose sums under masks are exact."""

import torch
from torch import Tensor

DIGITS = (64, 32, 0, -32, -64, -96)  # exponents of the digits' units


def to_digits(rows: Tensor) -> Tensor:
    """Return numbers (m, k) below 2^96 as digits (m, 6 k) in base 2^32, integers with their sign.

    >>> rows = torch.tensor([[1e15 + 0.125, -3e-9]], dtype=torch.float64)
    >>> torch.equal(from_digits(to_digits(rows)[0]), rows[0])
    True
    """
    parts = []
    for power in DIGITS:
        parts.append(torch.trunc(rows * 2.0**-power))
        rows = rows - parts[-1] * 2.0**power  # exact
    return torch.cat(parts, 1)


def from_digits(digits: Tensor) -> Tensor:
    """Undo `to_digits` for one vector, which may be a sum of several."""
    units = torch.tensor([2.0**power for power in DIGITS], dtype=digits.dtype)
    return (digits.reshape(len(DIGITS), -1) * units.to(digits.device)[:, None]).flip(0).sum(0)
