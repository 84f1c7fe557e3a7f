"""Hostile clients in a simulation: `fit(attack=...)`."""

from .attack import Attack, AttackContext
from .blind import Gaussian, LabelFlip, LargeNorm, Misreport, SignFlip
from .catalogue import names, parse
from .crowd import Adversaries
from .informed import InnerProduct, LittleIsEnough
from .moments import Moments

__all__ = [
    "Adversaries",
    "Attack",
    "AttackContext",
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
