"""What all commands share: the application, its consoles and exit codes, and output."""

from collections.abc import Mapping
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from ..report.terminal import make_table
from ..version import __version__

CONFIG = "config.toml"  # the options of a command, in its folder
BAD_INPUT, DIVERGED, INTERRUPTED = 2, 3, 130  # exit codes

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

app = App(
    name="tunefree",
    console=out,
    error_console=err,
    version=__version__,
    help="Federated learning with nothing to tune.",
    default_parameter=Parameter(negative=""),
    help_epilogue="Start with `tunefree run`: it trains on embedded digits, without a download.",
)
AsJson = Annotated[bool, Parameter(name="--json", help="Print as JSON.")]


def print_line(text: str, console: Console = out) -> None:
    """Print a text literally, without wrapping it."""
    console.print(text, markup=False, soft_wrap=True)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print facts as a table of names and values."""
    rows = [{"what": k.replace("_", " "), "value": v} for k, v in facts.items()]
    out.print(make_table(rows, {"what": "what", "value": "value"}))


def print_interrupted(command: str, folder: object, *, repeat: bool = False) -> None:
    """Print how to continue a command that Ctrl-C stopped.

    A command that runs the user's own files is repeated, by the options in its folder.
    """
    words = f"--config {folder}/{CONFIG} --out {folder}" if repeat else f"--resume {folder}"
    print_line(f"Stopped by Ctrl-C; continue with:  tunefree {command} {words}", err)
