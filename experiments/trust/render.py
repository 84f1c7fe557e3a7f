"""Write the tables of docs/trust.md from the results kept in experiments/trust/results.

python -m experiments.trust.render           # rewrite them
python -m experiments.trust.render --check   # say whether they are up to date
"""

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.keep import current_command

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "attacks.json"
PAGE = HERE.parents[1] / "docs" / "trust.md"
BEGIN, END = "<!-- attacks: generated -->\n", "<!-- end of attacks -->\n"


def complete(found: dict[str, Any]) -> list[int]:
    """Return the seeds whose runs are complete."""
    seeds = [row["seed"] for row in found["rows"]]
    return sorted(seed for seed in set(seeds) if seeds.count(seed) == found["each"])


def format_cell(rows: list[dict[str, Any]]) -> str:
    """Return mean and standard deviation over seeds, in percent; or that runs diverged."""
    lost = sum(r["status"] == "diverged" for r in rows)
    if lost:
        return "diverged" if lost == len(rows) else f"diverged ({lost} of {len(rows)})"
    found = [100 * r["accuracy"] for r in rows]
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}"


def mean_accuracy(rows: list[dict[str, Any]]) -> float:
    """Return the mean accuracy, NaN if a run diverged."""
    found = [math.nan if r["status"] == "diverged" else r["accuracy"] for r in rows]
    return statistics.mean(found)


def table(rows: list[dict[str, Any]], method: str) -> str:
    """Return the table of one method: rules down, attacks across, the best of a column bold."""
    mine = [r for r in rows if r["method"] == method]
    rules, attacks = (list(dict.fromkeys(r[n] for r in mine)) for n in ("aggregate", "attack"))
    groups = {
        (rule, attack): [r for r in mine if r["aggregate"] == rule and r["attack"] == attack]
        for rule in rules
        for attack in attacks
    }
    best = {
        attack: max(
            (s for rule in rules if (s := mean_accuracy(groups[rule, attack])) == s), default=0
        )
        for attack in attacks
    }
    lines = ["| | " + " | ".join(f"`{a}`" for a in attacks) + " |"]
    lines.append("|---|" + "---|" * len(attacks))
    for rule in rules:
        cells = []
        for attack in attacks:
            text = format_cell(groups[rule, attack])
            cells.append(
                f"**{text}**" if mean_accuracy(groups[rule, attack]) == best[attack] else text
            )
        lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def render_tables(found: dict[str, Any]) -> str:
    """Return the text between the markers."""
    seeds = complete(found)
    if not seeds:
        return "No results are kept yet.\n"
    rows = [r for r in found["rows"] if r["seed"] in seeds]
    s, machine, versions = found["settings"], found["machine"], found["versions"]
    hardware = machine["gpu"] or f"{machine['cpu']}, one thread"
    minutes = sum(r["seconds"] for r in rows) / 60
    parts = [
        f"Test accuracy in percent after {s['rounds']} rounds of {s['steps']} local steps, batch "
        f"{s['batch']}, model `{s['model']}`, {s['data']} dealt `{s['split']}` to {s['clients']} "
        f"clients who all take part, a fifth of them hostile. Mean ± standard deviation over "
        f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''} (data split, start, batches, who is "
        "hostile); the best of a column is bold.",
    ]
    for method, given in s["methods"].items():
        own = "".join(f", {k}={v}" for k, v in given.items())
        parts += [f"### {method}{own}", table(rows, method)]
    parts.append(
        f"Made by `{current_command(found['command'])}` on {hardware}: {len(rows)} runs, "
        f"{minutes:.0f} minutes, torch {versions['torch']}, tunefree {versions['tunefree']}."
    )
    return "\n\n".join(parts) + "\n"


def main(words: list[str]) -> int:
    """Rewrite the tables, or compare them; 1 where they are not up to date."""
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    page = PAGE.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": [], "each": 1}
    text = f"{head}{BEGIN}\n{render_tables(found)}\n{END}{tail}"
    if not words:
        PAGE.write_text(text, "utf-8")
    elif text != page:
        print("Out of date: docs/trust.md; run python -m experiments.trust.render", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
