"""Statistics of a run's history: the best, the last, a sum, the cost to reach a target.

`drop` is how much worse the last value is than the best, `last5` the mean of the last five, and
`at-100` the value after 100 rounds, which must have been evaluated. `highest` is the last value, of
which the table shows the best run instead of the mean over seeds.

A number is written as in "last", "train_loss last", "trials mean", "bytes_up sum", "rounds to 0.8"
or "train_loss bytes_up to 0.5": the measure, unless it is the experiment's own, then what of it.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefree.core.errors import ArgumentError
from tunefree.study import measures

HOW: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "highest": lambda values: values[-1],
    "last5": lambda values: statistics.fmean(values[-5:]),
    "first": lambda values: values[0],
    "sum": sum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "max": max,
    "min": min,
}
AT = re.compile(r"at-(\d+)")
TARGET = re.compile(r"(?:(\S+) )?(\S+) to (\S+)")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Statistic:
    """A statistic of a run's history.

    Args:
        text: As it was written; the heading of its column.
        measure: A column of the history.
        how: best, last, highest, last5, at-N, drop, first, sum, mean, median, max or min of it; or
            the column that is added up until the measure reaches the target ("rounds" counts).
        higher: Whether more of the measure is better.
        target: What is to be reached, or None.
    """

    text: str
    measure: str
    how: str
    higher: bool
    target: float | None = None

    @property
    def rises(self) -> bool:
        """Whether a higher value is better; False for a drop and for the cost to a target."""
        return self.higher and self.target is None and self.how != "drop"

    def of(self, history: Sequence[Row]) -> float | None:
        """Return the statistic; None if the history lacks the measure or missed the target."""
        if self.target is not None:
            return self._until(history)
        if at := AT.fullmatch(self.how):
            history = [row for row in history if row["round"] == int(at[1]) - 1]
        values = [
            v for row in history if (v := measures.to_float(row.get(self.measure))) is not None
        ]
        if not values:
            return None
        best = (max if self.higher else min)(values)
        if self.how in ("best", "drop"):
            return best if self.how == "best" else abs(best - values[-1])
        return float(HOW.get(self.how, HOW["last"])(values))

    def _until(self, history: Sequence[Row]) -> float | None:
        assert self.target is not None
        spent = 0.0
        for row in history:
            spent += 1 if self.how == "rounds" else measures.to_float(row.get(self.how)) or 0.0
            value = measures.to_float(row.get(self.measure))
            if value is not None and (
                value >= self.target if self.higher else value <= self.target
            ):
                return spent
        return None


def add_values_up(history: Sequence[dict[str, Any]]) -> None:
    """Add `values_up` to every round: bytes up as papers count them, the values of the round.

    Indices of a compressor are left out, and so is what everyone sends once before round 0: round 0
    has the number of round 1.

    >>> rows = [{"bytes_up": 50}, {"bytes_up": 6, "counted_up": 4.0}, {"bytes_up": 6}]
    >>> add_values_up(rows)
    >>> [row["values_up"] for row in rows]
    [4.0, 4.0, 6]
    """
    for i, row in enumerate(history):
        one = history[1] if i == 0 and len(history) > 1 else row
        row["values_up"] = one.get("counted_up", one.get("bytes_up", 0))


def parse(text: str, measure: str, higher: bool | None = None) -> Statistic:
    """Parse a statistic; `measure` and `higher` are the defaults of the experiment.

    >>> parse("rounds to 0.8", "test_accuracy")
    Statistic(text='rounds to 0.8', measure='test_accuracy', how='rounds', higher=True, target=0.8)
    >>> parse("train_loss last", "test_accuracy").measure
    'train_loss'
    """
    found = TARGET.fullmatch(text.strip())
    other, how, target = (found[1], found[2], found[3]) if found else (None, "", None)
    if found is None:
        *others, how = text.split() or [""]
        other = others[0] if len(others) == 1 else None
        known = how in ("best", "drop") or how in HOW or AT.fullmatch(how)
        if len(others) > 1 or not known:
            raise ArgumentError(_refusal(text))
    try:
        goal = None if target is None else float(target)
    except ValueError:
        raise ArgumentError(_refusal(text)) from None
    name = other or measure
    own = higher if higher is not None and name == measure else measures.is_higher_better(name)
    return Statistic(text, name, how, own, goal)


def _refusal(text: str) -> str:
    return (
        "A number must be written best, last, highest, last5, at-N, drop, first, sum, mean, "
        'median, max or min, perhaps with a measure in front ("train_loss last"), or "rounds to '
        f'0.8", got {text!r}.'
    )
