"""Keeps freed memory in the process during a run.

Every local step allocates new rows and frees old ones. glibc returns a large freed block to the
system, and the kernel has to clear the pages of the next one, which takes several times as long as
the arithmetic on them. During a run, freed blocks are kept for reuse; at its end they are returned.
Without glibc nothing is done.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

_TRIM, _MAPS = -1, -4  # parameters of mallopt (M_TRIM_THRESHOLD, M_MMAP_MAX)
_USUAL_TRIM, _USUAL_MAPS = 64 << 20, 65536
_lock = threading.Lock()
_users = 0


@contextmanager
def keep_heap() -> Iterator[None]:
    """Keep freed blocks in the process; may be nested, and used by several threads."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _set_malloc(maps=0, trim=2**31 - 1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set_malloc(maps=_USUAL_MAPS, trim=_USUAL_TRIM)
                if (libc := _glibc()) is not None:
                    libc.malloc_trim(0)


def _set_malloc(maps: int, trim: int) -> None:
    if (libc := _glibc()) is not None:
        libc.mallopt(_MAPS, maps)
        libc.mallopt(_TRIM, trim)


@lru_cache
def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        _ = libc.gnu_get_libc_version, libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None
    return libc
