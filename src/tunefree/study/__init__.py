"""Studies: several methods on one problem, and searches over their settings."""

from .comparison import Comparison, compare
from .search import tune
from .tasks import FailedRun
from .tuning import GridPoint, Tuning

__all__ = ["Comparison", "FailedRun", "GridPoint", "Tuning", "compare", "tune"]
