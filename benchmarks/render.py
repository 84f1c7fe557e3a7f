"""Write the tables of docs/speed.md from the results kept in benchmarks/results.

python -m benchmarks.render           # rewrite what is between the page's markers
python -m benchmarks.render --check   # say whether the page is up to date
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from . import SUITES
from .keep import current_command, describe_machine

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "speed.md"
MARKED = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end of results -->)", re.S)
NONE = "No results are kept yet.\n"


def section(kept: dict[str, Any]) -> str:
    """Return one result: where and when it was measured, the command, the table."""
    rows = SUITES[kept["suite"]].table(kept["rows"])
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    command = current_command(kept["command"])
    return f"{describe_machine(kept)}; {kept['date']}:\n\n    {command}\n\n{table}"


def render(page: str, results: Path) -> str:
    """Return the page with every table made anew; results in the order of their file names."""
    found: dict[str, list[str]] = {name: [] for name in SUITES}
    for path in sorted(results.glob("*.json")):
        kept = json.loads(path.read_text())
        found[kept["suite"]].append(section(kept))

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{chr(10).join(found[match[2]]) or NONE}\n{match[3]}"

    return MARKED.sub(fill, page)


def main(words: list[str]) -> int:
    """Rewrite the page, or compare it; 1 where it is not up to date."""
    before = PAGE.read_text()
    after = render(before, RESULTS)
    if words == ["--check"]:
        if before != after:
            print("docs/speed.md is out of date: run python -m benchmarks.render", file=sys.stderr)
        return int(before != after)
    if words:
        print(__doc__, file=sys.stderr)
        return 2
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
