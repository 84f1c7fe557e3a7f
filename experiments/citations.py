"""Where the settings of an experiment come from: its paper, the authors' code, or our assumption.

The table `[sources]` of a specification names a setting, perhaps of one task or method
(`lr`, `FEMNIST.lr`, `FedAdam.lr`), and cites where its value at scale paper comes from.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tunefree.core.errors import ArgumentError

from .keys import STUDY, WORDS
from .spec import Experiment, Source

KINDS = ("paper", "code", "assumed")
NOT_DECIDING = ("minutes", "says", "set", "eval_every", "checkpoint_every", "compile", "moves")
PART_OF = {"model_args": "model", "data_args": "data"}


def read_sources(table: Any) -> tuple[Source, ...]:
    """Return the sources of a specification in the order of `KINDS`.

    >>> read_sources({"rounds": "paper: section 5"})
    (Source(setting='rounds', kind='paper', where='section 5'),)
    """
    if not isinstance(table, Mapping):
        raise ArgumentError(f"[sources] must be a table, got {table!r}.")
    out = []
    for setting, text in _flatten(table):
        kind, colon, where = text.partition(":") if isinstance(text, str) else ("", "", "")
        if kind not in KINDS or not colon or not where.strip():
            raise ArgumentError(
                f"[sources] {setting} must begin with 'paper:', 'code:' or 'assumed:' and say "
                f"where or why, got {text!r}."
            )
        out.append(Source(setting, kind, where.strip()))
    return tuple(sorted(out, key=lambda source: KINDS.index(source.kind)))


def _flatten(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def check_sources(raw: Mapping[str, Any], found: Experiment) -> None:
    """Refuse settings of an experiment that `[sources]` does not cover."""
    cited = {source.setting for source in found.sources}
    shared = {**raw.get("common", {}), **raw["scale"][found.scale]}
    for setting in _deciding(STUDY, shared):
        if setting not in cited:
            raise ArgumentError(f"[sources] lacks {setting!r}, which the scale sets.")
    for row in found.rows:
        words = found.of(row.task).words
        searched = [key for point in row.points for key in point]
        given = [*_deciding(WORDS, words), *words["set"]]
        own = [*_deciding(WORDS, row.words), *row.set, *searched]
        for setting in dict.fromkeys([*given, *own]):
            names = (setting, PART_OF.get(setting, setting))
            if not any(_is_cited(cited, name, row.task, row.base) for name in names):
                raise ArgumentError(
                    f"[sources] lacks {setting!r}, which {row.label!r} has in {row.task!r}."
                )


def _deciding(known: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    return [key for key in table if key in known and key not in NOT_DECIDING]


def _is_cited(cited: set[str], setting: str, task: str, method: str) -> bool:
    return bool(cited & {setting, f"{task}.{setting}", f"{method}.{setting}"})


def count_sources(found: Experiment) -> dict[str, int]:
    """Return how many settings come from each kind of source."""
    return {kind: sum(s.kind == kind for s in found.sources) for kind in KINDS}
