"""Simulated clients: they train in this process, in chunks of rows."""

from .dry_run import DryRun, Units, units
from .engine import EngineOptions
from .faulty import FaultyClients
from .simulation import Simulation

__all__ = [
    "DryRun",
    "EngineOptions",
    "FaultyClients",
    "Simulation",
    "Units",
    "units",
]
