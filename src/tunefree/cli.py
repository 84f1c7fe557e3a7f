"""The command line: parse, call, print."""

import dataclasses
import json
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from . import methods as catalogue
from .bench import Bench, measure
from .bench_rules import BenchRules, measure_rules
from .data import describe
from .engines import units
from .engines.ranks import join
from .errors import ArgumentError, Interrupted, TunefreeError
from .fit import Event, fit, options
from .folder import Folder, to_json
from .job import bind, cost
from .recipe import Recipe, arguments
from .report.terminal import Bar, grid, human, summary
from .run import Run
from .version import __version__

BAD_INPUT, DIVERGED, INTERRUPTED = 2, 3, 130  # exit codes

app = App(
    name="tunefree",
    version=__version__,
    help="Federated learning with nothing to tune.",
    default_parameter=Parameter(negative=""),
    help_epilogue="Start with `tunefree run`: it trains on embedded digits in a few seconds.",
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@app.command
def run(
    recipe: Annotated[Recipe | None, Parameter(name="*")] = None,
    *,
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: Path | None = None,
    dry_run: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Train one model over many clients' data and write a run folder.

    Examples:

    tunefree run

    tunefree run --data fashion-mnist --split dirichlet:0.1 --clients 100 --cohort 10 --rounds 50

    tunefree run --method fedavg --set lr=0.1 --set weights=samples

    tunefree run --resume runs/digits-auto-1

    Parameters
    ----------
    out_dir: Path
        Run folder; by default the next free runs/DATA-METHOD-NUMBER.
    resume: Path
        Continue the run in this folder with its own settings; takes no other option.
    dry_run: bool
        Print what the run would cost (parameters, bytes, memory) and stop.
    as_json: bool
        Print the result as one JSON object.
    """
    if resume is not None:
        if recipe is not None or out_dir is not None:
            raise ArgumentError("--resume takes its settings from the folder; give it alone.")
        recipe, out_dir = _recipe_of(resume), resume
    recipe = recipe or Recipe()
    words = {k: str(v) if isinstance(v, Path) else v for k, v in _asdict(recipe).items()}
    settings = arguments(recipe)
    if dry_run:
        facts = cost(bind(options(**settings, compile=False)))
        _say(facts, as_json, _costs)
        return 0
    ranks = join()
    folder = ranks.agreed(out_dir or _next_folder(recipe))
    with Bar(recipe.rounds, err) if ranks.leads else nullcontext(_silent) as bar:
        try:
            result = fit(**settings, out=folder, callbacks=[bar], command=words)
        except Interrupted as stop:
            result = stop.run  # type: ignore[assignment]
    if not ranks.leads:
        return 0
    _say({**result.summary, "path": str(folder)}, as_json, lambda _: out.print(summary(result)))
    if result.status == "interrupted":
        line = f"Stopped by Ctrl-C; continue with:  tunefree run --resume {folder}"
        err.print(line, markup=False, soft_wrap=True)
        return INTERRUPTED
    return DIVERGED if result.status == "diverged" else 0


def _silent(event: Event) -> None:
    """Print nothing: another process does."""


def _asdict(recipe: Recipe) -> dict[str, Any]:
    return {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}


def _recipe_of(folder: Path) -> Recipe:
    if not Folder(folder).started:
        raise ArgumentError(f"--resume must be a run folder, got {str(folder)!r}, which is none.")
    words = Folder(folder).settings().get("command") or {}
    known = {f.name for f in dataclasses.fields(Recipe)}
    if not words or not set(words) <= known:
        raise ArgumentError(
            f"--resume continues runs of this command; the one in {str(folder)!r} was started from "
            "Python: call fit again with the same arguments and out."
        )
    if words.get("data_dir"):
        words["data_dir"] = Path(words["data_dir"])
    return Recipe(**(words | {"set": tuple(words.get("set") or ())}))


def _next_folder(recipe: Recipe) -> Path:
    number = 1
    while (path := Path("runs") / f"{recipe.data}-{recipe.method}-{number}").exists():
        number += 1
    return path


def _say(facts: dict[str, Any], as_json: bool, otherwise: Any) -> None:
    if as_json:
        print(to_json(facts))
    else:
        otherwise(facts)


def _costs(facts: dict[str, Any]) -> None:
    amounts = ("bytes", "memory")
    rows = [
        {"what": k.replace("_", " "), "value": human(v) if any(a in k for a in amounts) else v}
        for k, v in facts.items()
    ]
    out.print(grid(rows, {"what": "what", "value": "value"}))


@app.command
def methods(
    name: str | None = None, *, as_json: Annotated[bool, Parameter(name="--json")] = False
) -> int:
    """List the methods: where they come from, what they send and remember, what is left to choose.

    Parameters
    ----------
    name: str
        Show one method with all of its settings.
    as_json: bool
        Print as JSON.
    """
    rows = [_about(n) for n in ([name] if name else catalogue.names())]
    if as_json:
        print(json.dumps(rows))
        return 0
    if name:
        row = rows[0] | rows[0].pop("settings")
        lines = [{"what": k.replace("_", " "), "value": str(v)} for k, v in row.items()]
        out.print(grid(lines, {"what": "what", "value": "value"}))
        return 0
    for row in rows:
        row["choose"] = " ".join(row["choose"]) or "nothing"
        row["cohort"] = "all" if row["everyone"] else "any"
    headings = {
        "name": "method",
        "paper": "paper",
        "choose": "to choose",
        "up": "up",
        "down": "down",
        "client": "client",
        "server": "server",
        "cohort": "cohort",
    }
    out.print(grid(rows, headings))
    out.print(
        "\nUp, down: numbers sent per client and round; client, server: numbers kept between "
        "rounds (beyond the model); d is the number of parameters. cohort: all where a method is "
        "defined for full participation alone. "
        "`tunefree methods NAME` shows a method's own settings; every method also takes "
        f"--set {' '.join(k + '=' for k in catalogue.COMMON)}",
        markup=False,
    )
    return 0


def _about(name: str) -> dict[str, Any]:
    """Return what there is to know about a method before running it."""
    own = catalogue.settings(name)
    with_penalty = {"penalty": "l1:1e-4"} if "penalty" in own else {}
    method = catalogue.get(name, **with_penalty)
    entry = catalogue.CATALOGUE[name]
    return {
        "name": name,
        "summary": entry.summary,
        "paper": entry.paper,
        "choose": list(entry.choose),
        **{k: str(v) for k, v in units(method).items()},
        "everyone": method.full,
        "settings": {k: p.default for k, p in own.items()},
    }


@app.command
def datasets(
    *,
    data_dir: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """List the datasets and where their files are; their terms with --json.

    Parameters
    ----------
    data_dir: Path
        Folder with dataset files, looked at before $TUNEFREE_DATA and the cache.
    as_json: bool
        Print as JSON.
    """
    rows = describe(data_dir)
    if as_json:
        print(json.dumps(rows))
        return 0
    headings = {
        "name": "dataset",
        "rows": "rows (train + test)",
        "classes": "classes",
        "owners": "owners",
        "size": "size",
        "found": "found",
    }
    out.print(grid(rows, headings))
    return 0


@app.command
def bench(
    settings: Annotated[Bench | None, Parameter(name="*")] = None,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Measure our engine beside a plain per-client PyTorch loop, in the same run.

    Parameters
    ----------
    as_json: bool
        Print as JSON.
    """
    rows = measure(settings or Bench())
    if as_json:
        print(to_json(rows))
        return 0
    for row in rows:
        for side in ("ours", "plain"):
            low, high = row[f"{side}_range"]
            row[side] = f"{row[f'{side}_ms']:.2f} ({low:.2f} to {high:.2f})"
        low, high = row["ratio_range"]
        row["times"] = f"{row['ratio']:.1f}x ({low:.1f} to {high:.1f})"
        row["ready"] = f"{row['ready_s']:.1f} s"
    headings = {
        "model": "model",
        "parameters": "parameters",
        "engine": "engine",
        "chunk": "chunk",
        "ours": "ours, ms per cohort-step",
        "plain": "plain loop",
        "times": "ratio",
        "ready": "set-up and compile",
    }
    out.print(grid(rows, headings))
    return 0


@app.command
def bench_rules(
    settings: Annotated[BenchRules | None, Parameter(name="*")] = None,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Measure every proximal map and server rule beside plain copies, in the same run.

    Parameters
    ----------
    as_json: bool
        Print as JSON.
    """
    rows = measure_rules(settings or BenchRules())
    if as_json:
        print(to_json(rows))
        return 0
    for row in rows:
        for side in ("ms", "copy", "ratio"):
            low, high = row[f"{side}_range"]
            middle = row["copy_ms" if side == "copy" else side]
            row[f"{side}_text"] = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        row["published"] = row["published_ms"] or ""
    headings = {
        "name": "rule",
        "ms_text": "ms",
        "copy_text": "one copy, ms",
        "copies": "copies to make",
        "ratio_text": "ratio",
        "published": "published, ms",
    }
    out.print(grid(rows, headings))
    return 0


def main(words: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    try:
        code = app(words, result_action="return_value", exit_on_error=True)
        sys.stdout.flush()
    except TunefreeError as error:
        err.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        code = BAD_INPUT
    except KeyboardInterrupt:
        err.print("Stopped.")
        code = INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["Run", "app", "main"]
