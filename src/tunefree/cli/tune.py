"""tunefree tune."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .. import methods as catalogue
from ..core.errors import ArgumentError, Interrupted, check_int
from ..study import search
from ..study.keep import recall
from ..study.names import Entrant, read_seeds, seeds
from ..study.searching import grid_of, read_grid
from ..study.source import CommandStudy
from ..study.tuning import FILE, WARNING, By
from ..study.watch import Terminal
from ..training.command import CommandConfig, parse_method_settings
from .app import DIVERGED, INTERRUPTED, AsJson, app, err
from .compare import (
    Csv,
    Jobs,
    Latex,
    Markdown,
    alone,
    one_form,
    say_page,
    show,
)
from .options import make_options, next_folder, read_options

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
    by: By = "validation",
    halving: bool = False,
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: Path | None = None,
    jobs: Jobs = 1,
    markdown: Markdown = False,
    csv: Csv = False,
    latex: Latex = False,
    as_json: AsJson = False,
) -> int:
    """Search a method's settings over a grid, and say what that costs.

    Examples:

    tunefree tune --method fedavg --rounds 50 --out search

    tunefree tune --method fedadam --grid lr=0.01,0.1 --grid server_lr=0.001,0.01 --halving

    tunefree tune --resume search

    Parameters
    ----------
    grid: tuple[str, ...]
        A setting and its values, such as lr=0.01,0.1,1; may be repeated. By default the papers'
        grid for what the method leaves to choose.
    seeds_: str
        How many, or which ones, such as 0,4,7; 1 by default.
    by: str
        Choose by validation data (a tenth of each client's, or --validation), or by the test set,
        which flatters.
    halving: bool
        Drop two thirds of the settings after a few rounds, again and again; what is left is
        played on to the end.
    out_dir: Path
        Folder of the runs; by default the next free runs/DATA-tune-METHOD-NUMBER. Runs that are
        there are kept.
    resume: Path
        Continue the search in this folder with its own settings.
    """
    form = one_form(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("tune", "jobs", jobs)
    if resume is not None:
        alone(options, grid, seeds_, out_dir, halving or None, None if by == "validation" else by)
        words, out_dir = _words_of(resume), resume
    else:
        words = {"options": read_options(options, TuneOptions).to_json(), "grid": grid}
        words |= {"seeds": seeds_ or "1", "by": by, "halving": halving}
    base = CommandConfig.from_json(words["options"])
    name, said = base.method, tuple(base.set or ())
    fixed = parse_method_settings(name, said)
    entrant = Entrant(name, catalogue.get(name, **fixed), name, said, fixed)
    if words["by"] == "test":
        err.print(WARNING, markup=False, soft_wrap=True)
    folder = out_dir or next_folder(f"{base.data}-tune-{name}")
    try:
        with Terminal(err) as watch:
            found = search(
                grid_of(entrant, read_grid(name, words["grid"]) if words["grid"] else None),
                seeds(read_seeds(words["seeds"]), "tune"),
                CommandStudy(base),
                out=folder,
                watch=watch,
                by=words["by"],
                halving=words["halving"],
                jobs=jobs,
                words=words,
            )
    except Interrupted:
        err.print(
            f"Stopped by Ctrl-C; continue with:  tunefree tune --resume {folder}",
            markup=False,
            soft_wrap=True,
        )
        return INTERRUPTED
    show(found, form)
    say_page(found.report(folder / "report.html"))
    return 0 if found.ranked() else DIVERGED


def _words_of(folder: Path) -> dict[str, Any]:
    words = recall(folder, FILE, "search", ("command",))["command"]
    if not words:
        raise ArgumentError(
            f"--resume continues searches of this command; the one in {str(folder)!r} was "
            "started from Python: call tune again with the same arguments and out."
        )
    return dict(words)
