"""Write docs/reproduced and three lines of README.md from the results in experiments/*/results.

python -m experiments.render           # rewrite the pages, the figures and the lines
python -m experiments.render --check   # say whether they are up to date

Numbers come from the results; published numbers, claims and assumptions from the specifications,
so that a corrected sentence needs no new run.
"""

import importlib.metadata
import sys
from pathlib import Path

from . import find, load
from .figure import draw_svg, has_curves
from .index import PAPERS, Overview, replace_lines
from .record import Record, apply_spec, record_path
from .record import load as read
from .text import markdown

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "reproduced"


def load_records(place: Path) -> dict[str, list[Record]]:
    """Return the kept records by paper, updated by the specifications."""
    out: dict[str, list[Record]] = {paper: [] for paper in PAPERS}
    for name in find(place):
        spec = load(name, place)
        for scale in spec.scales:
            path = record_path(spec, scale)
            if path.exists():
                found = apply_spec(read(path), spec.at(scale))
                out.setdefault(name.partition("-")[0], []).append(found)
    return out


def render_pages(found: dict[str, list[Record]]) -> dict[str, str]:
    """Return every page by its name below docs/reproduced."""
    out = {f"{paper}.md": page(paper, records) for paper, records in found.items()}
    return out | {"index.md": overview(found).page()}


def overview(found: dict[str, list[Record]]) -> Overview:
    """Return all claims beside the records."""
    return Overview(HERE, [one for records in found.values() for one in records])


def page(paper: str, records: list[Record]) -> str:
    """Return the page of a paper."""
    parts = [f"# {paper}: {PAPERS.get(paper, paper)}\n"]
    for one in records:
        parts.append(markdown(one, 2))
        if has_curves(one):
            alt = f"Curves of {one['name']}, {one['scale']}: means over seeds"
            parts.append(f"![{alt}]({figure_name(one)})\n")
    return "\n".join(parts if records else [*parts, "No results are kept yet.\n"])


def figure_name(one: Record) -> str:
    """Return the file name of a record's figure."""
    return f"{one['name']}-{one['scale']}.svg"


def render_figures(found: dict[str, list[Record]]) -> dict[str, str]:
    """Return every figure by its name below docs/reproduced."""
    return {figure_name(one): draw_svg(one) for one in with_figures(found)}


def with_figures(found: dict[str, list[Record]]) -> list[Record]:
    """Return the records of which there is a figure."""
    return [one for records in found.values() for one in records if has_curves(one)]


def read_docs() -> dict[str, str]:
    """Return the files of docs/reproduced by name."""
    return {p.name: p.read_text("utf-8") for p in DOCS.glob("*")} if DOCS.exists() else {}


def stale_pages(found: dict[str, list[Record]]) -> list[str]:
    """Return the names of pages that differ, and of files that are missing or too many."""
    there, pages = read_docs(), render_pages(found)
    figures = {figure_name(one) for one in with_figures(found)}
    names = there.keys() ^ (pages.keys() | figures)
    return sorted(names | {name for name in pages.keys() & there if pages[name] != there[name]})


def stale_figures(found: dict[str, list[Record]]) -> list[str]:
    """Return the names of figures that differ, of those that this version of matplotlib drew."""
    try:
        version = importlib.metadata.version("matplotlib")
    except importlib.metadata.PackageNotFoundError:
        print("Figures are not compared: matplotlib is not installed.", file=sys.stderr)
        return []
    out = []
    for one in with_figures(found):
        text = read_docs().get(figure_name(one), "")
        if f"Matplotlib v{version}," not in text:
            print(f"{figure_name(one)} is of another matplotlib: not compared.", file=sys.stderr)
        elif text != draw_svg(one):
            out.append(figure_name(one))
    return out


def read_readme() -> str:
    """Return README.md beside the folder of experiments; empty if there is none."""
    path = HERE.parent / "README.md"
    return path.read_text("utf-8") if path.exists() else ""


def is_readme_stale(found: dict[str, list[Record]]) -> bool:
    """Return whether the lines of README.md are of other results."""
    return replace_lines(read_readme(), overview(found).readme()) != read_readme()


def main(words: list[str]) -> int:
    """Rewrite the pages, or compare them; 1 where they are not up to date."""
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    found = load_records(HERE)
    if not words:
        write(render_pages(found) | render_figures(found))
        if is_readme_stale(found):
            text = replace_lines(read_readme(), overview(found).readme())
            (HERE.parent / "README.md").write_text(text, "utf-8")
        return 0
    stale = [*stale_pages(found), *stale_figures(found)]
    stale += ["README.md"] if is_readme_stale(found) else []
    if stale:
        names = ", ".join(stale)
        print(f"Out of date: {names}; run python -m experiments.render", file=sys.stderr)
    return int(bool(stale))


def write(wanted: dict[str, str]) -> None:
    """Write pages and figures, and remove what is no longer wanted."""
    DOCS.mkdir(parents=True, exist_ok=True)
    for name in read_docs().keys() - wanted.keys():
        (DOCS / name).unlink()
    for name, text in wanted.items():
        (DOCS / name).write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
