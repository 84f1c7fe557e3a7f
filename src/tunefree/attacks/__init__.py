"""Hostile simulated clients: `fit(attack=...)`."""

from .adversaries import Adversaries, Behaviour
from .attack import Attack, AttackContext
from .blind import Gaussian, LabelFlip, LargeNorm, Misreport, SignFlip
from .catalogue import names, parse
from .informed import InnerProduct, LittleIsEnough
from .moments import Moments

__all__ = [
    "Adversaries",
    "Attack",
    "AttackContext",
    "Behaviour",
    "Gaussian",
    "InnerProduct",
    "LabelFlip",
    "LargeNorm",
    "LittleIsEnough",
    "Misreport",
    "Moments",
    "SignFlip",
    "names",
    "parse",
]
