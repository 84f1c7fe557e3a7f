"""Simulated clients that fail: `fit(faults=...)`."""

from .available import Cycle, Trace
from .delays import DelayQueue, LateUpload
from .settings import Fate, Faults, PartialPlan, parse

__all__ = ["Cycle", "DelayQueue", "Fate", "Faults", "LateUpload", "PartialPlan", "Trace", "parse"]
