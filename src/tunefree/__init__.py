"""tunefree: federated learning with nothing to tune."""

from . import (
    attacks,
    clients,
    data,
    faults,
    methods,
    models,
    penalties,
    privacy,
    random,
    robust,
    server,
    sinks,
    testing,
    wire,
)
from .advise import advise
from .data import ByOwner, Dataset, Dirichlet, Federation, Iid, Shards, load
from .errors import TunefreeError
from .fit import Event, fit
from .methods import Method
from .run import Run
from .study import Comparison, Tuning, compare, tune
from .version import __version__

__all__ = [
    "ByOwner",
    "Comparison",
    "Dataset",
    "Dirichlet",
    "Event",
    "Federation",
    "Iid",
    "Method",
    "Run",
    "Shards",
    "TunefreeError",
    "Tuning",
    "__version__",
    "advise",
    "attacks",
    "clients",
    "compare",
    "data",
    "faults",
    "fit",
    "load",
    "methods",
    "models",
    "penalties",
    "privacy",
    "random",
    "robust",
    "server",
    "sinks",
    "testing",
    "tune",
    "wire",
]
