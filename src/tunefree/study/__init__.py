"""Studies: several methods on one problem, and searches over their settings."""

from .comparing import compare, contest
from .comparison import Comparison
from .searching import search, tune
from .tuning import Point, Tuning
from .work import Failure

__all__ = ["Comparison", "Failure", "Point", "Tuning", "compare", "contest", "search", "tune"]
