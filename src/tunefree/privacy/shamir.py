"""Secret sharing: any `threshold` shares determine the secret, fewer reveal nothing about it.

Shamir, CACM 1979. A secret is f(0) of a random polynomial f of degree threshold - 1 over the
integers modulo the prime P = 2^521 - 1; the share of holder x = 1, 2, ... is f(x).

    f(0) = sum_x f(x) prod_{z != x} z / (z - x)   mod P
"""

import secrets
from collections.abc import Iterable, Sequence

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


def lagrange_factors(holders: Iterable[int]) -> dict[int, int]:
    """Return the factors by which the shares of these holders are multiplied before summation."""
    xs = list(holders)
    out = {}
    for x in xs:
        up = down = 1
        for z in xs:
            if z != x:
                up, down = up * z % P, down * (z - x) % P
        out[x] = up * pow(down, -1, P) % P
    return out


def join(shares: dict[int, bytes], factors: dict[int, int] | None = None) -> bytes:
    """Return the secret from as many shares as its threshold.

    Args:
        shares: Shares by holder.
        factors: The holders' `lagrange_factors`, if they are known.
    """
    factors = lagrange_factors(shares) if factors is None else factors
    if any(len(s) != SHARE for s in shares.values()):
        raise DataError(f"A share must have {SHARE} bytes.")
    value = sum(int.from_bytes(shares[x], "big") * factors[x] for x in factors) % P
    if value >> (8 * SECRET):
        raise DataError("These shares do not belong to one secret.")
    return value.to_bytes(SECRET, "big")
