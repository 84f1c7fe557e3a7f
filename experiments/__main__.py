"""The command line of the experiments: `python -m experiments NAME`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

import experiments as papers
from tunefree.cli import main
from tunefree.cli.app import INTERRUPTED, AsJson, err, out, print_line
from tunefree.core.errors import Interrupted
from tunefree.core.files import to_json
from tunefree.data import describe
from tunefree.report.terminal import make_table
from tunefree.study.progress import TerminalProgress
from tunefree.version import __version__

from . import text
from .citations import count_sources
from .record import Record, load, record_path

LIST = {
    "name": "name",
    "title": "what",
    "small": "small, minutes",
    "paper": "paper, minutes",
    "sources": "settings: paper, code, assumed",
    "missing": "data missing here",
}


app = App(
    name="python -m experiments", version=__version__, default_parameter=Parameter(negative="")
)


@app.default
def reproduce(
    *names: str,
    scale: Literal["small", "paper"] = "small",
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    jobs: int | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
    tasks: str | None = None,
    methods: str | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    keep: bool = False,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> int:
    """Run an experiment of a paper and print the result beside the published one.

    Without a name, or with LIST, the experiments are listed.

    Examples:

    python -m experiments LIST

    python -m experiments P1-table2 --scale small

    python -m experiments P1-table2 --scale paper --device cuda --jobs 4 --tasks CIFAR-10

    Parameters
    ----------
    names: str
        Experiments, such as P1-table2, or files of specifications.
    scale: str
        small takes minutes on two cores; paper is the paper's own size, for a GPU.
    out_dir: Path
        Folder of the runs, the table and the page; by default runs/experiments/NAME-SCALE. Runs
        that are there are kept.
    jobs: int
        Processes that train runs, each with one thread; by default 2 on a CPU, 1 on a GPU, which
        several may share. With 0 nothing is trained: the result is that of the runs in the folder
        and of those that are kept.
    seeds: int
        How many, instead of the experiment's own number.
    rounds: int
        Instead of the experiment's own; the result says that it is shorter than the paper.
    tasks: str
        Only these, separated by commas.
    methods: str
        Only these, by their names in the table, separated by commas.
    device: str
        auto, cpu, cuda, ...
    data_dir: Path
        Folder with dataset files, looked at before $TUNEFREE_DATA and the cache.
    keep: bool
        Also write the result into the experiment's own folder, for the documentation. Rows of the
        result there that have no run in this call stay, with the machine and date of their own.
    dry_run: bool
        Print the runs and how many there are; train nothing.
    """
    if not names or [name.lower() for name in names] == ["list"]:
        print_list(data_dir, as_json)
        return 0
    narrow: dict[str, Any] = {
        "seeds": seeds,
        "rounds": rounds,
        "tasks": None if tasks is None else _split(tasks),
        "methods": None if methods is None else _split(methods),
    }
    for name in names:  # all of them are right before the first begins
        papers.plan_runs(name, scale, **narrow)
    for name in names:
        if dry_run:
            print_plan(name, scale, narrow)
            continue
        folder = out_dir if out_dir is None or len(names) == 1 else out_dir / f"{name}-{scale}"
        try:
            found = papers.run(
                name,
                scale=scale,
                out=folder,
                jobs=jobs,
                device=device,
                data_dir=data_dir,
                keep=keep,
                watch=TerminalProgress(err),
                **narrow,
            )
        except Interrupted as stop:
            print_record(stop.run.record, as_json)  # type: ignore[attr-defined]
            err.print(f"{stop} The same command goes on.", markup=False, soft_wrap=True)
            return INTERRUPTED
        print_record(found.record, as_json)
        print_line(f"Page: {found.path / found.record['name']}-{scale}.html", err)
    return 0


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def wide_console() -> Console:
    """Return the console for tables; if it is no terminal, wide enough not to fold cells."""
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 200))


def print_list(data_dir: Path | None, as_json: bool) -> None:
    """Print the experiments, how long each takes, and which data is missing."""
    rows, here = [], {row["name"]: row["found"] for row in describe(data_dir)}
    for name in papers.find():
        spec = papers.load(name)
        row: dict[str, Any] = {"name": name, "title": spec.raw.get("title", "")}
        missing: dict[str, None] = {}
        for scale in spec.scales:
            found = spec.at(scale)
            if scale == "paper":
                row["sources"] = format_sources(found)
            row[scale] = format_minutes(spec, scale, found.minutes)
            for task in found.tasks:
                data = task.words.get("data")
                if not task.skip and data is not None and here[data] == "missing":
                    missing[f"{data} ({scale})"] = None
        rows.append(row | {"missing": ", ".join(missing)})
    if as_json:
        print(to_json({"experiments": rows}))
        return
    if not rows:
        out.print("No experiments are here; $TUNEFREE_EXPERIMENTS names their folder.")
        return
    wide_console().print(make_table(rows, LIST))


def format_sources(found: papers.Experiment) -> str:
    """Return how many settings the paper states, its code has, and we assume."""
    return ", ".join(str(n) for n in count_sources(found).values()) if found.sources else ""


def format_minutes(spec: papers.Spec, scale: str, said: float | None) -> str:
    """Return the duration: measured, else as specified, else the sum over the kept runs.

    One process on a machine with two cores takes longer than what is specified for two.
    """
    path = record_path(spec, scale)
    kept = load(path) if path.exists() else {}
    if "wall" in kept and not kept["narrowed"] and (kept["jobs"] > 1 or said is None):
        return f"{kept['wall'] / 60:.1f}"
    if said is not None:
        return f"{said:g}"
    return f"{kept['seconds'] / 60:.0f}" if kept else "not measured"


def print_plan(name: str, scale: str, narrow: dict[str, Any]) -> None:
    """Print the runs of an experiment and how many there are."""
    found, runs = papers.plan_runs(name, scale, **narrow)
    out.print(f"{found.name}, {scale}: {found.title}", markup=False, soft_wrap=True)
    for one, count in runs:
        words = one.words
        settings = " ".join(f"{k}={v}" for k, v in words.get("set", {}).items())
        far = f"{words['rounds']} rounds" if "rounds" in words else ""
        line = "  ".join(filter(None, (f"{count} x", one.label, far, settings)))
        out.print(line, markup=False, soft_wrap=True)
    for task in found.tasks:
        if task.skip:
            out.print(f"{task.name} is not run: {task.skip}", markup=False, soft_wrap=True)
    total = sum(count for _, count in runs)
    rounds = sum(count * one.rounds for one, count in runs)
    out.print(f"{total} runs, {rounds} rounds in all.")


def print_record(kept: Record, as_json: bool) -> None:
    """Print a result."""
    if as_json:
        print(to_json(kept))
        return

    def say(line: str) -> None:
        out.print(line, markup=False, soft_wrap=True)

    say(f"{kept['name']}, {kept['scale']}: {kept['title']}")
    wide_console().print(make_table(text.cells(kept), text.columns(kept)))
    for line in text.remarks(kept):
        say(line)
    if kept["claims"]:
        say(f"\n{text.tally(kept)}")
        wide_console().print(make_table(text.verdicts(kept), text.CLAIMS))
    for title, lines in text.list_sections(kept):
        if lines:
            say(f"\n{title}:")
        for line in lines:
            say(f"- {line}")


if __name__ == "__main__":
    main(app=app)
