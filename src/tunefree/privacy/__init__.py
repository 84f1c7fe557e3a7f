"""Secure aggregation (experimental and unaudited) and client-level differential privacy.

`Secure` and `Privacy` create aggregators that replace `server.aggregate.Mean`. Masks need the
package cryptography, epsilons need dp-accounting: `pip install 'tunefree[privacy]'`.
"""

from .epsilon import epsilon, noise_for
from .keys import ProtocolError
from .messages import ProtocolTerms, ThresholdError
from .private import Bounds, Privacy, PrivateMean
from .protocol_client import ProtocolClient
from .protocol_server import DealerError, ProtocolServer
from .quantizer import Channel, Quantizer, make_quantizer
from .secure import Secure, SecureMean, secure_sum

__all__ = [
    "Bounds",
    "Channel",
    "DealerError",
    "Privacy",
    "PrivateMean",
    "ProtocolClient",
    "ProtocolError",
    "ProtocolServer",
    "ProtocolTerms",
    "Quantizer",
    "Secure",
    "SecureMean",
    "ThresholdError",
    "epsilon",
    "make_quantizer",
    "noise_for",
    "secure_sum",
]
