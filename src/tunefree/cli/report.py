"""The commands `tunefree report` and `tunefree watch`."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..core.errors import ArgumentError
from ..report.collect import load_groups
from ..report.figures import COLUMN, draw
from ..report.page import write
from ..report.watch import make_server
from ..study import Comparison, Tuning
from .app import app, err, out, print_line


@app.command
def report(
    *runs: Path,
    out_file: Annotated[Path, Parameter(name="--out")] = Path("report.html"),
    title: str | None = None,
    figures: Path | None = None,
    format: Literal["pdf", "svg", "png"] = "pdf",
    width: float = COLUMN,
) -> int:
    """Write a page about runs: one HTML file that opens offline.

    Runs that differ only in their seed share a curve, with a band around it. The page of a
    comparison's folder is that of `tunefree compare`: with the test's verdicts and the cost of
    tuning, without the runs of the search.

    For example:

    tunefree report runs --out report.html

    tunefree report runs/digits-auto-1 runs/digits-fedavg-1 --figures figures --format pdf

    Args:
        runs: Run folders, or folders that contain some; or the folder of one comparison or search.
        out_file: File of the page.
        title: Heading of the page.
        figures: Also draw figures for a paper into this folder (needs matplotlib).
        format: Format of the figures: pdf, svg or png.
        width: Width of the figures in inches; by default that of a column of a two-column paper.
    """
    if not runs:
        raise ArgumentError("report needs at least one run folder, such as runs/digits-auto-1.")
    kinds = [k for k in (Comparison, Tuning) if len(runs) == 1 and (runs[0] / k.FILE).is_file()]
    found: Comparison | Tuning | None = kinds[0].load(runs[0]) if kinds else None
    groups = load_groups(runs) if found is None else found.groups
    drawn = [] if figures is None else draw(groups, figures, format, width)
    page = write(groups, out_file, title=title) if found is None else found.report(out_file, title)
    for path in [page, *drawn]:
        print_line(f"Written: {path}")
    return 0


@app.command
def watch(*runs: Path, port: int = 0, host: str = "127.0.0.1", title: str | None = None) -> int:
    """Show runs in the browser while they are training; Ctrl-C ends it.

    For example:

    tunefree watch runs

    Args:
        runs: Folders of runs; runs that start later are shown too. By default runs.
        port: Port; 0 takes a free one.
        host: Address to listen on; the default accepts connections from this machine only.
        title: Heading of the page.
    """
    folders = runs or (Path("runs"),)
    for folder in folders:
        if not os.path.isdir(folder):
            raise ArgumentError(f"watch takes folders with runs; {str(folder)!r} is not a folder.")
    with make_server(folders, host, port, title) as server:
        print_line(f"Watching at {server.address} (Ctrl-C ends it)")
        out.file.flush()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            err.print("Stopped watching.")
    return 0
