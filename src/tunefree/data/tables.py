"""Tables: data with named columns, from pandas, polars, Hugging Face datasets or a file.

A `Table` holds the columns as NumPy arrays. `Features` encodes its feature columns as the inputs of
a model: numbers and bools as they are, categories and text as one column of 0 and 1 per category.
"""

import csv
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError, convert_errors, first_line, import_optional, unknown_name
from ..core.files import open_regular
from ..core.types import Array

log = logging.getLogger("tunefree")

MOST_CATEGORIES = 1000  # of one column
FEW_CATEGORIES = 20  # of a column that is not taken for names of the rows
TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class Column:
    """A column of a table; text and categories are an array of objects."""

    values: Array
    missing: "Array | None" = None  # which rows lack a value, if some do
    is_categorical: bool = False  # whether numbers are categories
    labels: tuple[str, ...] = ()  # the names of its classes, where the source has them

    @staticmethod
    def read(values: Array, lacks: Array, **facts: Any) -> "Column":
        """Return values of which some are missing, with a plain dtype where they have one."""
        return Column(tidy(values, lacks), lacks if lacks.any() else None, **facts)


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; `row` names a row in messages, from its number."""

    columns: dict[str, Column]
    row: Callable[[int], str] = "row {}".format
    remedy: str = "fill or drop them first"

    def __len__(self) -> int:
        return max((len(column.values) for column in self.columns.values()), default=0)

    def column(self, name: str, argument: str) -> Array:
        """Return the values of a column; missing ones are an error."""
        if name not in self.columns:
            raise unknown_name(f"column of {argument}", name, map(str, self.columns))
        found = self.columns[name]
        if found.missing is not None:
            rows = found.missing.nonzero()[0]
            count = "a missing value" if len(rows) == 1 else f"{len(rows)} missing values"
            where = self.row(int(rows[0]))
            at = f"in {where}" if len(rows) == 1 else f"the first in {where}"
            raise DataError(f"The column {name!r} has {count}, {at}; {self.remedy}.")
        return found.values

    def target_name(self) -> str:
        """Return the name of the column of targets if it is the usual one."""
        for name in ("label", "labels"):
            if name in self.columns:
                return name
        raise DataError(
            "The data is a table, so y=... must name its column of targets, one of "
            f"{', '.join(self.columns)}."
        )

    def has_names(self, y: Any) -> bool:
        """Return whether targets are given by the names of one or several columns."""
        is_list = isinstance(y, list | tuple) and len(y) > 0 and len(y) != len(self)
        return isinstance(y, str) or (is_list and all(isinstance(one, str) for one in y))

    def targets(self, y: Any, argument: str) -> Any:
        """Return the targets: of a column, of several columns side by side, or as given."""
        if not self.has_names(y):
            return y
        if not isinstance(y, str):
            return np.stack([self.column(name, argument) for name in y], axis=1)
        values, labels = self.column(y, argument), self.columns[y].labels
        if not labels or values.dtype.kind not in "iu":
            return values
        if len(unnamed := np.flatnonzero((values < 0) | (values >= len(labels)))):
            raise DataError(
                f"The column {y!r} has {values[unnamed[0]]} in {self.row(int(unnamed[0]))}, which "
                f"is none of its {len(labels)} classes (-1 marks a row without a label); drop such "
                "rows first."
            )
        return np.array(labels, dtype=object)[values]

    @staticmethod
    def concatenate(tables: Sequence["Table"]) -> "Table":
        """Join tables with the same columns."""
        first = tables[0]
        for number, table in enumerate(tables):
            if table.columns.keys() != first.columns.keys():
                odd = sorted(map(str, table.columns.keys() ^ first.columns.keys()))
                raise DataError(
                    f"Federation.of: all tables must have the same columns, but table {number} and "
                    f"the first differ in {', '.join(odd)}."
                )

        def join(name: str) -> Column:
            parts = [table.columns[name] for table in tables]
            arrays = [part.values for part in parts]
            if any(array.dtype.kind in "OU" for array in arrays):
                arrays = [array.astype(object) for array in arrays]
            lacks = [
                np.zeros(len(p.values), bool) if p.missing is None else p.missing for p in parts
            ]
            is_categorical = any(part.is_categorical for part in parts)
            joined = np.concatenate(arrays), np.concatenate(lacks)
            return Column.read(*joined, is_categorical=is_categorical, labels=parts[0].labels)

        return replace(first, columns={name: join(name) for name in first.columns})


def read_table(value: Any) -> Table | None:
    """Return a frame or a Hugging Face dataset as a table; None if the value is neither."""
    if isinstance(value, Table):
        return value
    if type(value).__name__ == "LazyFrame" and hasattr(value, "collect"):
        value = value.collect()
    if hasattr(value, "columns") and (hasattr(value, "iloc") or hasattr(value, "get_column")):
        return _read_frame(value)
    if hasattr(value, "column_names") and hasattr(value, "features"):
        return _read_hugging_face(value)
    return None


def _read_frame(frame: Any) -> Table:
    columns: dict[str, Column] = {}
    is_pandas = hasattr(frame, "iloc")
    fill, drop = ("fillna", "dropna") if is_pandas else ("fill_null", "drop_nulls")
    for name in frame.columns:
        series = frame[name]
        if getattr(series, "ndim", 1) != 1:
            raise DataError(f"The column name {name!r} occurs more than once; rename one of them.")
        kind = str(series.dtype).lower()
        if is_pandas:
            lacks = np.asarray(series.isna())
        else:
            lacks = np.asarray(series.is_null())
            if kind.startswith("float"):
                lacks = lacks | np.asarray(series.is_nan().fill_null(False))
        is_categorical = kind.startswith(("category", "categorical", "enum"))
        columns[str(name)] = Column.read(np.asarray(series), lacks, is_categorical=is_categorical)
    if not columns:
        raise DataError("The frame has no columns.")
    remedy = f"fill or drop them first, as with frame.{fill} or frame.{drop}"
    return Table(columns, remedy=remedy)


def _read_hugging_face(dataset: Any) -> Table:
    columns: dict[str, Column] = {}
    found = dataset[:] if hasattr(dataset, "__len__") else _join_rows(dataset)
    for name in found:
        values = found[name]
        if hasattr(values, "numpy"):  # a tensor
            columns[name] = Column(values.numpy())
            continue
        lacks = np.array([value is None for value in values], dtype=bool)
        labels = getattr((dataset.features or {}).get(name), "names", None) or ()
        columns[name] = Column.read(stack(name, values), lacks, labels=tuple(labels))
    return Table(columns, remedy="fill them, or drop them with filter")


def _join_rows(dataset: Any) -> dict[str, list[Any]]:
    """Return the columns of a dataset that can only be iterated."""
    rows = list(dataset)
    if not rows:
        raise DataError("The dataset has no rows.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def stack(name: str, values: Any) -> Array:
    """Return values (numbers, text, lists, images) as one array with a row for each."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values
    values = list(values)
    try:
        if values and not isinstance(values[0], str | bytes | bool | int | float | None):
            return np.stack([np.asarray(value) for value in values])
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out
    except ValueError as error:
        raise DataError(
            f"The column {name!r} must have values of one shape ({first_line(error)}); pad or crop "
            "them first."
        ) from error


