"""The command line: parse, call, print. One file per command, or family of commands."""

import logging
import os
import sys

from cyclopts import App
from rich.markup import escape

from ..core.errors import TunefreeError
from . import advise, compare, flower, lists, report, run, tune
from .app import BAD_INPUT, INTERRUPTED, app, err


def main(words: list[str] | None = None, app: App = app) -> None:
    """Run the command line, or that of another program of this repository; exit with its code."""
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
    except OSError as error:  # a file or folder that was named
        what = str(error.filename or "")[:200]
        said = f"{error.strerror or error}{f': {what!r}' if what else ''}."
        err.print(f"[bold red]Error:[/] {escape(said)}", soft_wrap=True)
        code = BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


__all__ = [
    "advise",
    "app",
    "compare",
    "flower",
    "lists",
    "main",
    "report",
    "run",
    "tune",
]
