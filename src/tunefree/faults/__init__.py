"""Clients that fail in a simulation: `fit(faults=...)`."""

from .available import Cycle, Trace
from .post import DelayQueue, LateUpload
from .settings import Faults, PartialPlan, parse

__all__ = ["Cycle", "DelayQueue", "Faults", "LateUpload", "PartialPlan", "Trace", "parse"]
