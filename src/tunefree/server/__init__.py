"""Server-side parts: rules, outputs (which model is evaluated and returned), and means."""

from .adaptive import Adaptive, AMSGrad
from .average import Average, Momentum
from .client_momentum import ClientMomentum
from .drift import Drift
from .dual_average import DualAverage
from .extrapolate import Extrapolate
from .fast_fedda import FastFedDA
from .feddua import FedDuAdagrad, FedDuAdam
from .fedexp import FedExP, FedExPM
from .lod import LoD
from .mirror import Entropy, FedDuA, Mirror, PNorm, Quadratic
from .output import Averaged, Last, LastTwo
from .padamfed import PAdaMFed
from .parfrefl import ParFreFL
from .proximal import Proximal
from .race import Race
from .rule import Output, Server
from .scafcom import Scafcom
from .splitting import Splitting
from .za1 import ZA1

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
