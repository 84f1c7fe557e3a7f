"""What `tunefree compare` and `tunefree tune` share: options, resuming, and output."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..core.errors import ArgumentError
from ..core.files import to_json
from ..report.terminal import make_table
from ..study import Comparison, Tuning
from ..study.folder import read_study
from .app import err, out, print_line

Markdown = Annotated[bool, Parameter(name="--markdown", help="Print the table in Markdown.")]
Csv = Annotated[bool, Parameter(name="--csv", help="Print comma-separated plain numbers.")]
Latex = Annotated[bool, Parameter(name="--latex", help="Print the table as a LaTeX tabular.")]
Jobs = Annotated[int, Parameter(help="Processes, each with one run at a time and one thread.")]


def choose_format(**requested: bool) -> str:
    """Return the name of the requested format, "terminal" if there is none."""
    found = [name for name, is_requested in requested.items() if is_requested]
    if len(found) > 1:
        names = " and ".join(f"--{name}" for name in found)
        raise ArgumentError(f"{names} are forms of the same table; give one of them.")
    return found[0] if found else "terminal"


def check_only_resume(*others: object) -> None:
    """Check that no setting is given beside --resume."""
    if any(other is not None for other in others):
        raise ArgumentError("--resume takes its settings from the folder; give it alone.")


def read_command(folder: Path, file: str, kind: str) -> dict[str, Any]:
    """Return the command that started the study in a folder, to resume it."""
    command = read_study(folder, file, kind, ("command",))["command"]
    if not command:
        raise ArgumentError(
            f"--resume continues a {kind} of this command; the one in {str(folder)!r} was started "
            f"from Python: call {Path(file).stem} again with the same arguments and out."
        )
    return dict(command)


def print_study(found: Comparison | Tuning, form: str) -> None:
    """Print a study's result in a format."""
    if form == "json":
        print(to_json(found.json()))
    elif form != "terminal":
        print(getattr(found, form)())
    else:
        if found.header:
            print_line(found.header)
        wide = out if out.is_terminal else Console(highlight=False, width=max(out.width, 160))
        wide.print(make_table(found.cells(), found.columns))  # lines in a file need not be wrapped
        for sentence in found.sentences:
            print_line(sentence)


def write_report(found: Comparison | Tuning, folder: Path) -> None:
    """Write the HTML page of a study to its folder and print the path."""
    print_line(f"Page: {found.report(folder / 'report.html')}", err)