def tidy(values: Array, missing: "Array | None" = None) -> Array:
    """Return an array of objects as bools, integers or floats where all its values are."""
    if values.dtype.kind == "U":
        return values.astype(object)
    if values.dtype.kind != "O" or values.ndim != 1:
        return values
    keep = slice(None) if missing is None else ~missing
    kinds = {type(value) for value in values[keep]}
    dtype: Any = object
    if kinds and all(issubclass(k, bool | np.bool_) for k in kinds):
        dtype = bool
    elif kinds and all(issubclass(k, int | float | np.number) and k is not bool for k in kinds):
        dtype = np.int64 if all(issubclass(k, int | np.integer) for k in kinds) else np.float64
    if dtype is object:
        return values
    out: Array = np.zeros(len(values), dtype=dtype)
    with convert_errors("A column has integers that are too large"):
        out[keep] = values[keep].astype(dtype)
    return out


@dataclass(frozen=True)
class Feature:
    """A feature column: its name, and its categories if it has some."""

    name: str
    categories: tuple[Any, ...] | None = None
    is_array: bool = False  # whether its values are arrays, which the model takes as they are

    @property
    def names(self) -> list[str]:
        """The names of its columns after encoding."""
        if self.categories is None:
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    def encode(self, values: Array) -> Array:
        """Return numbers as they are, and categories as one column of 0 and 1 for each."""
        if self.categories is None:
            return _as_number_array(self.name, values).astype(np.float64)
        place = {category: i for i, category in enumerate(self.categories)}
        at = np.array([place.get(value, -1) for value in values.tolist()])
        if (at < 0).any():
            said = "The column %r has %r, which training had not; it counts as no category."
            log.warning(said, self.name, values[at < 0][0])
        return np.eye(len(self.categories) + 1)[at, :-1]  # all 0 for -1, the last row


