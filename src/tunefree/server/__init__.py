"""What the server does: means, rules, and the choice of the model to ship."""

from .average import Average
from .feddua import FedDuAdagrad, FedDuAdam
from .fedexp import FedExP
from .fedexpm import FedExPM
from .momentum import Momentum
from .output import Averaged, Last, LastTwo
from .rule import Output, Server

__all__ = [
    "Average",
    "Averaged",
    "FedDuAdagrad",
    "FedDuAdam",
    "FedExP",
    "FedExPM",
    "Last",
    "LastTwo",
    "Momentum",
    "Output",
    "Server",
]
