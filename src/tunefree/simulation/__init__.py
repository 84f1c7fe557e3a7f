"""Simulated clients: they train in this process, in chunks of rows."""

from .rehearse import DryRun, Units, units
from .rough import FaultyClients
from .simulate import EngineOptions, Simulation

__all__ = ["DryRun", "EngineOptions", "FaultyClients", "Simulation", "Units", "units"]
