"""tunefree compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..core.errors import ArgumentError, Interrupted, check_int
from ..core.files import to_json
from ..report.terminal import make_table
from ..study import Comparison, Tuning, contest
from ..study.comparison import read
from ..study.names import entrants, read_seeds, seeds
from ..study.source import CommandStudy
from ..study.watch import Terminal
from ..training.command import CommandConfig
from .app import DIVERGED, INTERRUPTED, AsJson, app, err, out
from .options import make_options, next_folder, read_options

Markdown = Annotated[bool, Parameter(name="--markdown", help="Print the table in markdown.")]
Csv = Annotated[bool, Parameter(name="--csv", help="Print comma-separated plain numbers.")]
Latex = Annotated[bool, Parameter(name="--latex", help="Print the table as a LaTeX tabular.")]
Jobs = Annotated[int, Parameter(help="Processes, each with one run at a time and one thread.")]


if TYPE_CHECKING:
    CompareOptions = Any
else:
    CompareOptions = make_options(hidden=("method", "set", "seed"))


@app.command
def compare(
    options: Annotated[CompareOptions | None, Parameter(name="*")] = None,
    *,
    methods: str | None = None,
    seeds_: Annotated[str | None, Parameter(name="--seeds")] = None,
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: Path | None = None,
    target: float | None = None,
    jobs: Jobs = 1,
    markdown: Markdown = False,
    csv: Csv = False,
    latex: Latex = False,
    as_json: AsJson = False,
) -> int:
    """Train with several methods on the same clients, cohorts, batches and starts; one table.

    Examples:

    tunefree compare --methods auto,fedavg:lr=0.1,scaffold --seeds 3 --rounds 50 --out study

    tunefree compare --methods auto,fedavg:tuned --data fashion-mnist --clients 100 --cohort 10

    tunefree compare --resume study

    Parameters
    ----------
    methods: str
        Names separated by commas, each with settings as in fedavg:lr=0.1:weights=samples, or
        tuned first (by validation data, on the first seed) as in fedavg:tuned.
    seeds_: str
        How many, or which ones, such as 0,4,7; 3 by default.
    out_dir: Path
        Folder of the runs and of report.html; by default the next free runs/DATA-compare-NUMBER.
        Runs that are there are kept.
    resume: Path
        Continue the comparison in this folder with its own settings.
    target: float
        Accuracy (or loss) that rounds, bytes and gradients are counted up to; by default 95 % of
        the best method's final mean.
    """
    form = one_form(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("compare", "jobs", jobs)
    if resume is not None:
        alone(options, methods, seeds_, out_dir, target)
        words, out_dir = _words_of(resume), resume
    elif methods is None:
        raise ArgumentError("compare needs --methods, such as --methods auto,fedavg,scaffold.")
    else:
        shared = read_options(options, CompareOptions).to_json()
        words = {"options": shared, "methods": methods, "seeds": seeds_ or "3", "target": target}
    base = CommandConfig.from_json(words["options"])
    joined = entrants([word for word in words["methods"].split(",") if word.strip()])
    if base.options["cohort"] is None and any(e.method.full for e in joined):
        base = base.replace(cohort=0)  # the same cohorts for all
    folder = out_dir or next_folder(f"{base.data}-compare")
    try:
        found = contest(
            joined,
            seeds(read_seeds(words["seeds"])),
            CommandStudy(base),
            out=folder,
            target=words["target"],
            watch=Terminal(err),
            jobs=jobs,
            words=words,
        )
        stopped = False
    except Interrupted as stop:
        found, stopped = stop.run, True  # type: ignore[assignment]
    show(found, form, [found.header])
    if stopped:
        err.print(
            f"Stopped by Ctrl-C; continue with:  tunefree compare --resume {folder}",
            markup=False,
            soft_wrap=True,
        )
        return INTERRUPTED
    say_page(found.report(folder / "report.html"))
    return 0 if any(row["finished"] for row in found.table()) else DIVERGED


def alone(*others: object) -> None:
    """Refuse settings beside those of the folder that is continued."""
    if any(other is not None for other in others):
        raise ArgumentError("--resume takes its settings from the folder; give it alone.")


def one_form(**asked: bool) -> str:
    """Return the form in which to print; at most one may be asked for."""
    found = [name for name, on in asked.items() if on]
    if len(found) > 1:
        names = " and ".join(f"--{name}" for name in found)
        raise ArgumentError(f"{names} are forms of the same table; give one of them.")
    return found[0] if found else "terminal"


def show(found: Comparison | Tuning, form: str, above: Sequence[str] = ()) -> None:
    """Print a study's table."""
    if form == "json":
        print(to_json(found.json()))
    elif form != "terminal":
        print(getattr(found, form)())
    else:
        for line in above:
            out.print(line, markup=False, soft_wrap=True)
        wide = out if out.is_terminal else Console(highlight=False, width=max(out.width, 160))
        wide.print(make_table(found.cells(), found.columns))  # into a file cells need not be folded
        for line in found.sentences:
            out.print(line, markup=False, soft_wrap=True)


def say_page(page: Path) -> None:
    """Say where the page is."""
    err.print(f"Page: {page}", markup=False, soft_wrap=True)


def _words_of(folder: Path) -> dict[str, Any]:
    words = read(folder)["command"]
    if not words:
        raise ArgumentError(
            f"--resume continues comparisons of this command; the one in {str(folder)!r} was "
            "started from Python: call compare again with the same arguments and out."
        )
    return dict(words)
