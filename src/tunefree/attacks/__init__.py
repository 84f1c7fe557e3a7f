"""Hostile simulated clients: `fit(attack=...)`."""

from ..core.text import Registry
from .adversaries import Adversaries, Behaviour
from .attack import Attack, AttackContext, Moments
from .rules import Gaussian, InnerProduct, LabelFlip, LargeNorm, LittleIsEnough, Misreport, SignFlip

__all__ = [
    "Adversaries",
    "Attack",
    "AttackContext",
    "Behaviour",
    "Gaussian",
    "InnerProduct",
    "LabelFlip",
    "LargeNorm",
    "LittleIsEnough",
    "Misreport",
    "Moments",
    "SignFlip",
    "names",
    "parse",
]

ATTACKS: Registry[Attack | None] = Registry(
    "attack",
    {
        "sign-flip": SignFlip,
        "large-norm": LargeNorm,
        "gaussian": Gaussian,
        "misreport": Misreport,
        "label-flip": LabelFlip,
        "little-is-enough": LittleIsEnough,
        "inner-product": InnerProduct,
    },
    constants={"none": None},
)


def names() -> list[str]:
    """Return the attacks by name."""
    return list(ATTACKS.entries)


def parse(text: str) -> Attack | None:
    """Return the attack that a text stands for, or None for "none".

    >>> parse("sign-flip:0.2"), parse("large-norm:0+3:scale=10")
    (SignFlip(clients=0.2, scale=1.0), LargeNorm(clients=(0, 3), scale=10.0))
    """
    return ATTACKS.parse(text)
