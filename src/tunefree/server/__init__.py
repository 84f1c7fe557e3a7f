"""Server-side parts: rules, outputs (which model is evaluated and returned), and means."""

from .adaptive import Adaptive, AMSGrad
from .average import Average, ClientMomentum, Drift, Momentum, Scafcom
from .composite import ZA1, DualAverage, FastFedDA, Proximal, Splitting
from .feddua import FedDuAdagrad, FedDuAdam
from .fedexp import Extrapolate, FedExP, FedExPM
from .lod import LoD
from .mirror import Entropy, FedDuA, Mirror, PNorm, Quadratic
from .normalised import PAdaMFed, ParFreFL
from .output import Averaged, Last, LastTwo
from .race import Race
from .rule import Output, Server

__all__ = [  # noqa: RUF022  # sorted without regard to case
    "AMSGrad",
    "Adaptive",
    "Average",
    "Averaged",
    "ClientMomentum",
    "Drift",
    "DualAverage",
    "Entropy",
    "Extrapolate",
    "FastFedDA",
    "FedDuA",
    "FedDuAdagrad",
    "FedDuAdam",
    "FedExP",
    "FedExPM",
    "Last",
    "LastTwo",
    "LoD",
    "Mirror",
    "Momentum",
    "Output",
    "PAdaMFed",
    "PNorm",
    "ParFreFL",
    "Proximal",
    "Quadratic",
    "Race",
    "Scafcom",
    "Server",
    "Splitting",
    "ZA1",
]
