"""The server's log: one line per round, and a copy of all lines in the run's folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..training.callbacks import Event
from ..training.folder import RunFolder

log = logging.getLogger("tunefree")

LOG = "federation.log"  # which clients were absent, lost or refused in a round, and why


def log_round(event: Event) -> None:
    """Log the loss, the accuracy and the number of answers of a round."""
    row = event.row
    parts = [f"loss {row['train_loss']:.4f}", f"{row['answered']} answered"]
    if "test_accuracy" in row:
        parts.insert(1, f"accuracy {row['test_accuracy']:.4f}")
    log.info("Round %d: %s.", event.round, ", ".join(parts))


@contextmanager
def log_to_folder(folder: RunFolder | None) -> Iterator[None]:
    """Inside a `with` block, also write the log to the run's folder, if there is one."""
    if folder is None:
        yield
        return
    handler, level = logging.FileHandler(folder.path / LOG), log.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        log.info("The server starts.")
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
