"""Compact storage of a history, so that long runs do not keep a dict per round in memory.

A row is a flat dict. Rows with the same names and types share a schema; ints and floats are stored
in two arrays, eight bytes each. Iteration returns dicts equal to those that were appended.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]
Schema = tuple[tuple[str, str], ...]  # the names of a row, and the arrays of their values
INT_LIMIT = 1 << 63


class History:
    """The rows of a run, in the order of rounds.

    >>> log = History([{"round": 0, "loss": 0.5}])
    >>> log.append({"round": 1, "loss": 0.25, "note": None})
    >>> list(log)
    [{'round': 0, 'loss': 0.5}, {'round': 1, 'loss': 0.25, 'note': None}]
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._numbers: dict[Schema, int] = {}
        self._schemas: list[Schema] = []
        self._rows = array("l")  # number of each row's schema
        self._ints, self._floats = array("q"), array("d")
        self._objects: list[Any] = []  # text, None, ints of more than 64 bits
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Row) -> None:
        """Add a row."""
        schema = tuple((name, _find_kind(value)) for name, value in row.items())
        number = self._numbers.get(schema)
        if number is None:
            number = self._numbers[schema] = len(self._schemas)
            self._schemas.append(schema)
        self._rows.append(number)
        columns: dict[str, Any] = {"q": self._ints, "d": self._floats, "o": self._objects}
        for (_, kind), value in zip(schema, row.values(), strict=True):
            columns[kind].append(value)

    def __iter__(self) -> Iterator[Row]:
        values = {"q": iter(self._ints), "d": iter(self._floats), "o": iter(self._objects)}
        for number in self._rows:
            yield {name: next(values[kind]) for name, kind in self._schemas[number]}


def _find_kind(value: Any) -> str:
    if type(value) is float:
        return "d"
    return "q" if type(value) is int and -INT_LIMIT <= value < INT_LIMIT else "o"
