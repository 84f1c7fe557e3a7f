"""The command line: one module per command or group of commands."""

import logging
import os
import sys

from cyclopts import App, CycloptsError, UnusedCliTokensError
from rich.markup import escape

from ..core.errors import ArgumentError, TunefreeError, first_line
from . import advise, flower, lists, report, run, study
from .app import BAD_INPUT, INTERRUPTED, app, err
from .config import expand_config


def main(arguments: list[str] | None = None, app: App = app) -> None:
    """Run a command, by default that of the process, and exit with its code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("tunefree").setLevel(logging.INFO)
    try:
        words = expand_config(sys.argv[1:] if arguments is None else arguments)
        _check_empty(words)
        code = app(words, result_action="return_value", exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        err.print("Stopped.")
        code = INTERRUPTED
    except CycloptsError as error:  # options that do not exist, or values that do not fit
        text = str(error)
        if isinstance(error, UnusedCliTokensError):
            unused = ", ".join(map(repr, error.unused_tokens or ()))
            text = f"No option takes {unused}; a value follows its option, as in --csv FILE or "
            text += "--method NAME. The option --help lists them."
        err.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)
        code = BAD_INPUT
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (TunefreeError, OSError, MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, TunefreeError | OSError):
            kinds = ("allocate memory", "out of memory", "overflowed with sizes")
            if not isinstance(error, MemoryError) and not any(k in str(error) for k in kinds):
                raise
            text = f"This takes more memory than there is ({first_line(error)[:200]})."
        if isinstance(error, OSError):  # of a file or folder in the arguments
            name = str(error.filename or "")[:200]
            text = f"{error.strerror or error}{f': {name!r}' if name else ''}."
        err.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)
        code = BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


def _check_empty(words: list[str]) -> None:
    """Refuse empty arguments: an empty path would be the current folder."""
    for before, word in zip(["", *words], words, strict=False):
        empty = word == "" or (word.startswith("--") and word.endswith("="))
        if empty and "--title" not in (before, word.rstrip("=")):
            option = word.rstrip("=") or before or "An argument"
            raise ArgumentError(f"{option} must not be empty; leave it out, or give a value.")


__all__ = ["advise", "app", "flower", "lists", "main", "report", "run", "study"]
