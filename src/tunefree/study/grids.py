"""What is searched when no grid is given: the grids of the papers, in one place.

`DUA` is the FedDuA paper's grid for images (half-decades), which tunes most baselines of the field:
client steps 1e-2 .. 1, server steps 1e-4 .. 1e-2 of the Adam family, FedProx's mu 1e-3 .. 1 by
decades. Where it has no grid for a setting, decades around the default are searched, marked `OURS`.
The FedDuA paper also tunes FedAvg's and SCAFFOLD's server step over 1e-1 .. 1e1, which is a default
here, not a choice: `--grid server_lr=0.1,1,10` searches it.
"""

from ..core.errors import ArgumentError
from ..methods import CATALOGUE, settings

DUA, OURS = "FedDuA, grid for images", "decades around the default"


def spaced(low: float, high: float, per_decade: int) -> tuple[float, ...]:
    """Return 10^low .. 10^high, so many per decade, to three digits.

    >>> spaced(-2, 0, 2)
    (0.01, 0.0316, 0.1, 0.316, 1.0)
    """
    count = round((high - low) * per_decade)
    return tuple(float(f"{10 ** (low + i / per_decade):.3g}") for i in range(count + 1))


LR = (spaced(-2, 0, 2), DUA)
OPT = (spaced(-4, -2, 2), DUA)
GRIDS: dict[str, dict[str, tuple[tuple[float, ...], str]]] = {
    "": {"lr": LR},  # every method, unless said below
    "fedadagrad": {"server_lr": OPT},
    "fedadam": {"server_lr": OPT},
    "fedyogi": {"server_lr": OPT},
    "fedams": {"server_lr": (spaced(-2, 0, 2), OURS)},
    "fedefams": {"server_lr": OPT},
    "fedprox": {"mu": (spaced(-3, 0, 1), DUA)},
    "fedexprox": {"mu": (spaced(-3, 0, 1), OURS)},
    "feddyn": {"mu": (spaced(-3, -1, 1), OURS)},
    "feddc": {"mu": (spaced(-3, -1, 1), OURS)},
    "fedadmm": {"mu": (spaced(-2, 1, 1), OURS)},
    "feddr": {"mu": (spaced(-2, 1, 1), OURS)},
    "fedpd": {"mu": (spaced(-2, 1, 1), OURS)},
    "fastfedda": {"mu": (spaced(-4, -2, 1), OURS)},
    "fedavgcm": {"beta": ((0.03, 0.1, 0.3), OURS)},
    "scaffoldm": {"beta": ((0.03, 0.1, 0.3), OURS)},
    "scafcom": {"beta": ((0.03, 0.1, 0.3), OURS)},
}


def grid(name: str) -> dict[str, tuple[float, ...]]:
    """Return what to search for a method: values by setting.

    >>> grid("fedprox")["mu"]
    (0.001, 0.01, 0.1, 1.0)
    """
    settings(name)  # refuses a name that is not there
    choose = CATALOGUE[name].choose
    if not choose:
        raise ArgumentError(
            f"{name} has nothing to choose, so there is no grid of its own; give grid=... "
            "(--grid KEY=VALUES) to search a setting all the same."
        )
    known = GRIDS[""] | GRIDS.get(name, {})
    return {setting: known[setting][0] for setting in choose}
