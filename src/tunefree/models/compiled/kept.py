"""What the compiler keeps between processes, in the user's cache.

PyTorch finds an entry by digests of the graph, of its own code and options, and of the device. Its
own folder is in the system's temporary one, which is emptied and shared; $TORCHINDUCTOR_CACHE_DIR
names another. An entry that cannot be loaded, such as a library that was cut off by a full disk, is
removed and compiled again.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.cache import cache_folder
from ...core.files import read_file, write_atomically

log = logging.getLogger("tunefree")

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
SECONDS = "seconds.txt"  # what the last set-up took
ATTEMPTS = 4  # at one compilation, each without the files that the last one stumbled over
SLOW = 1.0  # seconds of a compilation that are worth a line


def watch_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function whose first call, which compiles, uses the user's cache."""
    is_ready = False

    def call(*args: Any) -> Any:
        nonlocal is_ready
        if is_ready:
            return function(*args)
        folder, began = _find_folder(), time.perf_counter()
        log.info("Compiling the clients' step (%s).", _usual_time(folder))
        for left in reversed(range(ATTEMPTS)):
            try:
                out = function(*args)
                break
            except Exception as error:
                if left == 0 or not _remove_named(error, folder):
                    raise
        is_ready = True
        took = time.perf_counter() - began
        if took > SLOW:
            with suppress(OSError):
                write_atomically(folder / SECONDS, f"{took:.0f}".encode())
        return out

    return call


def _find_folder() -> Path:
    """Return the compiler's folder: the user's choice, or one in the user's cache."""
    if VARIABLE not in os.environ:
        folder = cache_folder() / "compiled"
        with suppress(OSError):  # else PyTorch's own
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                os.environ[VARIABLE] = str(folder)
        return folder
    return Path(os.environ[VARIABLE])


def _usual_time(folder: Path) -> str:
    """Return how long it takes, by the last time."""
    with suppress(OSError, ValueError):
        return f"{int(read_file(folder / SECONDS, 20))} s the last time"
    return "up to a few minutes the first time, seconds in later runs"


def _remove_named(error: BaseException, folder: Path) -> bool:
    """Remove the files of the folder that an error names; return whether there are any."""
    named = re.compile(re.escape(str(folder)) + r"[^\s:;,'\"]*")
    paths = {Path(name) for cause in _causes(error) for name in named.findall(str(cause))}
    found = [p for p in paths if p.is_file() and folder.resolve() in p.resolve().parents]
    for path in found:
        path.unlink(missing_ok=True)
    return bool(found)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
