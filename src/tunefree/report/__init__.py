"""Output for people: progress and tables in the terminal, the HTML report, figures for papers."""

import logging
import random

from ..training.callbacks import Callback
from ..training.run import register_report
from .page import render_notebook, write_run
from .payload import describe_run


def make_progress(rounds: int) -> Callback | None:
    """Return a callback that shows a run's progress in a terminal or a notebook; None elsewhere."""
    state = random.getstate()  # from which `rich` draws a number when it is imported
    try:
        from .terminal import make_bar
    except ImportError:  # rich is not installed
        logging.getLogger("tunefree").debug("No progress bar: rich cannot be imported.")
        return None
    finally:
        random.setstate(state)
    return make_bar(rounds)


register_report(
    write=write_run, render=render_notebook, describe=describe_run, progress=make_progress
)
