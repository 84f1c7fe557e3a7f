"""The commands `tunefree compare` and `tunefree tune`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from ..core.errors import ArgumentError, Interrupted, check_int
from ..core.files import to_json
from ..core.plugins import is_user_object
from ..core.text import format_bytes
from ..report.terminal import make_table
from ..study import Comparison, Tuning, tuning
from ..study.candidates import (
    Candidate,
    load_user_methods,
    make_candidate,
    make_seeds,
    parse_candidates,
    parse_seeds,
)
from ..study.comparison import run_comparison
from ..study.progress import TerminalProgress
from ..study.source import CommandStudy
from ..study.tasks import read_study
from ..study.tuning import make_grid, parse_grid, run_search
from ..training.bind import estimate_cost
from ..training.command import CommandConfig
from .app import DIVERGED, INTERRUPTED, AsJson, app, err, out, print_interrupted, print_line
from .config import CompareOptions, KeepConfig, TuneOptions, next_folder, read_options, to_toml

MAX_JOBS = 1 << 12


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options that both commands have beside those of a run.

    Args:
        seeds: Number of seeds, or seeds such as 0,4,7; by default 3 to compare and 1 to tune.
        out: Folder of the runs and of report.html; by default the next free
            runs/DATA-compare-NUMBER or runs/DATA-tune-METHOD-NUMBER. Runs in it are not repeated.
        resume: Continue the study in this folder with its own settings.
        jobs: Processes, each with one run at a time and one thread.
        dry_run: Print the number of runs and the options as TOML.
        format: A table, also in Markdown or LaTeX (booktabs), or csv: plain numbers.
        columns: Columns of the table, such as label,final,against; not of csv, --json.
    """

    seeds: str | None = None
    out: Path | None = None
    resume: Path | None = None
    jobs: int = 1
    dry_run: bool = False
    format: Literal["table", "markdown", "latex", "csv"] = "table"
    json: AsJson = False
    columns: str | None = None

    def __post_init__(self) -> None:
        form = "--json" if self.json else f"--format {self.format}"
        if self.json and self.format != "table":
            both = f"--format {self.format} and --json"
            raise ArgumentError(f"{both} are forms of the same table; give one of them.")
        if self.columns is not None and (self.format == "csv" or self.json):
            raise ArgumentError(f"--columns chooses columns of a text; {form} prints all numbers.")

    def read_command(self, kind: type[Comparison | Tuning], *others: object) -> dict[str, Any]:
        """Return the command that started the study to resume; no other option is given."""
        assert self.resume is not None
        if any(other is not None for other in (self.seeds, self.out, *others)):
            raise ArgumentError("--resume takes the settings of the folder; give no other option.")
        command = read_study(self.resume, kind.FILE, kind.KIND, ("command",))["command"]
        if not command:
            raise ArgumentError(
                f"--resume continues a {kind.KIND} of this command; the one in "
                f"{str(self.resume)!r} was started from Python: call {Path(kind.FILE).stem} again "
                "with the same arguments and out."
            )
        return dict(command)

    def make_study(self, what: str, command: dict[str, Any]) -> tuple[CommandStudy, Path]:
        """Return the study of a command and its folder, a new one unless it is given."""
        check_int(what, "jobs", self.jobs, below=MAX_JOBS)
        base = CommandConfig.from_json(command["options"])
        seeds = make_seeds(parse_seeds(command["seeds"]), what)
        name = "compare" if what == "compare" else f"tune-{base.method.rpartition(':')[2]}"
        out = self.resume or self.out or next_folder(f"{base.title}-{name}")
        study = CommandStudy(config=base, seeds=seeds, out=out, jobs=self.jobs, command=command)
        return study, out

    def check_columns(self, empty: Comparison | Tuning) -> None:
        """Check that a result of this kind has the columns."""
        empty.choose_columns(self._names)

    @property
    def _names(self) -> list[str] | None:
        return None if self.columns is None else [c.strip() for c in self.columns.split(",")]

    def print(self, found: Comparison | Tuning) -> None:
        """Print the result of a study."""
        if self.json:
            print(to_json(found.json()))
        elif self.format == "csv":
            print(found.csv())
        elif self.format != "table":
            print(getattr(found, self.format)(self._names))
        else:
            if found.header:
                print_line(found.header)
            wide = out if out.is_terminal else Console(highlight=False, width=max(out.width, 160))
            columns = found.choose_columns(self._names)
            wide.print(make_table(found.cells(), columns))  # files need no short lines
            for sentence in found.sentences:
                print_line(sentence)


Shared = Annotated[StudyOptions | None, Parameter(name="*")]


