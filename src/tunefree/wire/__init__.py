"""How uploads are packed, texts for it such as "ef+topk:0.05", and the ledger of bytes."""

from ..core.errors import ArgumentError
from ..core.text import Registry
from .compressor import Dense, Packed, Sender, Wire
from .ledger import Ledger
from .lowrank import LowRank
from .rounding import QSGD, Natural, Sign
from .sparse import RandK, TopK
from .wrappers import Choose, ErrorFeedback

__all__ = [  # noqa: RUF022  # sorted without regard to case
    "Choose",
    "Dense",
    "ErrorFeedback",
    "Ledger",
    "LowRank",
    "Natural",
    "Packed",
    "QSGD",
    "RandK",
    "Sender",
    "Sign",
    "TopK",
    "Wire",
    "parse",
]

WIRES: Registry[Wire] = Registry(
    "wire",
    {
        "dense": Dense,
        "topk": TopK,
        "randk": RandK,
        "qsgd": QSGD,
        "natural": Natural,
        "sign": Sign,
        "lowrank": LowRank,
    },
    prefixes={"ef": ErrorFeedback},
    flags={"global": ("per_layer", False), "contractive": ("unbiased", False)},
)


def parse(text: str | Wire) -> Wire:
    """Return the wire that a text stands for; a wire is returned as it is.

    >>> parse("topk:0.05"), parse("topk:0.05:global")
    (TopK(ratio=0.05, per_layer=True), TopK(ratio=0.05, per_layer=False))
    >>> parse("ef+sign")
    ErrorFeedback(inner=Sign(per_layer=True))
    """
    if isinstance(text, Wire):
        return text
    if not isinstance(text, str):
        raise ArgumentError(f"A wire must be a Wire or text such as 'topk:0.05', got {text!r}.")
    return WIRES.parse(text.lower())
