"""tunefree: federated learning with nothing to tune."""

from typing import TYPE_CHECKING, Any

from . import (
    attacks,
    clients,
    data,
    faults,
    methods,
    models,
    penalties,
    privacy,
    robust,
    server,
    sinks,
    testing,
    wire,
)
from . import report as _report  # noqa: F401  (registers the functions behind Run.report)
from .advice.advise import advise
from .core import random
from .core.errors import TunefreeError
from .data import ByOwner, Dataset, Dirichlet, Federation, Iid, RelaySum, Shards, load
from .methods import Method
from .study import Comparison, Tuning, compare, tune
from .training.callbacks import Event
from .training.config import Engine, Evaluate, Preprocess, RunConfig, Scenario
from .training.fit import fit
from .training.run import Run
from .version import __version__

if TYPE_CHECKING:
    from .estimators import FederatedClassifier as FederatedClassifier
    from .estimators import FederatedRegressor as FederatedRegressor


def __getattr__(name: str) -> Any:
    """Import the estimators, which need scikit-learn, when they are used."""
    if name in ("FederatedClassifier", "FederatedRegressor"):
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ByOwner",
    "Comparison",
    "Dataset",
    "Dirichlet",
    "Engine",
    "Evaluate",
    "Event",
    "Federation",
    "Iid",
    "Method",
    "Preprocess",
    "RelaySum",
    "Run",
    "RunConfig",
    "Scenario",
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
