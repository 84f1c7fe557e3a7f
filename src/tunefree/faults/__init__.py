"""Clients that fail in a simulation: `fit(faults=...)`."""

from .available import Cycle, Trace
from .post import Letter, Post
from .settings import Faults, Patchy, parse

__all__ = ["Cycle", "Faults", "Letter", "Patchy", "Post", "Trace", "parse"]
