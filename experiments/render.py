"""Write docs/reproduced from the results kept in experiments/*/results.

python -m experiments.render           # rewrite the pages and figures
python -m experiments.render --check   # say whether they are up to date

Numbers come from the results; published numbers, claims and assumptions from the specifications,
so that a corrected sentence needs no new run.
"""

import sys
from pathlib import Path

from tunefree.study.text import for_markdown
from tunefree.study.text import markdown as table

from . import find, load
from .figure import svg
from .record import Record, judged, results
from .record import load as read
from .text import markdown, tally

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "reproduced"
PAPERS = {
    "P0": "FedProxLoD and FedProxWLoD",
    "P1": "FedDuA",
    "P2": "ParFreFL and ComParFreFL",
    "P3": "FedSLS and FedExpSLS",
    "P4": "FedCanon",
}
COLUMNS = {"name": "experiment", "title": "what", "scale": "scale", "claims": "claims"}
INTRODUCTION = """# The papers' experiments

    python -m experiments LIST
    python -m experiments P1-table2 --scale small

Each table and figure of five papers is one command. The pages below set the published numbers
beside ours, with what was assumed where a paper is silent and what is smaller than in the paper;
claims are tested over seeds. Scale small takes minutes on two cores and shows orderings, not the
papers' numbers; scale paper is the paper's own size. A claim *holds* where a one-sided paired
t-test over seeds supports it at 5 % (that two methods are about equal: two one-sided tests),
*fails* where the test in the other direction does, and is *open* otherwise, and with one seed. A
run that diverged counts as worse than any other; a sign test then takes the place of the t-test.
Small values of p support the claim.
"""


def kept(place: Path) -> dict[str, list[Record]]:
    """Return the results that are kept, by paper, as the specifications judge them now."""
    out: dict[str, list[Record]] = {paper: [] for paper in PAPERS}
    for name in find(place):
        spec = load(name, place)
        for scale in spec.scales:
            path = results(spec, scale)
            if path.exists():
                found = judged(read(path), spec.at(scale))
                out.setdefault(name.partition("-")[0], []).append(found)
    return out


def rendered(place: Path) -> dict[str, str]:
    """Return every page and figure by its name below docs/reproduced."""
    found = kept(place)
    rows, out = [], {}
    for paper, records in found.items():
        for one in records:
            link = f"[{one['name']}]({paper}.md)"
            rows.append({"name": link, "title": for_markdown(one["title"]), "scale": one["scale"]})
            rows[-1]["claims"] = tally(one)
            drawn = svg(one)
            if drawn:
                out[f"{one['name']}-{one['scale']}.svg"] = drawn
        out[f"{paper}.md"] = page(paper, records, out)
    lines = ["| " + " | ".join(r[k] for k in COLUMNS) + " |" for r in rows]
    head = table([], COLUMNS)
    body = "\n".join([head, *lines]) if rows else "No results are kept yet."
    papers = "\n".join(f"- [{paper}: {PAPERS.get(paper, paper)}]({paper}.md)" for paper in found)
    out["index.md"] = f"{INTRODUCTION}\n{papers}\n\n{body}\n"
    return out


def page(paper: str, records: list[Record], figures: dict[str, str]) -> str:
    """Return the page of a paper."""
    parts = [f"# {paper}: {PAPERS.get(paper, paper)}\n"]
    for one in records:
        parts.append(markdown(one, 2))
        name = f"{one['name']}-{one['scale']}.svg"
        if name in figures:
            parts.append(f"![Curves of {one['name']}, {one['scale']}: means over seeds]({name})\n")
    return "\n".join(parts if records else [*parts, "No results are kept yet.\n"])


def main(words: list[str]) -> int:
    """Rewrite the pages, or compare them; 1 where they are not up to date."""
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    wanted = rendered(HERE)
    there = {p.name: p.read_text("utf-8") for p in DOCS.glob("*")} if DOCS.exists() else {}
    if words:
        stale = sorted(n for n in wanted.keys() | there.keys() if wanted.get(n) != there.get(n))
        if stale:
            names = ", ".join(stale)
            print(f"Out of date: {names}; run python -m experiments.render", file=sys.stderr)
        return int(bool(stale))
    DOCS.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (DOCS / name).unlink()
    for name, text in wanted.items():
        (DOCS / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
