"""Data: federations, partitioners and dataset loaders."""

from .catalogue import describe, load, names
from .dataset import Dataset
from .federation import Federation
from .partition import ByOwner, Dirichlet, Iid, Partitioner, RelaySum, Shards

__all__ = [
    "ByOwner",
    "Dataset",
    "Dirichlet",
    "Federation",
    "Iid",
    "Partitioner",
    "RelaySum",
    "Shards",
    "describe",
    "load",
    "names",
]
