"""Tables of a study as text: Markdown, LaTeX, CSV and HTML."""

import csv
import html
import io
import os
import re
import shutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from ..core.errors import CheckpointError, check_known, convert_errors
from ..report.figures import COLUMN, draw
from ..training.run import Run
from .tasks import read_study, write_study

TableRows = Sequence[Mapping[str, Any]]
MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~$&])")
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": "$-$",
    **{c: f"\\{c}" for c in "{}$&#_%"},
}


def _join_lines(text: object) -> str:
    return " ".join(str(text).split())


def escape_markdown(text: object) -> str:
    r"""Return text that Markdown renders literally.

    >>> print(escape_markdown("a|b_c"))
    a\|b\_c
    """
    return MARKDOWN.sub(r"\\\1", _join_lines(text))


def escape_latex(text: object) -> str:
    r"""Return text that LaTeX prints literally.

    >>> print(escape_latex("top 5 % & more_"))
    top 5 \% \& more\_
    """
    return "".join(LATEX.get(c, c) for c in _join_lines(text))


def to_markdown(rows: TableRows, columns: Mapping[str, str]) -> str:
    """Return rows as a Markdown table."""
    lines = [[escape_markdown(h) for h in columns.values()], ["---"] * len(columns)]
    lines += [[escape_markdown(row.get(key, "")) for key in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def to_latex(
    rows: TableRows, columns: Mapping[str, str], bold: Container[tuple[int, str]] = ()
) -> str:
    """Return rows as a LaTeX tabular of the package booktabs; `bold` has rows' numbers and keys."""

    def line(texts: Iterable[str]) -> str:
        return " & ".join(texts) + " \\\\\n"

    def cell(number: int, key: str) -> str:
        text = escape_latex(rows[number].get(key, ""))
        return rf"\textbf{{{text}}}" if (number, key) in bold and text else text

    head = line(escape_latex(heading) for heading in columns.values())
    body = "".join(line(cell(i, key) for key in columns) for i in range(len(rows)))
    form = "l" + "r" * (len(columns) - 1)
    begin, end = f"\\begin{{tabular}}{{{form}}}\n\\toprule\n", "\\bottomrule\n\\end{tabular}"
    return f"{begin}{head}\\midrule\n{body}{end}"


def to_csv(rows: TableRows) -> str:
    """Return rows as CSV of plain numbers; the columns are the keys of the first row."""
    out = io.StringIO()
    keys = list(rows[0]) if rows else []
    writer = csv.DictWriter(out, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def to_text(rows: TableRows, columns: Mapping[str, str], width: int, most: int = 30) -> str:
    """Return rows as aligned text of at most `width` characters and `most` rows.

    Columns that do not fit are left out, from the right, but the first two are always there.
    """
    texts = {
        key: [heading, *(str(row.get(key, "")) for row in rows[:most])]
        for key, heading in columns.items()
    }
    sizes = {key: max(map(len, column)) for key, column in texts.items()}
    shown = list(columns)
    while len(shown) > 2 and sum(sizes[key] + 2 for key in shown) - 2 > width:
        shown.pop()
    out = [
        "  ".join(texts[key][i].ljust(sizes[key]) for key in shown).rstrip()
        for i in range(min(len(rows), most) + 1)
    ]
    if len(rows) > most:
        out.append(f"… {len(rows) - most} more rows")
    if missing := [columns[key] for key in columns if key not in shown]:
        out.append(textwrap.fill(f"Not shown: {', '.join(missing)}; table() has all.", width))
    return "\n".join(out)


def to_html(rows: TableRows, columns: Mapping[str, str], below: Sequence[str] = ()) -> str:
    """Return rows as an HTML table with paragraphs below it."""

    def cells(kind: str, texts: Sequence[object]) -> str:
        return "".join(f"<{kind}>{html.escape(str(t))}</{kind}>" for t in texts)

    body = "".join(f"<tr>{cells('td', [r.get(k, '') for k in columns])}</tr>" for r in rows)
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in below)
    head = f"<thead><tr>{cells('th', list(columns.values()))}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>{paragraphs}"


def format_mean(mean: float | None, sd: float | None) -> str:
    """Return mean ± standard deviation.

    >>> format_mean(0.5, 0.01)
    '0.5000 ± 0.0100'
    """
    if mean is None:
        return ""
    return f"{mean:.4f}" + ("" if sd is None else f" ± {sd:.4f}")


def format_rounds(row: Mapping[str, Any]) -> str:
    """Return the rounds to the target, or how many of the seeds reached it."""
    if row["rounds_to_target"] is not None:
        return f"{row['rounds_to_target']:.4g}"
    reached, seeds = row["reached"], row["seeds"]
    return f"only {reached} of {seeds} seeds reached it" if reached else "not reached"


def format_p(p: float) -> str:
    """Return a p value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def format_verdict(row: Mapping[str, Any], points: bool = False) -> str:
    """Return a method's difference to the best one, its p, and * where it is beyond chance.

    With `points`, the difference is in percentage points.
    """
    difference = row["difference"]
    if difference is None:
        return "best" if row["verdict"] == "best" else ""
    size = f"{100 * abs(difference):.2f} points" if points else f"{abs(difference):.4f}"
    p = "" if row["p"] is None else f" ({format_p(row['p'])})"
    star = " *" if row["verdict"] == "worse" else ""
    return f"{'−' if difference < 0 else '+'}{size}{p}{star}"


class StudyResult(ABC):
    """A study's result: its file, and its text formats; subclasses define table and sentences."""

    FILE: ClassVar[str]  # in the study's folder
    KIND: ClassVar[str]  # for messages
    KEYS: ClassVar[tuple[str, ...]]  # of the file
    IMPORTANT: ClassVar[tuple[str, ...]] = ()  # keys of columns that are shown where room is short
    path: Path | None
    seeds: list[int]

    @abstractmethod
    def _record(self) -> dict[str, Any]:
        """Return what the study's file says."""

    @classmethod
    @abstractmethod
    def _from_record(cls, folder: Path, record: dict[str, Any]) -> Self:
        """Undo `_record`."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the folder of a study; runs that are missing are `FailedRun`s."""
        folder, damaged = Path(path), f"This {cls.KIND} cannot be read: its folder is damaged"
        with convert_errors(damaged, CheckpointError):
            found = cls._from_record(folder, read_study(folder, cls.FILE, cls.KIND, cls.KEYS))
            found.markdown()  # raises now if something is damaged
        return found

    @property
    @abstractmethod
    def measure(self) -> str:
        """The measure that runs are ranked by."""

    @abstractmethod
    def table(self) -> list[dict[str, Any]]:
        """Return the rows of the table as plain data."""

    @abstractmethod
    def cells(self) -> list[dict[str, str]]:
        """Return the rows of the table as text."""

    @property
    @abstractmethod
    def groups(self) -> dict[str, list[Run]]:
        """The runs by label, without those that failed."""

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The headings of the table of `cells`, by key."""

    @property
    @abstractmethod
    def sentences(self) -> list[str]:
        """What was found, one sentence or paragraph each."""

    @property
    def header(self) -> str:
        """A line above the table; may be empty."""
        return ""

    def _lines(self) -> list[str]:
        return [*([self.header] if self.header else []), *self.sentences]

    def choose_columns(self, columns: Sequence[str] | None = None) -> dict[str, str]:
        """Return the headings of some columns, in the order of these keys; None takes all."""
        for name in columns or ():
            check_known("column", name, self.columns)
        return self.columns if columns is None else {name: self.columns[name] for name in columns}

    def json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "measure": self.measure,
            "seeds": self.seeds,
            "rows": self.table(),
            "sentences": self.sentences,
            "path": None if self.path is None else str(self.path),
        }

    @property
    def bold(self) -> set[tuple[int, str]]:
        """The cells of the best values: numbers of rows, and keys."""
        return set()

    def markdown(self, columns: Sequence[str] | None = None) -> str:
        """Return the table in Markdown, with the header above and the sentences below.

        `columns` has the keys of the columns to show, in this order.
        """
        lines = [escape_markdown(line) for line in self._lines()]
        table = to_markdown(self.cells(), self.choose_columns(columns))
        above = 1 if self.header else 0
        return "\n\n".join([*lines[:above], table, *lines[above:]])

    def csv(self) -> str:
        """Return the table as comma-separated plain numbers."""
        return to_csv(self.table())

    def latex(self, columns: Sequence[str] | None = None) -> str:
        """Return the table as a LaTeX tabular with the best values in bold.

        It needs the package booktabs; header and sentences are comments. `columns` has the keys of
        the columns to show, in this order.
        """
        comments = [f"% {_join_lines(line)}" for line in ("\\usepackage{booktabs}", *self._lines())]
        table = to_latex(self.cells(), self.choose_columns(columns), self.bold)
        return "\n".join([*comments, table])

    def figures(
        self, folder: str | os.PathLike[str], format: str = "pdf", width: float = COLUMN
    ) -> list[Path]:
        """Draw the curves as figures for a paper, and return their paths; needs matplotlib.

        Lines are means over seeds, bands reach from the lowest to the highest seed.

        Args:
            folder: Where they are written; created if it does not exist.
            format: "pdf", "svg" or "png".
            width: Of a figure, in inches; the default is a column of a two-column paper.
        """
        return draw(self.groups, folder, format, width)

    def __str__(self) -> str:
        wide = shutil.get_terminal_size((100, 24)).columns
        first = [key for key in self.IMPORTANT if key in self.columns]
        columns = {key: self.columns[key] for key in [*first, *self.columns]}
        lines = [textwrap.fill(line, wide) for line in self._lines()]
        lines.insert(1 if self.header else 0, to_text(self.cells(), columns, wide))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.groups) or 'no runs'}>"

    def _repr_html_(self) -> str:
        return to_html(self.cells(), self.columns, self._lines())


def save(result: StudyResult, command: Mapping[str, Any] | None) -> None:
    """Write the file of a study with a folder, and the command that started it."""
    if result.path is not None:
        write_study(result.path, result.FILE, {**result._record(), "command": command})
