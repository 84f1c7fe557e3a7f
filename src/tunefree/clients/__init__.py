"""What a client does: directions, steps, and the one local loop."""

from .adam import Adam
from .armijo import Armijo
from .constant import Constant
from .dog import DoG
from .momentum import Momentum
from .plain import Plain
from .proximal import Proximal
from .rule import Direction, Local, Phi, Plan, Round, Step, Tick, Work
from .scaffold import Scaffold
from .schedule import Schedule
from .sum import Sum

__all__ = [
    "Adam",
    "Armijo",
    "Constant",
    "Direction",
    "DoG",
    "Local",
    "Momentum",
    "Phi",
    "Plain",
    "Plan",
    "Proximal",
    "Round",
    "Scaffold",
    "Schedule",
    "Step",
    "Sum",
    "Tick",
    "Work",
]
