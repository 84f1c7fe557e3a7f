"""Means that withstand hostile clients, in front of any server rule: `fit(aggregate=...)`."""

from .catalogue import names, parse
from .clip import CentredClip, NormClip
from .coordinates import Median, TrimmedMean
from .geometric import GeometricMedian
from .krum import Krum, MultiKrum
from .mixing import NNM, Bucketing
from .rule import Choosing, Gathered, Robust, Sight

__all__ = [  # noqa: RUF022  # by letter, as in every room, whatever is a capital
    "Bucketing",
    "CentredClip",
    "Choosing",
    "Gathered",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NNM",
    "NormClip",
    "Robust",
    "Sight",
    "TrimmedMean",
    "names",
    "parse",
]
