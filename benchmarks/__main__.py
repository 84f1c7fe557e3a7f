"""The command line of the benchmarks: `python -m benchmarks SUITE`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tunefree.cli import main
from tunefree.cli.app import AsJson, err, out
from tunefree.core.errors import unknown_name
from tunefree.core.files import to_json
from tunefree.report.terminal import make_table
from tunefree.version import __version__

from . import SUITES, Suite, measure
from .keep import describe_machine, prepare_output, save

app = App(
    name="python -m benchmarks",
    version=__version__,
    help="Measure how fast it is, beside a plain per-client PyTorch loop in the same run.",
    default_parameter=Parameter(negative="", consume_multiple=True),
)

Out = Annotated[
    Path | None,
    Parameter(name="--out", help="Also write the JSON to this file, or into this folder."),
]


@app.default
def list_suites(suite: Annotated[str | None, Parameter(show=False)] = None, /) -> int:
    """Print the suites."""
    if suite is not None:
        raise unknown_name("suite", suite, SUITES)
    app.help_print([])
    return 0


def make_command(name: str, suite: Suite) -> Callable[..., int]:
    """Return the command of a suite; its options are the fields of the suite's settings."""

    def command(settings: Any = None, *, as_json: AsJson = False, out_file: Out = None) -> int:
        if out_file is not None:
            prepare_output(out_file)
        record = measure(name, settings, print_progress)
        if out_file is not None:
            print_progress(f"Written: {save(record, out_file)}")
        if as_json:
            print(to_json(record))
            return 0
        rows = suite.table(record["rows"])
        out.print(describe_machine(record), markup=False)
        out.print(make_table(rows, {heading: heading for heading in rows[0]}))
        return 0

    command.__doc__ = suite.summary
    command.__annotations__["settings"] = Annotated[suite.settings | None, Parameter(name="*")]
    return command


def print_progress(line: str) -> None:
    """Print a line to standard error."""
    err.print(line, markup=False, soft_wrap=True)


for _name, _suite in SUITES.items():
    app.command(make_command(_name, _suite), name=_name)


if __name__ == "__main__":
    main(app=app)
