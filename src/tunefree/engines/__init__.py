"""Where rounds run."""

from .simulate import Simulation

__all__ = ["Simulation"]
