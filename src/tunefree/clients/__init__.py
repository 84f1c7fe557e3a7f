"""Client-side parts: directions, steps, schedules, and the local loop."""

from ..core.plan import Plan, Query, Round
from .composite import ZA1, Canon, DualAverage, FastFedDA, FedMiD
from .dog import AdaAlter, DoG
from .loss_steps import Armijo, Polyak
from .mime import FedLin, Mime, MimeLite
from .normalised import Normalised, PAdaMFed, ParFreFL, Rates
from .proximal import Everyone, Follow, Moreau, Plain, Proximal, Pull
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
    StepMap,
    StepResult,
    Upload,
)
from .scaffold import ClientMomentum, Scafcom, Scaffnew, Scaffold, ScaffoldM
from .schedule import Schedule
from .solver import ConjugateGradient, Until, solver
from .steps import Adam, Constant, Momentum, ServerRate
from .subproblems import FedADMM, FedDC, FedDR, FedDyn, FedPD
from .sum import Sum

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
    "StepMap",
    "StepResult",
    "Sum",
    "Until",
    "Upload",
    "ZA1",
    "solver",
]
