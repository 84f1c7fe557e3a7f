"""How uploads are packed, and the ledger of bytes."""

from .compressor import Wire
from .dense import Dense
from .ledger import Ledger

__all__ = ["Dense", "Ledger", "Wire"]
