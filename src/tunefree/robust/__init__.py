"""Robust aggregation against hostile clients, before any server rule: `fit(aggregate=...)`."""

from .catalogue import names, parse
from .clip import CentredClip, NormClip
from .coordinates import Median, TrimmedMean
from .geometric import GeometricMedian
from .krum import Krum, MultiKrum
from .mixing import NNM, Bucketing
from .rule import MeanContext, Robust, RobustAggregator, SelectionRule

__all__ = [  # noqa: RUF022  # sorted without regard to case
    "Bucketing",
    "CentredClip",
    "GeometricMedian",
    "Krum",
    "MeanContext",
    "Median",
    "MultiKrum",
    "NNM",
    "NormClip",
    "Robust",
    "RobustAggregator",
    "SelectionRule",
    "TrimmedMean",
    "names",
    "parse",
]
