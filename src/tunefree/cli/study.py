"""The commands `tunefree compare` and `tunefree tune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from .. import methods as catalogue
from ..core.errors import ArgumentError, Interrupted, check_int
from ..core.files import to_json
from ..report.terminal import make_table
from ..study import Comparison, Tuning, comparison, tuning
from ..study.candidates import Candidate, make_seeds, parse_candidates, parse_seeds
from ..study.comparison import run_comparison
from ..study.progress import TerminalProgress
from ..study.search import make_grid, parse_grid, run_search
from ..study.source import CommandStudy
from ..study.tasks import read_study
from ..training.command import CommandConfig, parse_method_settings
from .app import DIVERGED, INTERRUPTED, AsJson, app, err, out, print_interrupted, print_line
from .options import make_options, next_folder, read_options

if TYPE_CHECKING:
    CompareOptions = Any
    TuneOptions = Any
else:
    CompareOptions = make_options(hidden=("method", "set", "seed"))
    TuneOptions = make_options(hidden=("seed",), method="fedavg")

Markdown = Annotated[bool, Parameter(name="--markdown", help="Print the table in Markdown.")]
Csv = Annotated[bool, Parameter(name="--csv", help="Print comma-separated plain numbers.")]
Latex = Annotated[bool, Parameter(name="--latex", help="Print the table as a LaTeX tabular.")]
Jobs = Annotated[int, Parameter(help="Processes, each with one run at a time and one thread.")]


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
    """Train several methods on the same clients, cohorts, batches and starts; print one table.

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
        Number of seeds, or seeds such as 0,4,7; 3 by default.
    out_dir: Path
        Folder of the runs and of report.html; by default the next free runs/DATA-compare-NUMBER.
        Runs in it are not repeated.
    resume: Path
        Continue the comparison in this folder with its own settings.
    target: float
        Accuracy (or loss) up to which rounds, bytes and gradients are counted; by default 95 % of
        the best method's final mean.
    """
    form = _choose_format(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("compare", "jobs", jobs)
    if resume is not None:
        _check_only_resume(options, methods, seeds_, out_dir, target)
        command = _read_command(resume, comparison.FILE, "comparison")
        out_dir = resume
    elif methods is None:
        raise ArgumentError("compare needs --methods, such as --methods auto,fedavg,scaffold.")
    else:
        shared = read_options(options, CompareOptions).to_json()
        command = {"options": shared, "methods": methods, "seeds": seeds_ or "3", "target": target}
    base = CommandConfig.from_json(command["options"])
    candidates = parse_candidates([m for m in command["methods"].split(",") if m.strip()])
    if base.options["cohort"] is None and any(c.method.full for c in candidates):
        base = base.replace(cohort=0)  # the same cohorts for all
    folder = out_dir or next_folder(f"{base.data}-compare")
    try:
        found = run_comparison(
            candidates,
            make_seeds(parse_seeds(command["seeds"])),
            CommandStudy(base),
            out=folder,
            target=command["target"],
            listener=TerminalProgress(err),
            jobs=jobs,
            command=command,
        )
        interrupted = False
    except Interrupted as stop:
        found, interrupted = stop.run, True  # type: ignore[assignment]
    _print_study(found, form)
    if interrupted:
        print_interrupted("compare", folder)
        return INTERRUPTED
    _write_report(found, folder)
    return 0 if any(row["finished"] for row in found.table()) else DIVERGED


@app.command
def tune(
    options: Annotated[TuneOptions | None, Parameter(name="*")] = None,
    *,
    grid: tuple[str, ...] | None = None,
    seeds_: Annotated[str | None, Parameter(name="--seeds")] = None,
    by: tuning.Criterion = "validation",
    halving: bool = False,
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: Path | None = None,
    jobs: Jobs = 1,
    markdown: Markdown = False,
    csv: Csv = False,
    latex: Latex = False,
    as_json: AsJson = False,
) -> int:
    """Search a method's settings over a grid, and count what that costs.

    Examples:

    tunefree tune --method fedavg --rounds 50 --out search

    tunefree tune --method fedadam --grid lr=0.01,0.1 --grid server_lr=0.001,0.01 --halving

    tunefree tune --resume search

    Parameters
    ----------
    grid: tuple[str, ...]
        A setting and its values, such as lr=0.01,0.1,1; may be repeated. By default the papers'
        grid for the settings that must be chosen.
    seeds_: str
        Number of seeds, or seeds such as 0,4,7; 1 by default.
    by: str
        Choose by validation data (a tenth of each client's samples, or --validation), or by the
        test set, whose score is then biased.
    halving: bool
        Use successive halving: drop two thirds of the settings after a few rounds, repeatedly, and
        train the rest to the end.
    out_dir: Path
        Folder of the runs; by default the next free runs/DATA-tune-METHOD-NUMBER. Runs in
        it are not repeated.
    resume: Path
        Continue the search in this folder with its own settings.
    """
    form = _choose_format(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("tune", "jobs", jobs)
    if resume is not None:
        chosen = None if by == "validation" else by
        _check_only_resume(options, grid, seeds_, out_dir, halving or None, chosen)
        command = _read_command(resume, tuning.FILE, "search")
        out_dir = resume
    else:
        command = {"options": read_options(options, TuneOptions).to_json(), "grid": grid}
        command |= {"seeds": seeds_ or "1", "by": by, "halving": halving}
    base = CommandConfig.from_json(command["options"])
    name, texts = base.method, tuple(base.set or ())
    settings = parse_method_settings(name, texts)
    candidate = Candidate(name, catalogue.get(name, **settings), name, texts, settings)
    if command["by"] == "test":
        print_line(tuning.WARNING, err)
    folder = out_dir or next_folder(f"{base.data}-tune-{name}")
    try:
        with TerminalProgress(err) as listener:
            grid_values = parse_grid(name, command["grid"]) if command["grid"] else None
            found = run_search(
                candidate,
                make_grid(candidate, grid_values),
                make_seeds(parse_seeds(command["seeds"]), "tune"),
                CommandStudy(base),
                out=folder,
                listener=listener,
                by=command["by"],
                halving=command["halving"],
                jobs=jobs,
                command=command,
            )
    except Interrupted:
        print_interrupted("tune", folder)
        return INTERRUPTED
    _print_study(found, form)
    _write_report(found, folder)
    return 0 if found.ranked() else DIVERGED


def _choose_format(**requested: bool) -> str:
    """Return the name of the requested format, "terminal" if there is none."""
    found = [name for name, is_requested in requested.items() if is_requested]
    if len(found) > 1:
        names = " and ".join(f"--{name}" for name in found)
        raise ArgumentError(f"{names} are forms of the same table; give one of them.")
    return found[0] if found else "terminal"


def _check_only_resume(*others: object) -> None:
    """Check that no setting is given beside --resume."""
    if any(other is not None for other in others):
        raise ArgumentError("--resume takes its settings from the folder; give it alone.")


def _read_command(folder: Path, file: str, kind: str) -> dict[str, Any]:
    """Return the command that started the study in a folder, to resume it."""
    command = read_study(folder, file, kind, ("command",))["command"]
    if not command:
        raise ArgumentError(
            f"--resume continues a {kind} of this command; the one in {str(folder)!r} was started "
            f"from Python: call {Path(file).stem} again with the same arguments and out."
        )
    return dict(command)


def _print_study(found: Comparison | Tuning, form: str) -> None:
    """Print a study's result in a format."""
    if form == "json":
        print(to_json(found.json()))
    elif form != "terminal":
        print(getattr(found, form)())
    else:
        if found.header:
            print_line(found.header)
        wide = out if out.is_terminal else Console(highlight=False, width=max(out.width, 160))
        wide.print(make_table(found.cells(), found.columns))  # lines in a file need not be wrapped
        for sentence in found.sentences:
            print_line(sentence)


def _write_report(found: Comparison | Tuning, folder: Path) -> None:
    """Write the HTML page of a study to its folder and print the path."""
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
