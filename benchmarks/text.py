"""Numbers for tables."""

from collections.abc import Mapping
from typing import Any


def format_number(value: float | None) -> str:
    """Return about three digits.

    >>> format_number(0.1234), format_number(12.34), format_number(1234.5), format_number(None)
    ('0.12', '12.3', '1,234', '')
    """
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def format_range(row: Mapping[str, Any], name: str, unit: str = "") -> str:
    """Return a median with its range.

    >>> format_range({"ms": 1.0, "ms_range": (0.5, 2.0)}, "ms")
    '1.00 (0.50 to 2.00)'

    Of one measurement there is no range.

    >>> format_range({"ms": 1.0, "ms_range": (2.0, 2.0)}, "ms")
    '1.00'

    Records made before a column was there say so.

    >>> format_range({}, "ms")
    'not measured'
    """
    if name not in row:
        return "not measured"
    if row[name] is None:
        return ""
    low, high = row[f"{name}_range"]
    if low == high:
        return f"{format_number(row[name])}{unit}"
    return f"{format_number(row[name])}{unit} ({format_number(low)} to {format_number(high)})"


def format_bytes(count: float | None) -> str:
    """Return bytes in megabytes or gigabytes.

    >>> format_bytes(2_500_000), format_bytes(3.1e9)
    ('2.5 MB', '3.1 GB')
    """
    if count is None:
        return ""
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
