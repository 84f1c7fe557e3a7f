"""Rows of numbers, kept small: a run of many rounds must not grow by a dictionary a round.

A row is a flat dict. Rows with the same names and kinds of values share those; whole numbers and
fractions lie in two arrays, eight bytes each. What comes out are plain dicts, equal to those that
went in.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]
Form = tuple[tuple[str, str], ...]  # the names of a row, and where their values are
WHOLE = 1 << 63


class History:
    """Rows in the order of rounds.

    >>> log = History([{"round": 0, "loss": 0.5}])
    >>> log.append({"round": 1, "loss": 0.25, "said": None})
    >>> list(log)
    [{'round': 0, 'loss': 0.5}, {'round': 1, 'loss': 0.25, 'said': None}]
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._known: dict[Form, int] = {}
        self._forms: list[Form] = []
        self._form = array("l")  # of each row
        self._whole, self._real = array("q"), array("d")
        self._other: list[Any] = []  # text, None, numbers too long
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._form)

    def append(self, row: Row) -> None:
        """Add a row."""
        form = tuple((name, _kind(value)) for name, value in row.items())
        number = self._known.get(form)
        if number is None:
            number = self._known[form] = len(self._forms)
            self._forms.append(form)
        self._form.append(number)
        for (_, kind), value in zip(form, row.values(), strict=True):
            (self._whole if kind == "q" else self._real if kind == "d" else self._other).append(
                value
            )

    def __iter__(self) -> Iterator[Row]:
        values = {"q": iter(self._whole), "d": iter(self._real), "o": iter(self._other)}
        for number in self._form:
            yield {name: next(values[kind]) for name, kind in self._forms[number]}


def _kind(value: Any) -> str:
    if type(value) is float:
        return "d"
    return "q" if type(value) is int and -WHOLE <= value < WHOLE else "o"
