"""The papers' experiments, one call each: our results beside the published numbers.

`python -m experiments` is the same from the command line.
"""

from .library import Spec, find, load
from .running import Result, plan_runs, run
from .spec import Experiment

__all__ = ["Experiment", "Result", "Spec", "find", "load", "plan_runs", "run"]
