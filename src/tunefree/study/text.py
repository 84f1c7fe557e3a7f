"""A study's table as text: for the terminal, for papers, for spreadsheets, for notebooks."""

import csv
import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
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


def _line(text: object) -> str:
    return " ".join(str(text).split())


def for_markdown(text: object) -> str:
    r"""Return text that markdown shows as it is.

    >>> print(for_markdown("a|b_c"))
    a\|b\_c
    """
    return MARKDOWN.sub(r"\\\1", _line(text))


def for_latex(text: object) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> print(for_latex("top 5 % & more_"))
    top 5 \% \& more\_
    """
    return "".join(LATEX.get(c, c) for c in _line(text))


def markdown(rows: Rows, columns: Mapping[str, str]) -> str:
    """Return rows as a markdown table."""
    lines = [[for_markdown(h) for h in columns.values()], ["---"] * len(columns)]
    lines += [[for_markdown(row.get(key, "")) for key in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def latex(rows: Rows, columns: Mapping[str, str]) -> str:
    """Return rows as a LaTeX tabular that needs no package."""
    ends = " \\\\\n"
    lines = [" & ".join(for_latex(h) for h in columns.values()) + ends + "\\hline\n"]
    lines += [" & ".join(for_latex(r.get(key, "")) for key in columns) + ends for r in rows]
    form = "l" + "r" * (len(columns) - 1)
    return f"\\begin{{tabular}}{{{form}}}\n\\hline\n{''.join(lines)}\\hline\n\\end{{tabular}}"


def comma_separated(rows: Rows) -> str:
    """Return rows as CSV: plain numbers, every key of the first row a column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = list(rows[0]) if rows else []
    writer.writerow(keys)
    for row in rows:
        writer.writerow(["" if row.get(key) is None else row[key] for key in keys])
    return out.getvalue().rstrip("\n")


def as_html(rows: Rows, columns: Mapping[str, str], below: Sequence[str] = ()) -> str:
    """Return rows as an HTML table with lines below it."""

    def cells(kind: str, texts: Sequence[object]) -> str:
        return "".join(f"<{kind}>{html.escape(str(t))}</{kind}>" for t in texts)

    body = "".join(f"<tr>{cells('td', [r.get(k, '') for k in columns])}</tr>" for r in rows)
    said = "".join(f"<p>{html.escape(line)}</p>" for line in below)
    head = f"<thead><tr>{cells('th', list(columns.values()))}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>{said}"


def spread(mean: float | None, sd: float | None, digits: int = 4) -> str:
    """Return mean ± standard deviation.

    >>> spread(0.5, 0.01)
    '0.5000 ± 0.0100'
    """
    if mean is None:
        return ""
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def rounds_cell(row: Mapping[str, Any]) -> str:
    """Return the rounds it took to reach the target, or how many seeds did not."""
    if row["rounds_to_target"] is not None:
        return f"{row['rounds_to_target']:.4g}"
    missed = row["seeds"] - row["reached"]
    return f"not reached ({missed} of {row['seeds']})" if row["reached"] else "not reached"


def p_text(p: float) -> str:
    """Return a p value as papers print it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
