"""Attacks in words, for the command line."""

from ..core.text import part
from .attack import Attack
from .blind import Gaussian, LabelFlip, LargeNorm, Misreport, SignFlip
from .informed import InnerProduct, LittleIsEnough

ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "large-norm": LargeNorm,
    "gaussian": Gaussian,
    "misreport": Misreport,
    "label-flip": LabelFlip,
    "little-is-enough": LittleIsEnough,
    "inner-product": InnerProduct,
}


def names() -> list[str]:
    """Return the attacks that `parse` knows."""
    return list(ATTACKS)


def parse(text: str) -> Attack | None:
    """Return the attack that a command-line word stands for; None for "none".

    >>> parse("sign-flip:0.2"), parse("large-norm:0+3:scale=10")
    (SignFlip(clients=0.2, scale=1.0), LargeNorm(clients=(0, 3), scale=10.0))
    """
    return None if text.strip().lower() == "none" else part("attack", text, ATTACKS)
