"""Growing stores of rows: in one tensor, or in a memory-mapped file."""

import errno
import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ..core.lock import mark_in_use


def width(first: Tensor) -> int:
    """Return the size of a row in bytes."""
    return first.numel() * first.element_size()


class TensorRows:
    """Rows in one tensor, which doubles when it is full.

    Args:
        first: A row, for shape and dtype.
        on: The device.
        room: Expected number of rows. On a CPU they are allocated at once, so that rows never have
            to move: the system provides pages only when they are written to.
    """

    def __init__(self, first: Tensor, on: torch.device, room: int = 0) -> None:
        self.rows = torch.empty((0, *first.shape), dtype=first.dtype, device=on)
        if on.type == "cpu":
            with suppress(RuntimeError):  # a system without overcommit
                self.rows = self.rows.new_empty((room, *first.shape))

    def hold(self, used: int, need: int, limit: int) -> None:
        """Make room for `need` rows, of which the first `used` are in use."""
        if len(self.rows) < need:
            room = min(max(need, 2 * len(self.rows)), limit)
            bigger = self.rows.new_empty((room, *self.rows.shape[1:]))
            bigger[:used] = self.rows[:used]
            self.rows = bigger


class MappedRows:
    """Rows in a sparse file, mapped as a whole; disk blocks are allocated as rows are used."""

    def __init__(self, first: Tensor, path: Path, room: int) -> None:
        path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        weakref.finalize(self, os.close, self._file)
        mark_in_use(self._file)
        self._first = first
        self._map(room)

    def _map(self, room: int) -> None:
        first, size = self._first, room * width(self._first)
        shape = (room, *first.shape)
        if not size:
            self.rows = torch.empty(shape, dtype=first.dtype)
            return
        os.ftruncate(self._file, size)
        self.rows = torch.frombuffer(mmap.mmap(self._file, size), dtype=first.dtype).view(shape)

    def hold(self, used: int, need: int, limit: int) -> None:
        """Make room for `need` rows, of which the first `used` are in use."""
        if len(self.rows) < need:
            self._map(min(max(need, 2 * len(self.rows)), limit))
        row = width(self._first)
        if need > used and row and hasattr(os, "posix_fallocate"):
            try:  # a full disk raises here; a write to the mapping would kill the process
                os.posix_fallocate(self._file, used * row, (need - used) * row)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not every file system can
                    raise
