"""How uploads are packed, and the ledger of bytes."""

from .catalogue import parse
from .choose import Choose
from .compressor import Packed, Sender, Wire
from .dense import Dense
from .feedback import ErrorFeedback
from .ledger import Ledger
from .lowrank import LowRank
from .natural import Natural
from .qsgd import QSGD
from .randk import RandK
from .sign import Sign
from .topk import TopK

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
