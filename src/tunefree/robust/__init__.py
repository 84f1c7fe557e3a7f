"""Robust aggregation against hostile clients, before any server rule: `fit(aggregate=...)`."""

from ..core.text import Registry
from ..server.aggregate import Aggregation, weighted_mean
from .rule import MeanContext, Robust, RobustAggregator, SelectionRule
from .rules import (
    NNM,
    Bucketing,
    CentredClip,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormClip,
    TrimmedMean,
    Weighted,
)

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
    "Weighted",
    "names",
    "parse",
]

AGGREGATIONS: Registry[Aggregation] = Registry(
    "aggregation",
    {
        "median": Median,
        "trimmed-mean": TrimmedMean,
        "geometric-median": GeometricMedian,
        "krum": Krum,
        "multi-krum": MultiKrum,
        "norm-clip": NormClip,
        "centred-clip": CentredClip,
    },
    constants={"mean": weighted_mean},
    prefixes={"nnm": NNM, "bucketing": Bucketing, "weighted": Weighted},
)


def names() -> list[str]:
    """Return the rules by name, and the prefixes that can stand in front of them."""
    return AGGREGATIONS.names()


def parse(text: str) -> Aggregation:
    """Return the aggregation that a text stands for.

    >>> parse("krum:f=2"), parse("nnm:f=0.2+trimmed-mean:f=0.2")
    (Krum(f=2), NNM(inner=TrimmedMean(f=0.2), f=0.2))
    >>> parse("bucketing:size=3+median")
    Bucketing(inner=Median(), size=3, seed=0)
    """
    return AGGREGATIONS.parse(text)
