"""The grid that is searched when none is given: the one that the method was registered with."""

from ..core.errors import ArgumentError
from ..methods import CATALOGUE, settings


def grid(name: str) -> dict[str, tuple[float, ...]]:
    """Return the values to search for a method, by setting.

    >>> grid("fedprox")["mu"]
    (0.001, 0.01, 0.1, 1.0)
    """
    settings(name)  # raises for an unknown name
    found = CATALOGUE[name].grid
    if not found:
        raise ArgumentError(
            f"{name} has nothing to choose, so there is no grid of its own; give grid=... "
            "(--grid KEY=VALUES) to search a setting all the same."
        )
    return dict(found)
