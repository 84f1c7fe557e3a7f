"""The report page: one HTML file that works offline.

Names, labels and settings of runs are untrusted data: they are embedded as JSON in which `<` is
escaped, and inserted into the page as text. A content security policy allows the page's two scripts
by their hashes, and no network access.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.files import check_writable, to_json, write_file
from ..training.run import Run
from ..version import __version__
from .payload import build_payload, method_name, summary_rows

SCRIPTS = ("look.js", "save.js", "curves.js", "sections.js", "ledger.js", "page.js")


def write(
    groups: Mapping[str, Sequence[Run]],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    tuning: Sequence[Mapping[str, Any]] | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of groups of runs.

    Args:
        groups: Labels (methods, configurations), each with one run per seed.
        path: The file to write.
        title: The page's heading; by default the method or the number of groups, and the data.
        tuning: The cost of tuning, one dict per label: label, accuracy, and for each cost
            (gradients, bytes_up, seconds) the cost of one run, and tuning_<cost>.
        comparison: What a comparison found: columns (headings by key), rows (texts by label and
            key) beside the results, and lines below them.
    """
    target = Path(path)
    text = render(build_payload(groups, title=title, tuning=tuning, comparison=comparison))
    with check_writable("A report must go to a file", path):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, text.encode())
    return target


def to_script_json(payload: Mapping[str, Any]) -> str:
    """Return JSON that is safe inside a script element and in an HTML response.

    >>> to_script_json({"label": "</script>"})
    '{"label":"\\\\u003c/script>"}'
    """
    compact = json.dumps(json.loads(to_json(payload)), separators=(",", ":"))
    return compact.replace("<", "\\u003c")


def security_policy(live: bool = False) -> str:
    """Return the content security policy; only a `live` page may connect, to its own server."""
    scripts = " ".join(_hash(text) for text in (_asset("chart.umd.min.js"), _script()))
    rules = ["default-src 'none'", f"script-src {scripts}"]
    rules += [f"style-src {_hash(_asset('page.css'))}", "img-src data:"]
    rules += ["base-uri 'none'", "form-action 'none'"]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def render(payload: Mapping[str, Any], *, live: float = 0) -> str:
    """Return the HTML of a payload; with `live` > 0, it polls for new data every `live` seconds."""
    parts = {
        "policy": html.escape(security_policy(live > 0)),
        "title": html.escape(str(payload["title"])),
        "version": html.escape(__version__),
        "live": f"{live:g}",
        "css": _asset("page.css"),
        "library": _asset("chart.umd.min.js"),
        "script": _script(),
        "data": to_script_json(payload),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


@cache
def _script() -> str:
    return '(() => {\n"use strict";\n' + "".join(_asset(name) for name in SCRIPTS) + "})();\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render_frame(groups: Mapping[str, Sequence[Run]], **facts: Any) -> str:
    """Return the page as an iframe, for notebooks; `facts` are further arguments of `write`."""
    page = html.escape(render(build_payload(groups, **facts)))
    style = "width: 100%; height: 640px; border: 1px solid #8884"
    allowed = "allow-scripts allow-downloads"
    return f'<iframe sandbox="{allowed}" style="{style}" srcdoc="{page}"></iframe>'


def render_notebook(run: Run) -> str:
    """Return a run's summary as an HTML table, followed by its page, for notebooks."""
    cell = '<{0} style="text-align:left">{1}</{0}>'
    rows = [
        cell.format("th", name) + cell.format("td", html.escape(text))
        for name, text in summary_rows(run)
    ]
    table = "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
    return table + render_frame({method_name(run): [run]})


def write_run(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write the page of a single run."""
    return write({method_name(run): [run]}, path)
