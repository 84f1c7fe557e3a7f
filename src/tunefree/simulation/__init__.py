"""Simulated clients: they train in this process, in chunks of rows."""

from .dry_run import DryRun, Units, units
from .engine import SimulationConfig
from .faulty import FaultyClients
from .simulation import Simulation

__all__ = [
    "DryRun",
    "FaultyClients",
    "Simulation",
    "SimulationConfig",
    "Units",
    "units",
]
