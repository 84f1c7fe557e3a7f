"""The commands `tunefree methods` and `tunefree datasets`."""

import json
from pathlib import Path
from typing import Any

from .. import methods as catalogue
from ..core.errors import ArgumentError, TunefreeError, convert_errors
from ..data import describe
from ..report.terminal import make_table
from ..simulation.dry_run import count_units
from .app import AsJson, app, err, out, print_facts


@app.command
def methods(name: str | None = None, *, as_json: AsJson = False) -> int:
    """List the methods: paper, traffic, memory, and the settings that must be chosen.

    Args:
        name: Show one method with all its settings.
    """
    rows = []
    for each in [name] if name else catalogue.names():
        try:
            rows.append(_describe_method(each))
        except TunefreeError as error:  # another package's method: the others are still listed
            if name:
                raise
            err.print(str(error), markup=False)
    if as_json:
        print(json.dumps(rows))
        return 0
    if name:
        print_facts(rows[0] | rows[0].pop("settings"))
        return 0
    for row in rows:
        row["choose"] = " ".join(row["choose"]) or "nothing"
        row["cohort"] = "all" if row["everyone"] else "any"
    headings = {
        "name": "method",
        "paper": "paper",
        "choose": "to choose",
        "up": "up",
        "down": "down",
        "client": "client",
        "server": "server",
        "cohort": "cohort",
    }
    out.print(make_table(rows, headings))
    out.print(
        "\nUp, down: numbers sent per client and round; client, server: numbers kept between "
        "rounds (beyond the model); d is the number of parameters. cohort: all where a method is "
        "defined for full participation only. "
        "`tunefree methods NAME` shows a method's own settings; every method also takes "
        f"--set {' '.join(k + '=' for k in catalogue.COMMON)}",
        markup=False,
    )
    return 0


def _describe_method(name: str) -> dict[str, Any]:
    """Return the facts about a method: paper, traffic, memory, settings."""
    own = catalogue.settings(name)
    with_penalty = {"penalty": "l1:1e-4"} if "penalty" in own else {}
    method = catalogue.get(name, **with_penalty)
    entry = catalogue.CATALOGUE[name]
    with convert_errors(f"The method {name!r} cannot be tried without data", ArgumentError):
        counted = count_units(method)
    return {
        "name": name,
        "summary": entry.summary,
        "paper": entry.paper,
        "choose": list(entry.choose),
        **{k: str(v) for k, v in counted.items()},
        "everyone": method.full,
        "settings": {k: p.default for k, p in own.items()},
    }


@app.command
def datasets(*, data_dir: Path | None = None, as_json: AsJson = False) -> int:
    """List the datasets and where their files are; their terms with --json.

    Args:
        data_dir: Folder with dataset files, searched before $TUNEFREE_DATA and the cache.
    """
    rows = describe(data_dir)
    if as_json:
        print(json.dumps(rows))
        return 0
    headings = {
        "name": "dataset",
        "rows": "rows (train + test)",
        "classes": "classes",
        "owners": "owners",
        "size": "size",
        "found": "found",
    }
    out.print(make_table(rows, headings))
    return 0