@app.command
def compare(
    options: Annotated[CompareOptions | None, Parameter(name="*")] = None,
    *,
    methods: str | None = None,
    goal: float | None = None,
    shared: Shared = None,
) -> int:
    """Train several methods on the same clients, cohorts, batches and starts; print one table.

    For example:

    tunefree compare --methods auto,fedavg:lr=0.1,scaffold --seeds 3 --rounds 50 --out study

    tunefree compare --methods auto,fedavg:tuned --data fashion-mnist --clients 100 --cohort 10

    tunefree compare --resume study

    Args:
        methods: Names separated by commas, each with settings as in fedavg:lr=0.1:weights=samples,
            or tuned first (by validation data, on the first seed) as in fedavg:tuned.
        goal: Accuracy (or loss) up to which rounds, bytes and gradients are counted; by default 95
            % of the best method's final mean.
    """
    given = shared or StudyOptions()
    if given.resume is not None:
        command = given.read_command(Comparison, options, methods, goal)
    elif methods is None:
        raise ArgumentError("compare needs --methods, such as --methods auto,fedavg,scaffold.")
    else:
        command = {"options": read_options(options, CompareOptions).to_json(), "target": goal}
        load_user_methods(methods)
        command |= {"methods": methods, "seeds": given.seeds or "3"}
    candidates = parse_candidates([m for m in command["methods"].split(",") if m.strip()])
    given.check_columns(Comparison({}, [], tunings={c.label: {} for c in candidates if c.is_tuned}))
    study, folder = given.make_study("compare", command)
    keep = {n: v for n, v in command["options"].items() if n not in ("method", "set", "seed")}
    keep |= {"methods": command["methods"], "seeds": command["seeds"], "goal": command["target"]}
    if given.dry_run:
        return _print_plan(study, candidates, len(candidates), keep)
    try:
        found = run_comparison(study, candidates, TerminalProgress(err), command["target"])
        interrupted = False
    except Interrupted as stop:
        found, interrupted = stop.run, True  # type: ignore[assignment]
    KeepConfig(folder, keep).begin()
    given.print(found)
    if interrupted:
        own = bool(study.config.user_objects) or is_user_object(command["methods"])
        print_interrupted("compare", folder, repeat=own)
        return INTERRUPTED
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
    return 0 if any(row["finished"] for row in found.table()) else DIVERGED


@app.command
def tune(
    options: Annotated[TuneOptions | None, Parameter(name="*")] = None,
    *,
    grid: tuple[str, ...] | None = None,
    by: tuning.Criterion = "validation",
    halving: bool = False,
    shared: Shared = None,
) -> int:
    """Search a method's settings over a grid, and count what that costs.

    For example:

    tunefree tune --method fedavg --rounds 50 --out search

    tunefree tune --method fedadam --grid lr=0.01,0.1 --grid server_lr=0.001,0.01 --halving

    tunefree tune --resume search

    Args:
        grid: A setting and its values, such as lr=0.01,0.1,1; may be repeated. By default the
            papers' grid for the settings that must be chosen.
        by: Choose by validation data (a tenth of each client's samples, or --validation), or by the
            test set, whose score is then biased.
        halving: Use successive halving: drop two thirds of the settings after a few rounds,
            repeatedly, and train the rest to the end.
    """
    given = shared or StudyOptions()
    if given.resume is not None:
        chosen = None if by == "validation" else by
        command = given.read_command(Tuning, options, grid, halving or None, chosen)
    else:
        command = {"options": read_options(options, TuneOptions).to_json(), "grid": grid}
        command |= {"seeds": given.seeds or "1", "by": by, "halving": halving}
    study, folder = given.make_study("tune", command)
    method = study.config.method
    candidate = make_candidate(method, tuple(study.config.set or ()))
    if command["by"] == "test":
        print_line(tuning.WARNING, err)
    grid_values = parse_grid(method, command["grid"]) if command["grid"] else None
    searched = make_grid(candidate, grid_values)
    given.check_columns(Tuning(method, searched, [], 1))
    keep = {n: v for n, v in command["options"].items() if n != "seed"}
    keep |= {n: command[n] for n in ("grid", "seeds", "by", "halving")}
    if given.dry_run:
        return _print_plan(study, [candidate], len(searched), keep)
    try:
        with TerminalProgress(err) as listener:
            by, halving = command["by"], command["halving"]
            found = run_search(study, candidate, searched, listener, by, halving)
    except Interrupted:
        KeepConfig(folder, keep).begin()
        print_interrupted("tune", folder, repeat=bool(study.config.user_objects))
        return INTERRUPTED
    KeepConfig(folder, keep).begin()
    given.print(found)
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
    return 0 if found.ranked() else DIVERGED


def _print_plan(
    study: CommandStudy, candidates: list[Candidate], rows: int, options: dict[str, Any]
) -> int:
    """Print how many runs a study has, what one costs, and its options as TOML."""
    cost = estimate_cost(study.check(candidates))
    runs, up = rows * len(study.seeds), format_bytes(cost["total_bytes_up"])
    print_line(f"{runs} runs of {cost['rounds']} rounds, {cost['clients']} clients, {up} up each.")
    print_line("\n" + to_toml(options))
    return 0
