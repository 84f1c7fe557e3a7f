"""Server-side parts: rules, outputs (which model is evaluated and returned), and means."""

from .adaptive import Adaptive, AMSGrad
from .average import Average, Momentum
from .composite import ZA1, DualAverage, FastFedDA, Splitting
from .controls import ClientMomentum, Drift, Scafcom
from .feddua import FedDuAdagrad, FedDuAdam
from .fedexp import Extrapolate, FedExP, FedExPM
from .lod import LoD
from .mirror import Entropy, FedDuA, Mirror, PNorm, Quadratic
from .normalised import PAdaMFed, ParFreFL
from .output import Averaged, Last, LastTwo
from .proximal import Proximal
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
