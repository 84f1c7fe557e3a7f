"""Wires in words, for the command line."""

from ..core.errors import ArgumentError, unknown_name
from .compressor import Wire
from .dense import Dense
from .feedback import ErrorFeedback
from .lowrank import LowRank
from .natural import Natural
from .qsgd import QSGD
from .randk import RandK
from .sign import Sign
from .topk import TopK

FORMS = {
    "dense": "dense",
    "topk": "topk:RATIO or topk:RATIO:global",
    "randk": "randk:RATIO or randk:RATIO:contractive",
    "qsgd": "qsgd:LEVELS",
    "natural": "natural",
    "sign": "sign",
    "lowrank": "lowrank:RANK",
}


def parse(text: str | Wire) -> Wire:
    """Return the wire that a command-line word stands for; a wire stands for itself.

    >>> parse("topk:0.05"), parse("topk:0.05:global")
    (TopK(ratio=0.05, per_layer=True), TopK(ratio=0.05, per_layer=False))
    >>> parse("ef+sign")
    ErrorFeedback(inner=Sign(per_layer=True))
    """
    if isinstance(text, Wire):
        return text
    if not isinstance(text, str):
        raise ArgumentError(f"A wire must be a Wire or text such as 'topk:0.05', got {text!r}.")
    head, plus, tail = text.strip().lower().partition("+")
    if plus and head == "ef":
        if tail.strip().startswith("ef+"):
            raise ArgumentError(
                f"Cannot use ErrorFeedback around ErrorFeedback. Say 'ef+' once, got {text[:80]!r}."
            )
        return ErrorFeedback(parse(tail))
    kind, *rest = text.strip().lower().split(":")
    if kind not in FORMS:
        raise unknown_name("wire", kind, [*FORMS, "ef+WIRE"])
    found = None
    try:
        found = _read(kind, rest)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
    if found is None:
        raise ArgumentError(f"The wire {text!r} must be written {FORMS[kind]}.")
    return found


def _read(kind: str, rest: list[str]) -> Wire | None:
    plain: dict[str, type[Wire]] = {"dense": Dense, "natural": Natural, "sign": Sign}
    if kind in plain:
        return None if rest else plain[kind]()
    if kind == "topk" and (len(rest) == 1 or rest[1:] == ["global"]):
        return TopK(float(rest[0]), per_layer=len(rest) == 1)
    if kind == "randk" and (len(rest) == 1 or rest[1:] == ["contractive"]):
        return RandK(float(rest[0]), unbiased=len(rest) == 1)
    if kind == "qsgd" and len(rest) == 1:
        return QSGD(int(rest[0]))
    if kind == "lowrank" and len(rest) == 1:
        return LowRank(int(rest[0]))
    return None
