"""The history as one table in a file: CSV, Parquet.

One row per round and one column per number, as in `Run.history`; a cell is empty where a round
was not evaluated or a number is not finite. A resumed run rewrites the file from its history, so
that every round is there once.
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..core.errors import ArgumentError, TunefreeError
from ..core.files import write_atomically
from ..training.callbacks import Event
from ..training.history import History
from ..training.run import Run
from ._values import need, numbers

Row = dict[str, Any]


class _Table(ABC):
    """Keeps the rows; a kind of file says how they are read and written."""

    kind: ClassVar[str]

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._rows: History | None = None  # None until the run has begun
        self._columns: list[str] = []

    def begin(self, settings: Row, history: list[Row]) -> None:
        """Start the table with the rounds played before; another file is not overwritten."""
        self._found()
        self._start([numbers(row) for row in history])

    def __call__(self, event: Event) -> None:
        """Add one round."""
        if self._rows is None:  # nobody said begin: go on with what the file has
            self._start([row for row in self._found() if int(row["round"]) < event.round])
        assert self._rows is not None
        row = numbers(event.row)
        self._rows.append(row)
        with self._disk():
            self._added(row, self._widen(row))

    def end(self, run: Run | None) -> None:
        """Leave the file whole."""

    def _start(self, rows: list[Row]) -> None:
        self._rows, self._columns = History(rows), ["round"]
        for row in rows:
            self._widen(row)
        with self._disk():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(rows)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TunefreeError(
                f"tf.sinks.{self.kind} cannot write {str(self.path)!r}: {error.strerror or error}."
            ) from None

    def _widen(self, row: Row) -> bool:
        new = [name for name in row if name not in self._columns]
        self._columns += new
        return bool(new)

    def _found(self) -> list[Row]:
        if not self.path.exists():
            return []
        try:
            columns, rows = self._read()
        except (OSError, ValueError) as error:
            columns, rows = [str(error)], []
        if columns[:1] != ["round"]:
            raise ArgumentError(
                f"tf.sinks.{self.kind}(path=...) must be a new file, or one that it wrote before, "
                f"got {str(self.path)!r}; choose another, or remove it."
            )
        return rows

    @abstractmethod
    def _read(self) -> tuple[list[str], list[Row]]:
        """Return the file's columns and rows."""

    @abstractmethod
    def _write(self, rows: Iterable[Row]) -> None:
        """Replace the file."""

    @abstractmethod
    def _added(self, row: Row, wider: bool) -> None:
        """Write one more row, which may have new columns."""


class Csv(_Table):
    """The history as a CSV file, whole after every round.

    Args:
        path: The file; its folder is made.
    """

    kind = "Csv"

    def _read(self) -> tuple[list[str], list[Row]]:
        with self.path.open(newline="") as file:
            table = csv.DictReader(file)
            rows = [{k: v for k, v in row.items() if v} for row in table]
            return list(table.fieldnames or ["round"]), [row for row in rows if "round" in row]

    def _text(self, rows: Iterable[Row], header: bool) -> str:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        if header:
            table.writeheader()
        table.writerows(rows)
        return text.getvalue()

    def _write(self, rows: Iterable[Row]) -> None:
        write_atomically(self.path, self._text(rows, header=True).encode())

    def _added(self, row: Row, wider: bool) -> None:
        if wider:
            assert self._rows is not None
            self._write(self._rows)
        else:
            with self.path.open("a", newline="") as file:
                file.write(self._text([row], header=False))


class Parquet(_Table):
    """The history as a Parquet file; needs pyarrow.

    The file cannot be appended to, so it is written anew when a tenth of the rounds is missing,
    and at the end.

    Args:
        path: The file; its folder is made.
    """

    kind = "Parquet"

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._arrow = need("Parquet", "pyarrow")
        self._parquet = need("Parquet", "pyarrow", "pyarrow.parquet")
        self._missing = 0

    def _read(self) -> tuple[list[str], list[Row]]:
        table = self._parquet.read_table(self.path)
        rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
        return table.column_names, rows

    def _write(self, found: Iterable[Row]) -> None:
        rows = list(found)
        whole = {c for c in self._columns if all(isinstance(row.get(c, 0), int) for row in rows)}
        table = self._arrow.table(
            {
                c: self._arrow.array(
                    [row.get(c) for row in rows],
                    self._arrow.int64() if c in whole else self._arrow.float64(),
                )
                for c in self._columns
            }
        )
        buffer = self._arrow.BufferOutputStream()
        self._parquet.write_table(table, buffer)
        write_atomically(self.path, buffer.getvalue().to_pybytes())
        self._missing = 0

    def _added(self, row: Row, wider: bool) -> None:
        assert self._rows is not None
        self._missing += 1
        if 10 * self._missing >= len(self._rows):
            self._write(self._rows)

    def end(self, run: Run | None) -> None:
        """Write what is missing."""
        if self._rows is not None and self._missing:
            with self._disk():
                self._write(self._rows)
