"""Robust rules in words, for the command line."""

from ..core.errors import ArgumentError, unknown_name
from ..core.text import part, settings
from ..server.aggregate import Aggregation, weighted_mean
from .clip import CentredClip, NormClip
from .coordinates import Median, TrimmedMean
from .geometric import GeometricMedian
from .krum import Krum, MultiKrum
from .mixing import NNM, Bucketing
from .rule import Robust

RULES: dict[str, type[Robust]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "norm-clip": NormClip,
    "centred-clip": CentredClip,
}
MOST = 9
BEFORE: dict[str, type[NNM] | type[Bucketing]] = {"nnm": NNM, "bucketing": Bucketing}


def names() -> list[str]:
    """Return the rules that `parse` knows, and what goes in front of them."""
    return ["mean", *RULES, *(f"{name}+RULE" for name in BEFORE)]


def parse(text: str) -> Aggregation:
    """Return the aggregation that a command-line word stands for.

    >>> parse("krum:f=2"), parse("nnm:f=0.2+trimmed-mean:f=0.2")
    (Krum(f=2), NNM(inner=TrimmedMean(f=0.2), f=0.2))
    >>> parse("bucketing:size=3+median")
    Bucketing(inner=Median(), size=3, seed=0)
    """
    text = text.strip()
    if text.count("+") > MOST:
        raise ArgumentError(f"An aggregation must have at most {MOST} parts in front of its rule.")
    return weighted_mean if text.lower() == "mean" else _rule(text)


def _rule(text: str) -> Robust:
    head, plus, rest = text.partition("+")
    name, *words = head.split(":")
    if name.lower() in BEFORE:
        if not plus:
            raise ArgumentError(
                f"The aggregation {text!r} goes in front of a rule; write {text}+median, say."
            )
        kind, inner = BEFORE[name.lower()], _rule(rest)
        given = settings(name, words, kind)
        if "inner" in given:
            raise ArgumentError(f"{head!r} takes KEY=VALUE, such as {_example(name)}.")
        if kind is NNM and "f" not in given:
            raise ArgumentError(f"The aggregation {head!r} lacks f; write nnm:f=…+{rest}.")
        return kind(inner=inner, **given)
    if plus or name.lower() not in RULES:
        raise unknown_name("aggregation", name if not plus else text, names())
    return part("aggregation", text, RULES)


def _example(name: str) -> str:
    return "nnm:f=2" if name.lower() == "nnm" else "bucketing:size=2"
