"""Where rounds run."""

from .rehearse import Units, units
from .simulate import Simulation

__all__ = ["Simulation", "Units", "units"]
