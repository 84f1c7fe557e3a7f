"""The command line: one module per command or group of commands."""

import logging
import os
import sys

from cyclopts import App
from rich.markup import escape

from ..core.errors import TunefreeError
from . import advise, flower, lists, report, run, study
from .app import BAD_INPUT, INTERRUPTED, app, err
from .config import expand_config


def main(arguments: list[str] | None = None, app: App = app) -> None:
    """Run a command and exit with its code.

    Args:
        arguments: The command line; None is that of the process.
        app: The application; benchmarks and experiments have their own.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    try:
        words = expand_config(sys.argv[1:] if arguments is None else arguments)
        code = app(words, result_action="return_value", exit_on_error=True)
        sys.stdout.flush()
    except KeyboardInterrupt:
        err.print("Stopped.")
        code = INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (TunefreeError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):  # of a file or folder in the arguments
            name = str(error.filename or "")[:200]
            text = f"{error.strerror or error}{f': {name!r}' if name else ''}."
        err.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)
        code = BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["advise", "app", "flower", "lists", "main", "report", "run", "study"]
