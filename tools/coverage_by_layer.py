"""Prints how much of each layer of src/tunefree the tests run: the last step of `make coverage`.

A layer is a package or a module directly below src/tunefree. The figure is coverage.py's own:
executed lines and branches among all of them.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

FIELDS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def sum_by_layer(files: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counts of coverage's JSON report, summed over the files of each layer.

    Args:
        files: The report's "files": a path such as "src/tunefree/wire/topk.py" to its measurements.

    Returns:
        Layer to its counts, in alphabetical order.
    """
    layers: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIELDS, 0))
    for path, measured in files.items():
        parts = Path(path).parts
        below = parts[len(parts) - parts[::-1].index("tunefree") :]
        for field in FIELDS:
            layers[below[0]][field] += measured["summary"][field]
    return dict(sorted(layers.items()))


def percent(counts: dict[str, int]) -> float:
    """Return the share of lines and branches that were executed, in percent."""
    total = counts["num_statements"] + counts["num_branches"]
    return 100 * (counts["covered_lines"] + counts["covered_branches"]) / total if total else 100.0


def format_table(layers: dict[str, dict[str, int]]) -> str:
    """Return the table of all layers, and their total in the last row."""
    total = {field: sum(counts[field] for counts in layers.values()) for field in FIELDS}
    rows: list[tuple[str, ...]] = [("layer", "lines", "missed", "branches", "missed", "covered")]
    for name, counts in [*layers.items(), ("total", total)]:
        lines, hit, branches, taken = (counts[field] for field in FIELDS)
        numbers = (str(n) for n in (lines, lines - hit, branches, branches - taken))
        rows.append((name, *numbers, f"{percent(counts):.1f} %"))
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]) for row in rows]
    return "\n".join(table)


def main(words: list[str]) -> None:
    """Print the table of the report whose path is given."""
    (path,) = words
    print(format_table(sum_by_layer(json.loads(Path(path).read_text())["files"])))


if __name__ == "__main__":
    main(sys.argv[1:])
