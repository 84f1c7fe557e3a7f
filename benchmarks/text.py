"""Numbers for tables."""

from collections.abc import Mapping
from typing import Any


def number(value: float | None) -> str:
    """Return about three digits.

    >>> number(0.1234), number(12.34), number(1234.5), number(None)
    ('0.12', '12.3', '1,234', '')
    """
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ranged(row: Mapping[str, Any], name: str, unit: str = "") -> str:
    """Return a median with its range.

    >>> ranged({"ms": 1.0, "ms_range": (0.5, 2.0)}, "ms")
    '1.00 (0.50 to 2.00)'

    Of one measurement there is no range.

    >>> ranged({"ms": 1.0, "ms_range": (2.0, 2.0)}, "ms")
    '1.00'
    """
    if row[name] is None:
        return ""
    low, high = row[f"{name}_range"]
    if low == high:
        return f"{number(row[name])}{unit}"
    return f"{number(row[name])}{unit} ({number(low)} to {number(high)})"


def memory(count: float | None) -> str:
    """Return bytes in megabytes or gigabytes.

    >>> memory(2_500_000), memory(3.1e9)
    ('2.5 MB', '3.1 GB')
    """
    if count is None:
        return ""
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
