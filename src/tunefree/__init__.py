"""tunefree: federated learning with nothing to tune."""

from . import clients, data, methods, models, penalties, random, server, testing, wire
from .data import ByOwner, Dataset, Dirichlet, Federation, Iid, Shards, load
from .errors import TunefreeError
from .fit import Event, fit
from .methods import Method
from .run import Run
from .version import __version__

__all__ = [
    "ByOwner",
    "Dataset",
    "Dirichlet",
    "Event",
    "Federation",
    "Iid",
    "Method",
    "Run",
    "Shards",
    "TunefreeError",
    "__version__",
    "clients",
    "data",
    "fit",
    "load",
    "methods",
    "models",
    "penalties",
    "random",
    "server",
    "testing",
    "wire",
]
