"""What a server says, and that it is the only one to write to its folder."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import ResumeError
from ..training.callbacks import Event
from ..training.folder import Folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("tunefree")

LOG = "federation.log"  # in the run's folder: who was away, lost or refused, and why


@contextmanager
def alone(folder: Folder | None, seconds: float = 60.0) -> Iterator[None]:
    """Within it, no other server writes to the folder.

    A server whose SuperLink died may still be trying to reach it; it gives up once another
    SuperLink tells it so, hence the seconds.
    """
    if folder is None or fcntl is None:
        yield
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    with (folder.path / ".lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    raise ResumeError(
                        f"Another server is at work in {str(folder.path)!r}; end it first, or "
                        "choose another folder."
                    ) from None
                time.sleep(0.5)
        yield


def log_round(event: Event) -> None:
    """Say how a round went."""
    row = event.row
    said = [f"loss {row['train_loss']:.4f}", f"{row['answered']} answered"]
    if "test_accuracy" in row:
        said.insert(1, f"accuracy {row['test_accuracy']:.4f}")
    log.info("Round %d: %s.", event.round, ", ".join(said))


@contextmanager
def log_to_folder(folder: Folder | None) -> Iterator[None]:
    """Within it, what is said goes to the run's folder too."""
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
