"""Means that keep clients' secrets: summed under masks, or noised, or both.

`Secure` and `Privacy` make aggregators that stand where `server.aggregate.Mean` does. Masks need
the package cryptography, epsilons dp-accounting: `pip install 'tunefree[privacy]'`.
"""

from .bounds import Bounds
from .collector import Collector
from .epsilon import epsilon, noise_for
from .grid import Channel, Quantizer, grid_for
from .keys import ProtocolError
from .letters import ProtocolTerms, ThresholdError
from .member import Member
from .private import Privacy, PrivateMean
from .secure import Secure, SecureMean, secure_sum

__all__ = [
    "Bounds",
    "Channel",
    "Collector",
    "Member",
    "Privacy",
    "PrivateMean",
    "ProtocolError",
    "ProtocolTerms",
    "Quantizer",
    "Secure",
    "SecureMean",
    "ThresholdError",
    "epsilon",
    "grid_for",
    "noise_for",
    "secure_sum",
]
