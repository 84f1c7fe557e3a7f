"""One writer for a folder: a lock that ends with the process that holds it, however that ends.

The file `lock` has the holder's process number. It is removed when the lock is given back; after
a crash it stays, held by nobody, and the next one takes it over.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ResumeError

try:
    import fcntl
except ImportError:  # another system: nothing is locked
    fcntl = None  # type: ignore[assignment]

NAME = "lock"
_CANNOT = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_held: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock within; refuse one that another process holds."""
    path = folder / NAME
    file = None if fcntl is None else _taken(path)
    if file is None:
        yield
        return
    _held.add(file)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # while it is held: whoever waits looks again
        _held.discard(file)
        os.close(file)


def mark(file: int) -> None:
    """Show that an open file is in use, for as long as this process lives."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def unused(path: Path) -> bool:
    """Return whether a marked file is in nobody's use any more; False where that is not known."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDWR)
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


def _taken(path: Path) -> int | None:
    """Return the open file that holds the lock; None on disks that cannot lock."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(path, file):
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()}\n".encode())
                return file
            os.close(file)
        except BlockingIOError:
            pid = os.pread(file, 20, 0).decode("ascii", "replace").strip()
            os.close(file)
            who = f"process {pid}" if pid.isdigit() else "another process"
            stop = f"stop it (kill {pid})" if pid.isdigit() else "stop it"
            raise ResumeError(
                f"The run in {str(path.parent)!r} is being written by {who}. Wait for its end, "
                f"{stop}, or give another folder."
            ) from None
        except OSError as error:
            os.close(file)
            if error.errno in _CANNOT:
                return None
            raise


def _same(path: Path, file: int) -> bool:
    """Whether a file is still the one at its path, not one that was removed meanwhile."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """Keep a forked process from holding the lock beyond its parent's end."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
