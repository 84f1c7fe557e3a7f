"""Simulated clients that fail: `fit(faults=...)`."""

from .delays import DelayQueue, LateUpload
from .settings import Cycle, Fate, Faults, PartialPlan, Trace, parse

__all__ = ["Cycle", "DelayQueue", "Fate", "Faults", "LateUpload", "PartialPlan", "Trace", "parse"]
