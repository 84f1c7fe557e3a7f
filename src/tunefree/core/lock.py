"""A lock on a folder that is released when its holder's process ends, even by a crash.

The lock file contains the holder's process id, so that the error names the process to wait for or
to stop. It is removed on release; after a crash it stays without a lock, and the next holder takes
it over.

The package `filelock` is not used: its locks do not record the process id, and where a file system
has no locks it raises an error (ENOLCK, EOPNOTSUPP) or falls back to a file that outlives a crash.
Here such a file system means that nothing is locked.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ResumeError
from .files import open_descriptor

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked
    fcntl = None  # type: ignore[assignment]

NAME = "lock"
POLL_SECONDS = 0.5
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_held: set[int] = set()


@contextmanager
def lock_folder(folder: Path, *, seconds: float = 0.0, name: str = NAME) -> Iterator[None]:
    """Hold the lock of a folder inside a `with` block, after waiting up to `seconds` for it.

    Raises:
        ResumeError: Another process, or another block in this one, holds the lock.
    """
    path = folder / name
    file = None if fcntl is None else _acquire(path, time.monotonic() + seconds)
    if file is None:
        yield
        return
    _held.add(file)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # while it is locked, so that a waiting process notices
        _held.discard(file)
        os.close(file)


def mark_in_use(file: int) -> None:
    """Mark an open file as in use until this process ends."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_unused(path: Path) -> bool:
    """Return whether no process uses a marked file any more; False if that cannot be determined."""
    if fcntl is None:
        return False
    try:
        file = open_descriptor(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(file)


def _acquire(path: Path, end: float) -> int | None:
    """Return a descriptor of the locked file, or None if the file system has no locks."""
    while True:
        file = open_descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()}\n".encode())
                return file
            os.close(file)
        except BlockingIOError:
            pid = os.pread(file, 20, 0).decode("ascii", "replace").strip()
            os.close(file)
            if time.monotonic() >= end:
                raise _error(path.parent, pid) from None
            time.sleep(POLL_SECONDS)
        except OSError as error:
            os.close(file)
            if error.errno in _UNSUPPORTED:
                return None
            raise


def _error(folder: Path, pid: str) -> ResumeError:
    who = f"process {pid}" if pid.isdigit() else "another process"
    stop = f"stop it (kill {pid})" if pid.isdigit() else "stop it"
    return ResumeError(
        f"The run in {str(folder)!r} is being written by {who}. Wait for its end, {stop}, or give "
        "another folder."
    )


def _is_at(path: Path, file: int) -> bool:
    """Return whether an open file is still the one at its path and was not removed meanwhile."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _release_in_child() -> None:
    """Close the descriptors in a forked process, so that it does not hold its parent's locks."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
