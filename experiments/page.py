"""The page of an experiment: the table and the claims above the curves of the runs."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.keep import current_command

from tunefree.core.files import write_atomically
from tunefree.report.page import render
from tunefree.report.payload import build_payload
from tunefree.study.tables import to_html
from tunefree.training.run import Run

from . import text
from .record import Record

PLACE = '<nav id="contents"'


def write(kept: Record, groups: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Write the page: one HTML file that opens offline."""
    title = f"{kept['name']}, {kept['scale']}: {kept['title']}"
    shown = {label: list(runs) for label, runs in groups.items() if runs}
    facts: dict[str, Any] = build_payload(shown, title=title)
    before, mark, after = render(facts).partition(PLACE)
    assert mark
    write_atomically(path, (before + _top(kept) + mark + after).encode())
    return path


def _top(kept: Record) -> str:
    made = html.escape(text.describe_origin(kept))
    parts = [
        f"<section><p><code>{html.escape(current_command(kept['command']))}</code><br>{made}</p>",
        _card(to_html(text.cells(kept), text.columns(kept))),
        *(f"<p>{html.escape(line)}</p>" for line in text.remarks(kept)),
    ]
    if kept["claims"]:
        parts += ["<h2>Claims</h2>", f"<p>{html.escape(text.tally(kept))}</p>"]
        parts += [_card(to_html(text.verdicts(kept), text.CLAIMS), "words")]
    for title, lines in text.list_sections(kept):
        if lines:
            items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
            parts.append(f"<h2>{title}</h2><ul>{items}</ul>")
    return "\n".join([*parts, "</section>\n"])


def _card(table: str, form: str = "numbers") -> str:
    return f'<div class="card wide {form}">{table}</div>'
