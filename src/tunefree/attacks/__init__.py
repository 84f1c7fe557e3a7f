"""Hostile clients in a simulation: `fit(attack=...)`."""

from .attack import Attack, View
from .blind import Gaussian, LabelFlip, LargeNorm, Misreport, SignFlip
from .crowd import Crowd
from .informed import InnerProduct, LittleIsEnough
from .moments import Moments
from .text import names, parse

__all__ = [
    "Attack",
    "Crowd",
    "Gaussian",
    "InnerProduct",
    "LabelFlip",
    "LargeNorm",
    "LittleIsEnough",
    "Misreport",
    "Moments",
    "SignFlip",
    "View",
    "names",
    "parse",
]
