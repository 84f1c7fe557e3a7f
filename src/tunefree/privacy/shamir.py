"""Secrets in shares: any `threshold` of them give the secret back, fewer say nothing about it.

Shamir, CACM 1979. A secret is f(0) of a random polynomial f of degree threshold - 1 over the
integers modulo the prime P = 2^521 - 1; the share of person x = 1, 2, ... is f(x).

    f(0) = sum_x f(x) prod_{z != x} z / (z - x)   mod P
"""

import secrets
from collections.abc import Iterable, Sequence

from ..core.errors import DataError, check_int

P = 2**521 - 1
SECRET, SHARE = 32, 66  # bytes


def split(secret: bytes, people: int, threshold: int) -> list[bytes]:
    """Return the shares of persons 1, 2, ..., people.

    >>> some = split(bytes(range(32)), people=5, threshold=3)[1:4]
    >>> join(dict(zip([2, 3, 4], some))) == bytes(range(32))
    True
    """
    check_int("split", "threshold", threshold)
    check_int("split", "people", people, threshold)
    if len(secret) != SECRET:
        raise DataError(f"A secret must have {SECRET} bytes, got {len(secret)}.")
    first = int.from_bytes(secret, "big")
    rest = [secrets.randbelow(P) for _ in range(threshold - 1)]
    return [_value([first, *rest], x).to_bytes(SHARE, "big") for x in range(1, people + 1)]


def _value(coefficients: Sequence[int], x: int) -> int:
    out = 0
    for c in reversed(coefficients):
        out = (out * x + c) % P
    return out


def lagrange_factors(persons: Iterable[int]) -> dict[int, int]:
    """Return what the shares of these persons are multiplied by before they are added."""
    xs = list(persons)
    out = {}
    for x in xs:
        up = down = 1
        for z in xs:
            if z != x:
                up, down = up * z % P, down * (z - x) % P
        out[x] = up * pow(down, -1, P) % P
    return out


def join(shares: dict[int, bytes], by: dict[int, int] | None = None) -> bytes:
    """Return the secret from as many shares as its threshold, by person.

    Args:
        shares: A share of each person.
        by: The persons' `lagrange_factors`, where they are known.
    """
    by = lagrange_factors(shares) if by is None else by
    if any(len(s) != SHARE for s in shares.values()):
        raise DataError(f"A share must have {SHARE} bytes.")
    value = sum(int.from_bytes(shares[x], "big") * by[x] for x in by) % P
    if value >> (8 * SECRET):
        raise DataError("These shares do not belong to one secret.")
    return value.to_bytes(SECRET, "big")
