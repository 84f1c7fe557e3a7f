"""The problem: modules as flat vectors, batched losses and gradients, reference networks."""

from ..core.layout import Layout
from .augment import CropFlip
from .lora import lora
from .nets import build, names
from .norms import groupnorm
from .problem import Problem

__all__ = ["CropFlip", "Layout", "Problem", "build", "groupnorm", "lora", "names"]
