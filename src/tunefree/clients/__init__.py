"""Client-side parts: directions, steps, schedules, and the local loop."""

from ..core.plan import Plan, Query, Round
from .adaalter import AdaAlter
from .adam import Adam
from .armijo import Armijo
from .canon import Canon
from .client_momentum import ClientMomentum, ScaffoldM
from .constant import Constant
from .dog import DoG
from .drift import FedDC, FedDyn
from .dual_average import DualAverage
from .fast_fedda import FastFedDA
from .fedlin import FedLin
from .fedmid import FedMiD
from .lod import Follow, Pull
from .mime import Mime, MimeLite
from .momentum import Momentum
from .normalised import Normalised
from .padamfed import PAdaMFed
from .parfrefl import ParFreFL
from .plain import Everyone, Plain
from .polyak import Polyak
from .proximal import Moreau, Proximal
from .rates import Rates
from .rule import (
    ClientPart,
    Direction,
    LineSearch,
    LocalObjective,
    LocalPhases,
    LocalProblem,
    LocalResult,
    Step,
    StepContext,
    StepResult,
    Upload,
)
from .scafcom import Scafcom
from .scaffnew import Scaffnew
from .scaffold import Scaffold
from .schedule import Schedule
from .server_rate import ServerRate
from .solver import ConjugateGradient, Until, solver
from .splitting import FedADMM, FedDR, FedPD
from .sum import Sum
from .za1 import ZA1

__all__ = [  # noqa: RUF022  # sorted without regard to case
    "AdaAlter",
    "Adam",
    "Armijo",
    "Canon",
    "ClientMomentum",
    "ClientPart",
    "ConjugateGradient",
    "Constant",
    "Direction",
    "DoG",
    "DualAverage",
    "Everyone",
    "FastFedDA",
    "FedADMM",
    "FedDC",
    "FedDR",
    "FedDyn",
    "FedLin",
    "FedMiD",
    "FedPD",
    "Follow",
    "LineSearch",
    "LocalObjective",
    "LocalPhases",
    "LocalProblem",
    "LocalResult",
    "Mime",
    "MimeLite",
    "Momentum",
    "Moreau",
    "Normalised",
    "PAdaMFed",
    "ParFreFL",
    "Plain",
    "Plan",
    "Polyak",
    "Proximal",
    "Pull",
    "Query",
    "Rates",
    "Round",
    "Scafcom",
    "Scaffnew",
    "Scaffold",
    "ScaffoldM",
    "Schedule",
    "ServerRate",
    "Step",
    "StepContext",
    "StepResult",
    "Sum",
    "Until",
    "Upload",
    "ZA1",
    "solver",
]
