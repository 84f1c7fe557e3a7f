"""The report: one HTML file that opens offline, with everything inside.

What runs say (names, labels, settings) is data: it stands in a JSON block in which `<` is escaped,
and enters the page as text. A content security policy admits the two scripts of the page by their
hashes and no network.
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

from ..core.errors import ArgumentError
from ..core.files import to_json
from ..training.run import Run
from ..version import __version__
from .shape import method_name, payload

SCRIPTS = ("look.js", "curves.js", "sections.js", "ledger.js", "page.js")


def write(
    groups: Mapping[str, Sequence[Run]],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    tuning: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write the page.

    Args:
        groups: Labels (methods, configurations), each with one run per seed.
        path: The file to write.
        title: Its heading; by default what was compared, and on which data.
        tuning: What finding the settings cost: one dict per label with label, accuracy, and for
            each cost (gradients, bytes_up, seconds) that of one run, and tuning_<cost>.
    """
    target = Path(path)
    text = render(payload(groups, title=title, tuning=tuning))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    except OSError as error:
        raise ArgumentError(
            f"A report must go to a file that can be written, got {str(path)!r}: "
            f"{error.strerror or error}."
        ) from None
    return target


def as_data(facts: Mapping[str, Any]) -> str:
    """Return JSON that is safe inside a script element and in an HTML answer.

    >>> as_data({"label": "</script>"})
    '{"label":"\\\\u003c/script>"}'
    """
    close = json.dumps(json.loads(to_json(facts)), separators=(",", ":"))
    return close.replace("<", "\\u003c")


def policy(live: bool = False) -> str:
    """Return the content security policy: these scripts, this style sheet, no network."""
    scripts = " ".join(_hash(text) for text in (_asset("chart.umd.min.js"), _script()))
    rules = [
        "default-src 'none'",
        f"script-src {scripts}",
        f"style-src {_hash(_asset('page.css'))}",
    ]
    rules += ["img-src data:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def render(facts: Mapping[str, Any], *, live: float = 0) -> str:
    """Return the page of a payload; with `live` it asks for new data every so many seconds."""
    parts = {
        "policy": html.escape(policy(live > 0)),
        "title": html.escape(str(facts["title"])),
        "version": html.escape(__version__),
        "live": f"{live:g}",
        "css": _asset("page.css"),
        "library": _asset("chart.umd.min.js"),
        "script": _script(),
        "data": as_data(facts),
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


def framed(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the page as a frame inside another one, for notebooks."""
    page = html.escape(render(payload(groups)))
    style = "width: 100%; height: 640px; border: 1px solid #8884"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def in_notebook(run: Run) -> str:
    """Return a run's last numbers as an HTML table and its page below, for notebooks."""
    from ..core.text import human

    facts = run.summary
    rows = [("method", method_name(run)), ("rounds", f"{facts['rounds']} ({facts['status']})")]
    measured = ("test_accuracy", "best_test_accuracy", "test_loss")
    rows += [(n.replace("_", " "), f"{facts[n]:.4f}") for n in measured if facts.get(n) is not None]
    rows += [("sent up / down", f"{human(facts['bytes_up'])} / {human(facts['bytes_down'])}")]
    rows += [("seconds", f"{facts['seconds']:.1f}")]
    rows += [("run folder", str(run.path))] if run.path is not None else []
    cell = '<{0} style="text-align:left">{1}</{0}>'
    lines = [cell.format("th", name) + cell.format("td", html.escape(text)) for name, text in rows]
    table = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    return table + framed({method_name(run): [run]})


def write_one(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write the page of a single run."""
    return write({method_name(run): [run]}, path)
