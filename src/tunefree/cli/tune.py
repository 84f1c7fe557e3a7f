"""The command `tunefree tune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .. import methods as catalogue
from ..core.errors import Interrupted, check_int
from ..study.candidates import Candidate, make_seeds, parse_seeds
from ..study.progress import TerminalProgress
from ..study.search import make_grid, parse_grid, run_search
from ..study.source import CommandStudy
from ..study.tuning import FILE, WARNING, Criterion
from ..training.command import CommandConfig, parse_method_settings
from .app import DIVERGED, INTERRUPTED, AsJson, app, err, print_interrupted, print_line
from .options import make_options, next_folder, read_options
from .study import (
    Csv,
    Jobs,
    Latex,
    Markdown,
    check_only_resume,
    choose_format,
    print_study,
    read_command,
    write_report,
)

if TYPE_CHECKING:
    TuneOptions = Any
else:
    TuneOptions = make_options(hidden=("seed",), method="fedavg")


@app.command
def tune(
    options: Annotated[TuneOptions | None, Parameter(name="*")] = None,
    *,
    grid: tuple[str, ...] | None = None,
    seeds_: Annotated[str | None, Parameter(name="--seeds")] = None,
    by: Criterion = "validation",
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
    form = choose_format(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("tune", "jobs", jobs)
    if resume is not None:
        chosen = None if by == "validation" else by
        check_only_resume(options, grid, seeds_, out_dir, halving or None, chosen)
        command = read_command(resume, FILE, "search")
        out_dir = resume
    else:
        command = {"options": read_options(options, TuneOptions).to_json(), "grid": grid}
        command |= {"seeds": seeds_ or "1", "by": by, "halving": halving}
    base = CommandConfig.from_json(command["options"])
    name, texts = base.method, tuple(base.set or ())
    settings = parse_method_settings(name, texts)
    candidate = Candidate(name, catalogue.get(name, **settings), name, texts, settings)
    if command["by"] == "test":
        print_line(WARNING, err)
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
    print_study(found, form)
    write_report(found, folder)
    return 0 if found.ranked() else DIVERGED
