"""The commands `tunefree compare` and `tunefree tune`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..core.errors import ArgumentError, Interrupted, check_int
from ..core.files import to_json
from ..report.terminal import make_table
from ..study import Comparison, Tuning, comparison, tuning
from ..study.candidates import make_candidate, make_seeds, parse_candidates, parse_seeds
from ..study.comparison import run_comparison
from ..study.progress import TerminalProgress
from ..study.source import CommandStudy
from ..study.tasks import read_study
from ..study.tuning import make_grid, parse_grid, run_search
from ..training.command import CommandConfig
from .app import DIVERGED, INTERRUPTED, app, err, out, print_interrupted, print_line
from .options import CompareOptions, TuneOptions, next_folder, read_options

Seeds = Annotated[str | None, Parameter(name="--seeds")]
Folder = Annotated[Path | None, Parameter(name="--out")]
Jobs = Annotated[int, Parameter(help="Processes, each with one run at a time and one thread.")]


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """The form in which the result is printed; a table in the terminal by default."""

    markdown: Annotated[bool, Parameter(help="Print the table in Markdown.")] = False
    csv: Annotated[bool, Parameter(help="Print comma-separated plain numbers.")] = False
    latex: Annotated[bool, Parameter(help="Print the table as a LaTeX tabular.")] = False
    json: Annotated[bool, Parameter(help="Print as JSON.")] = False

    def __post_init__(self) -> None:
        if len(self.requested) > 1:
            names = " and ".join(f"--{name}" for name in self.requested)
            raise ArgumentError(f"{names} are forms of the same table; give one of them.")

    @property
    def requested(self) -> list[str]:
        """The names of the requested forms."""
        return [f.name for f in fields(self) if getattr(self, f.name)]

    def print(self, found: Comparison | Tuning) -> None:
        """Print the result of a study."""
        if self.json:
            print(to_json(found.json()))
        elif self.requested:
            print(getattr(found, self.requested[0])())
        else:
            if found.header:
                print_line(found.header)
            wide = out if out.is_terminal else Console(highlight=False, width=max(out.width, 160))
            wide.print(make_table(found.cells(), found.columns))  # files need no short lines
            for sentence in found.sentences:
                print_line(sentence)


MAX_JOBS = 1 << 12
Format = Annotated[TableFormat | None, Parameter(name="*")]


@app.command
def compare(
    options: Annotated[CompareOptions | None, Parameter(name="*")] = None,
    *,
    methods: str | None = None,
    seeds_: Seeds = None,
    out_dir: Folder = None,
    resume: Path | None = None,
    target: float | None = None,
    jobs: Jobs = 1,
    format: Format = None,
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
    check_int("compare", "jobs", jobs, below=MAX_JOBS)
    if resume is not None:
        others = (options, methods, seeds_, out_dir, target)
        command = _read_command(resume, comparison.FILE, "comparison", *others)
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
    (format or TableFormat()).print(found)
    if interrupted:
        print_interrupted("compare", folder)
        return INTERRUPTED
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
    return 0 if any(row["finished"] for row in found.table()) else DIVERGED


@app.command
def tune(
    options: Annotated[TuneOptions | None, Parameter(name="*")] = None,
    *,
    grid: tuple[str, ...] | None = None,
    seeds_: Seeds = None,
    by: tuning.Criterion = "validation",
    halving: bool = False,
    out_dir: Folder = None,
    resume: Path | None = None,
    jobs: Jobs = 1,
    format: Format = None,
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
    check_int("tune", "jobs", jobs, below=MAX_JOBS)
    if resume is not None:
        chosen = None if by == "validation" else by
        others = (options, grid, seeds_, out_dir, halving or None, chosen)
        command = _read_command(resume, tuning.FILE, "search", *others)
        out_dir = resume
    else:
        command = {"options": read_options(options, TuneOptions).to_json(), "grid": grid}
        command |= {"seeds": seeds_ or "1", "by": by, "halving": halving}
    base = CommandConfig.from_json(command["options"])
    candidate = make_candidate(base.method, tuple(base.set or ()))
    if command["by"] == "test":
        print_line(tuning.WARNING, err)
    folder = out_dir or next_folder(f"{base.data}-tune-{base.method}")
    try:
        with TerminalProgress(err) as listener:
            grid_values = parse_grid(base.method, command["grid"]) if command["grid"] else None
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
    (format or TableFormat()).print(found)
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
    return 0 if found.ranked() else DIVERGED


def _read_command(folder: Path, file: str, kind: str, *others: object) -> dict[str, Any]:
    """Return the command that started the study in a folder; no option is given beside it."""
    if any(other is not None for other in others):
        raise ArgumentError("--resume takes the settings of the folder; give no other option.")
    command = read_study(folder, file, kind, ("command",))["command"]
    if not command:
        raise ArgumentError(
            f"--resume continues a {kind} of this command; the one in {str(folder)!r} was started "
            f"from Python: call {Path(file).stem} again with the same arguments and out."
        )
    return dict(command)
