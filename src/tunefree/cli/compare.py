"""The command `tunefree compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..core.errors import ArgumentError, Interrupted, check_int
from ..study.candidates import make_seeds, parse_candidates, parse_seeds
from ..study.comparison import FILE, run_comparison
from ..study.progress import TerminalProgress
from ..study.source import CommandStudy
from ..training.command import CommandConfig
from .app import DIVERGED, INTERRUPTED, AsJson, app, err, print_interrupted
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
    form = choose_format(markdown=markdown, csv=csv, latex=latex, json=as_json)
    check_int("compare", "jobs", jobs)
    if resume is not None:
        check_only_resume(options, methods, seeds_, out_dir, target)
        command = read_command(resume, FILE, "comparison")
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
    print_study(found, form)
    if interrupted:
        print_interrupted("compare", folder)
        return INTERRUPTED
    write_report(found, folder)
    return 0 if any(row["finished"] for row in found.table()) else DIVERGED
