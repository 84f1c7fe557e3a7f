"""tunefree report, tunefree watch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..core.errors import ArgumentError
from .app import app, err, out


@app.command
def report(
    *runs: Path,
    out_file: Annotated[Path, Parameter(name="--out")] = Path("report.html"),
    title: str | None = None,
    figures: Path | None = None,
    format: Literal["pdf", "svg", "png"] = "pdf",
) -> int:
    """Write a page about runs: one HTML file that opens offline.

    Runs that differ only in their seed share a curve, with a band around it.

    Examples:

    tunefree report runs --out report.html

    tunefree report runs/digits-auto-1 runs/digits-fedavg-1 --figures figures --format pdf

    Parameters
    ----------
    runs: Path
        Run folders, or folders that contain some.
    out_file: Path
        The page.
    title: str
        Its heading.
    figures: Path
        Also draw figures for a paper into this folder (needs matplotlib).
    format: str
        Of the figures: pdf, svg or png.
    """
    from ..report import figures as drawing
    from ..report.collect import load_groups
    from ..report.page import write

    if not runs:
        raise ArgumentError("report needs at least one run folder, such as runs/digits-auto-1.")
    groups = load_groups(runs)
    drawn = [] if figures is None else drawing.draw(groups, figures, format)
    for path in [write(groups, out_file, title=title), *drawn]:
        out.print(f"Written: {path}", markup=False, soft_wrap=True)
    return 0


@app.command
def watch(
    *runs: Path,
    port: int = 0,
    host: str = "127.0.0.1",
    title: str | None = None,
) -> int:
    """Show runs in the browser while they are going; Ctrl-C ends it.

    Examples:

    tunefree watch runs

    Parameters
    ----------
    runs: Path
        Folders with runs, now or later; by default runs.
    port: int
        Port; 0 takes a free one.
    host: str
        Address to listen on; the default is reached from this machine alone.
    title: str
        Heading of the page.
    """
    from ..report.watch import make_server

    places = runs or (Path("runs"),)
    for place in places:
        if not place.is_dir():
            raise ArgumentError(
                f"watch takes folders with runs, got {str(place)!r}, which is none."
            )
    with make_server(places, host, port, title) as server:
        out.print(f"Watching at {server.address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
        out.file.flush()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            err.print("Stopped watching.")
    return 0
