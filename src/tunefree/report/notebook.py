"""A progress bar in the output of a notebook's cell."""

import html
import importlib
import sys
import time
from typing import Any

PAUSE = 0.2  # seconds between two updates, except for the last one


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar that is redrawn in place; needs a notebook, and no widgets."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._handle, self._next = None, 0.0

    def show(self, done: float, total: float, text: str, *, last: bool = False) -> None:
        """Draw the bar at `done` of `total` with a text beside it."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + PAUSE
        bar = f'<progress value="{done:g}" max="{max(total, 1):g}"></progress>'
        content = self._display.HTML(f"{bar} {html.escape(text)}")
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)