@dataclass(frozen=True)
class Features:
    """The feature columns of a table, and how they are encoded.

    >>> sex = np.array(["f", "m"], dtype=object)
    >>> table = Table({"age": Column(np.array([40, 50])), "sex": Column(sex)})
    >>> features = Features.find(table)
    >>> features.names
    ('age', 'sex=f', 'sex=m')
    >>> features.encode(table).tolist()
    [[40.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
    """

    each: tuple[Feature, ...]

    @staticmethod
    def find(table: Table, without: Sequence[str] = ()) -> "Features":
        """Return the feature columns of a table: all but those named in `without`."""
        names = [name for name in table.columns if name not in without]
        if not names:
            raise DataError(f"The table has no feature columns beside {', '.join(without)}.")
        return Features(tuple(_find_feature(table, name) for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each encoded column."""
        return tuple(name for one in self.each for name in one.names)

    def encode(self, table: Table) -> Any:
        """Return the inputs of a model: a matrix of floats, or arrays by name."""
        lacking = [repr(one.name) for one in self.each if one.name not in table.columns]
        if lacking:
            found = ", ".join(map(repr, table.columns))
            raise DataError(
                f"The table must have the feature columns of training, but lacks "
                f"{', '.join(lacking)}; it has {found}."
            )
        columns = {one.name: table.column(one.name, "the table") for one in self.each}
        if any(one.is_array for one in self.each):
            arrays = {name: _as_number_array(name, values) for name, values in columns.items()}
            return arrays if len(arrays) > 1 else next(iter(arrays.values()))
        return np.column_stack([one.encode(columns[one.name]) for one in self.each])

    def to_json(self) -> list[dict[str, Any]]:
        """Return the features as plain data."""
        out = []
        for one in self.each:
            more = {} if one.categories is None else {"categories": list(one.categories)}
            out.append({"name": one.name, **more, **({"array": True} if one.is_array else {})})
        return out

    @staticmethod
    def from_json(found: Any) -> "Features":
        """Return what `to_json` wrote."""
        with convert_errors("The columns in the settings are damaged"):
            each = []
            for one in found:
                given = one.get("categories")
                kinds = None if given is None else tuple(given)
                hash(kinds)  # refuses categories that are lists
                each.append(Feature(str(one["name"]), kinds, bool(one.get("array", False))))
            return Features(tuple(each))


def _find_feature(table: Table, name: str) -> Feature:
    values, is_categorical = table.column(name, "the table"), table.columns[name].is_categorical
    if values.ndim > 1:
        return Feature(name, is_array=True)
    if values.dtype.kind in "fiub" and not is_categorical:
        return Feature(name)
    if values.dtype.kind in "mM":
        raise DataError(
            f"The column {name!r} holds dates or times ({values.dtype}); turn it into numbers, "
            "such as days, or leave it out."
        )
    kinds = sorted({type(value).__name__ for value in values.tolist()})
    plain = ("str", "int", "float", "bool") if is_categorical else ("str",)
    if len(kinds) > 1 or kinds[0] not in plain:
        raise DataError(
            f"The column {name!r} must hold numbers, bools, text or categories, got "
            f"{' and '.join(kinds)}; convert it, or leave it out."
        )
    categories = tuple(sorted(set(values.tolist())))
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"The column {name!r} has {len(categories)} different values, more than a column of "
            f"categories may have ({MOST_CATEGORIES}); leave it out, or turn it into numbers "
            "(a tokenizer does so with texts)."
        )
    if len(categories) > max(FEW_CATEGORIES, len(values) / 2):
        log.warning(
            "The column %r has %d different texts in %d rows and becomes as many columns; leave it "
            "out if it names the rows.",
            name,
            len(categories),
            len(values),
        )
    return Feature(name, categories)


def _as_number_array(name: str, values: Array) -> Array:
    if values.dtype.kind not in "fiub":
        found = next((v for v in values.flat if isinstance(v, str)), values.flat[0])
        raise DataError(f"The column {name!r} must hold numbers, got {found!r}.")
    return values


def read_file(path: str | Path, names: Mapping[str, str | None]) -> Table:
    """Return the table of a file: Parquet if its name ends in .parquet, else CSV with a header.

    `names` are columns that must exist, by the option that names them.
    """
    path = Path(path)
    table = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    for option, name in names.items():
        if name is not None and name not in table.columns:
            raise unknown_name(f"column of {path.name} ({option})", name, table.columns)
    return table


def _read_parquet(path: Path) -> Table:
    polars = import_optional("polars", "A Parquet file", "polars", extra="tables")
    with (
        open_regular(path, follow=True),
        convert_errors(f"{path.name} is not a Parquet file that can be read"),
    ):
        table = _read_frame(polars.read_parquet(path))
    return replace(table, remedy="fill or drop such rows first")


def _read_csv(path: Path) -> Table:
    damaged = convert_errors(f"{path.name} is not CSV in UTF-8 that can be read")
    raw = open_regular(path, follow=True)
    with TextIOWrapper(raw, newline="", encoding="utf-8-sig") as file, damaged:
        separator = max(",;\t", key=file.readline().count)  # the first of the most frequent ones
        file.seek(0)
        rows, lines = [], []
        reader = csv.reader(file, delimiter=separator, strict=True)
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    if len(rows) < 2:
        raise DataError(f"{path.name} must have a header and at least one row, got {len(rows)}.")
    header = [name.strip() for name in rows[0]]
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise DataError(f"{path.name} has the column {twice[0]!r} twice; rename one of them.")
    for row, number in zip(rows, lines, strict=True):
        if len(row) != len(header):
            counts = f"{len(row)} values, but the header has {len(header)} names"
            raise DataError(f"{path.name}, line {number}, has {counts}.")
    columns: dict[str, Column] = {}
    for name, *texts in zip(header, *rows[1:], strict=True):
        values = [text.strip() for text in texts]
        lacks = np.array([text.lower() in ("", "na", "nan", "null", "none") for text in values])
        columns[name] = Column(_parse_column(values, lacks), lacks if lacks.any() else None)
    return Table(
        columns,
        row=lambda i: f"line {lines[i + 1]} of {path.name}",
        remedy="fill or drop such rows first, or leave the column out with --drop",
    )


def _parse_column(texts: list[str], missing: Array) -> Array:
    present = [text for text, lacks in zip(texts, missing, strict=True) if not lacks]
    for read, dtype in ((_read_bool, bool), (int, np.int64), (float, np.float64)):
        try:
            parsed = np.array([read(text) for text in present], dtype=dtype)
        except (ValueError, OverflowError):
            continue
        out: Array = np.zeros(len(texts), dtype=dtype)
        out[~missing] = parsed
        return out
    return np.array(texts, dtype=object)


def _read_bool(text: str) -> bool:
    if text.lower() not in TRUTHS:
        raise ValueError
    return TRUTHS[text.lower()]
