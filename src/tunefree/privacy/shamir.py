"""Secret sharing: any `threshold` shares determine the secret, fewer reveal nothing about it.

Shamir, CACM 1979. A secret is f(0) of a random polynomial f of degree threshold - 1 over the
integers modulo the prime P = 2^521 - 1; the share of holder x = 1, 2, ... is f(x).

    f(0) = sum_x f(x) prod_{z != x} z / (z - x)   mod P
"""

import secrets
from collections.abc import Sequence
from functools import lru_cache

from ..core.errors import DataError, check_int

P = 2**521 - 1
SECRET, SHARE = 32, 66  # bytes


def split(secret: bytes, holders: int, threshold: int) -> list[bytes]:
    """Return the shares of holders 1, 2, ..., `holders`.

    >>> some = split(bytes(range(32)), holders=5, threshold=3)[1:4]
    >>> join(dict(zip([2, 3, 4], some))) == bytes(range(32))
    True
    """
    check_int("split", "threshold", threshold)
    check_int("split", "holders", holders, threshold)
    if len(secret) != SECRET:
        raise DataError(f"A secret must have {SECRET} bytes, got {len(secret)}.")
    first = int.from_bytes(secret, "big")
    rest = [secrets.randbelow(P) for _ in range(threshold - 1)]
    return [_value([first, *rest], x).to_bytes(SHARE, "big") for x in range(1, holders + 1)]


def _value(coefficients: Sequence[int], x: int) -> int:
    out = 0
    for c in reversed(coefficients):
        out = (out * x + c) % P
    return out


@lru_cache(maxsize=1)  # the same holders open many secrets
def lagrange_factors(holders: tuple[int, ...]) -> dict[int, int]:
    """Return the factors by which the shares of these holders are multiplied before summation."""
    out = {}
    for x in holders:
        up = down = 1
        for z in holders:
            if z != x:
                up, down = up * z % P, down * (z - x) % P
        out[x] = up * pow(down, -1, P) % P
    return out


def join(shares: dict[int, bytes]) -> bytes:
    """Return the secret from as many shares, by holder, as its threshold."""
    if any(len(s) != SHARE for s in shares.values()):
        raise DataError(f"A share must have {SHARE} bytes.")
    factors = lagrange_factors(tuple(shares))
    value = sum(int.from_bytes(shares[x], "big") * factors[x] for x in factors) % P
    if value >> (8 * SECRET):
        raise DataError("These shares do not belong to one secret.")
    return value.to_bytes(SECRET, "big")
