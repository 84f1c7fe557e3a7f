"""Studies: several methods on one problem, and searches over their settings."""

from .comparison import Comparison, compare
from .tasks import FailedRun
from .tuning import GridPoint, Tuning, tune

__all__ = ["Comparison", "FailedRun", "GridPoint", "Tuning", "compare", "tune"]
