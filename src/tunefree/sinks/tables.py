"""The history as a table in a file: CSV or Parquet.

There is one row per round and one column per number, as in `Run.history`; a cell is empty if a
round was not evaluated or a number is not finite. A resumed run rewrites the file from its history,
so that it holds every round once.
"""

import csv
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from ..core.errors import ArgumentError
from ..core.files import check_writable, open_regular, read_file, write_atomically
from ..training.callbacks import Event
from ..training.history import History, Row
from ..training.run import Run
from .trackers import finite_numbers, import_modules


class _TableSink(ABC):
    """A callback that writes rows to a file; subclasses implement the file format."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._rows, self._columns = History([]), list[str]()
        self._name, self._is_started = f"tf.sinks.{type(self).__name__}", False

    def begin(self, settings: Row, history: list[Row]) -> None:
        """Start the table with the earlier rounds; any other file at `path` is refused."""
        self._read_existing()
        self._start([finite_numbers(row) for row in history])

    def __call__(self, event: Event) -> None:
        """Add one round."""
        if not self._is_started:  # `begin` was not called: continue the file
            self._start([row for row in self._read_existing() if int(row["round"]) < event.round])
        row = finite_numbers(event.row)
        self._rows.append(row)
        with self._writing():
            self._write_row(row, self._add_columns(row))

    def end(self, run: Run | None) -> None:
        """Do nothing: the file is complete."""

    def _start(self, rows: list[Row]) -> None:
        self._rows, self._columns, self._is_started = History(rows), ["round"], True
        for row in rows:
            self._add_columns(row)
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(rows)

    def _writing(self) -> AbstractContextManager[None]:
        return check_writable(f"{self._name}(path=...) must be a file", self.path)

    def _add_columns(self, row: Row) -> bool:
        new = [name for name in row if name not in self._columns]
        self._columns += new
        return bool(new)

    def _read_existing(self) -> list[Row]:
        if not os.path.lexists(self.path):
            return []
        try:
            columns, rows = self._read()
        except (OSError, ValueError) as error:
            columns, rows = [str(error)], []
        if columns[:1] != ["round"]:
            raise ArgumentError(
                f"{self._name}(path=...) must be a new file, or one that it wrote before, got "
                f"{str(self.path)!r}; choose another, or remove it."
            )
        return rows

    @abstractmethod
    def _read(self) -> tuple[list[str], list[Row]]:
        """Return the file's columns and rows."""

    @abstractmethod
    def _write(self, rows: Iterable[Row]) -> None:
        """Replace the file."""

    @abstractmethod
    def _write_row(self, row: Row, has_new_columns: bool) -> None:
        """Write one more row."""


class Csv(_TableSink):
    """Writes the history as a CSV file, complete after every round.

    Args:
        path: The file; its folder is created.
    """

    def _read(self) -> tuple[list[str], list[Row]]:
        table = csv.DictReader(io.StringIO(read_file(self.path).decode(), newline=""))
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

    def _write_row(self, row: Row, has_new_columns: bool) -> None:
        if has_new_columns:
            self._write(self._rows)
        else:
            with open_regular(self.path, "ab") as file:
                file.write(self._text([row], header=False).encode())


class Parquet(_TableSink):
    """Writes the history as a Parquet file; needs pyarrow.

    Parquet files cannot be appended to: the file is rewritten when a tenth of the rounds is
    missing, and at the end.

    Args:
        path: The file; its folder is created.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._arrow, self._parquet = import_modules("Parquet", "pyarrow", "pyarrow.parquet")
        self._unwritten = 0

    def _read(self) -> tuple[list[str], list[Row]]:
        table = self._parquet.read_table(self._arrow.BufferReader(read_file(self.path)))
        rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
        return table.column_names, rows

    def _write(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        table = self._arrow.table({n: [row.get(n) for row in rows] for n in self._columns})
        buffer = self._arrow.BufferOutputStream()
        self._parquet.write_table(table, buffer)
        write_atomically(self.path, buffer.getvalue().to_pybytes())
        self._unwritten = 0

    def _write_row(self, row: Row, has_new_columns: bool) -> None:
        self._unwritten += 1
        if 10 * self._unwritten >= len(self._rows):
            self._write(self._rows)

    def end(self, run: Run | None) -> None:
        if self._unwritten:
            with self._writing():
                self._write(self._rows)
