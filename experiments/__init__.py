"""The papers' experiments, one call each: specifications in words, ours beside the published.

`python -m experiments` is the same from the command line.
"""

from .running import Result, planned, run
from .spec import Experiment, Spec, find, load

__all__ = ["Experiment", "Result", "Spec", "find", "load", "planned", "run"]
