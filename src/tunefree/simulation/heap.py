"""Large buffers that come and go stay with the process while a run goes on.

Every step makes new rows and drops old ones. glibc returns a large block to the system when it is
freed, and the next one begins with pages that the kernel has to clear, which takes several times
as long as the arithmetic on them. While a run goes on, freed blocks are kept for the next; at its
end they are given back. Elsewhere than on Linux with glibc nothing is done.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

_TRIM, _MAPS = -1, -4  # mallopt's names for its settings, and glibc's own values of them
_USUAL_TRIM, _USUAL_MAPS = 64 << 20, 65536
_lock = threading.Lock()
_users = 0


@contextmanager
def keep_heap() -> Iterator[None]:
    """Keep freed blocks within; may be nested, and used by several threads."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _tell(maps=0, trim=2**31 - 1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _tell(maps=_USUAL_MAPS, trim=_USUAL_TRIM)
                if (libc := _glibc()) is not None:
                    libc.malloc_trim(0)


def _tell(maps: int, trim: int) -> None:
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
