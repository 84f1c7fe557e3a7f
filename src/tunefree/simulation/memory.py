"""The clients' persistent memory (control variates, error feedback), one row per client.

There is one growing store per name, with rows for the clients that have taken part; any other
client has the initial memory. The stores are on the device if all rows fit there, else in host RAM,
else in memory-mapped files. The place does not change results.
"""

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.device import measure_free_ram
from ..core.errors import ArgumentError, TunefreeError, check_int, check_known
from ..core.lock import is_unused, mark_in_use
from ..core.types import State

Place = Literal["auto", "device", "host", "file"]
TEMPORARY = "tunefree-"  # prefix of temporary folders
LARGER = "name a folder on a larger disk in TMPDIR"


class ClientMemory:
    """Memory rows of many clients.

    Args:
        first: A client's memory before its first round, without a client axis.
        clients: Population size N.
        most: Upper bound on the number of clients that will take part; None is all of them.
        place: Where rows are stored: "file" is a temporary folder, "auto" the first of device, host
            and file of which the rows of `most` clients take at most half.
    """

    def __init__(
        self,
        first: State,
        clients: int,
        *,
        most: int | None = None,
        place: Place = "auto",
    ) -> None:
        check_known("place", place, get_args(Place))
        if most is not None:
            check_int("ClientMemory", "most", most)
        self._first, self._most = first, clients if most is None else min(most, clients)
        on = next((v.device for v in first.values() if v.device.type != "cpu"), torch.device("cpu"))
        if place == "auto":
            place = _choose(on, self.bytes)
        self.place = "host" if place == "device" and on.type == "cpu" else place
        self._is_on_host = self.place == "file" or (self.place == "host" and on.type != "cpu")
        self._slot = torch.full((clients,), -1, dtype=torch.int64)
        self._worker: ThreadPoolExecutor | None = None
        self._prefetched: tuple[Tensor, Future[State]] | None = None  # ids and rows being read
        self._files: list[Path] = []
        if self.place == "file" and first:
            self._open_files()
        self._empty()

    @property
    def bytes(self) -> int:
        """Upper bound on the size of all rows in bytes."""
        return self._most * sum(v.nbytes for v in self._first.values())

    def _open_files(self) -> None:
        """Create the folder of the files, and raise an ArgumentError if its disk is too small."""
        _remove_leftovers(Path(tempfile.gettempdir()))
        with _report_disk_errors():
            home = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        self._files = [home / f"memory-{k}.rows" for k in range(len(self._first))]
        remove = weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        need, free = self.bytes * _local_processes(), shutil.disk_usage(home).free
        if need > free:
            remove()
            raise ArgumentError(
                f"The memory of {self._most:,} clients needs {need / 1e9:,.1f} GB on disk, but "
                f"{str(home.parent)!r} has {free / 1e9:,.1f} GB free. Free some space, {LARGER}, "
                "or take fewer rounds, a smaller cohort, or a method whose clients keep less."
            )

    def _empty(self) -> None:
        """Start without rows, in new stores: someone may hold a view of the old ones."""
        self._seen, self._ids = 0, GrowingRows(torch.tensor(0), torch.device("cpu"))
        self._stores: dict[str, GrowingRows | MappedRows] = {}
        for k, (name, v) in enumerate(self._first.items()):
            if self.place == "file":
                with _report_disk_errors():
                    self._stores[name] = MappedRows(v, self._files[k], self._most)
            else:
                on = v.device if self.place == "device" else torch.device("cpu")
                self._stores[name] = GrowingRows(v, on, self._most)

    def gather(self, ids: Tensor) -> State:
        """Return the rows of these clients, in their order."""
        ids = _plain(ids)
        slots = self._slot[ids]
        seen = (slots >= 0).nonzero().flatten()
        found = self._read_rows(ids, slots[seen])
        out = {n: found[n].to(v.device, non_blocking=v.is_cuda) for n, v in self._first.items()}
        if len(seen) == len(ids):
            return out
        for name, first in self._first.items():
            rows = first.expand(len(ids), *first.shape).clone()
            rows[seen] = out[name]
            out[name] = rows
        return out

    def _read_rows(self, ids: Tensor, slots: Tensor) -> State:
        if self._prefetched is not None and torch.equal(ids, self._prefetched[0]):
            future, self._prefetched = self._prefetched[1], None
            return future.result()
        if self._is_on_host:
            return _collect(self._rows(), slots, self._buffers(len(slots)))
        return {n: rows.index_select(0, slots.to(rows.device)) for n, rows in self._rows().items()}

    def _rows(self) -> State:
        return {name: store.rows for name, store in self._stores.items()}

    def _buffers(self, count: int) -> State:
        """Return new host memory; torch reuses pinned memory only after copies have finished."""
        return {
            name: torch.empty((count, *v.shape), dtype=v.dtype, pin_memory=v.is_cuda)
            for name, v in self._first.items()
        }

    def prefetch(self, ids: Tensor) -> None:
        """Start reading the rows of these clients in a thread, for the next `gather` of these ids.

        Only one set of ids is read at a time. Does nothing if rows are on the device.
        """
        ids = _plain(ids)
        if not self._is_on_host or (
            self._prefetched is not None and torch.equal(ids, self._prefetched[0])
        ):
            return
        self._cancel_prefetch()
        slots = self._slot[ids]
        slots = slots[slots >= 0]
        buffers = self._buffers(len(slots))  # here, since another thread would pin for device 0
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "tunefree-memory")
        self._prefetched = ids.clone(), self._worker.submit(_collect, self._rows(), slots, buffers)

    def _cancel_prefetch(self) -> None:
        if self._prefetched is not None:
            self._prefetched[1].cancel()
            self._prefetched = None

    def scatter(self, ids: Tensor, rows: State) -> None:
        """Store the rows of these clients; ids must not repeat."""
        if not self._first:
            return
        ids = _plain(ids)
        if self._prefetched is not None and bool(torch.isin(ids, self._prefetched[0]).any()):
            self._cancel_prefetch()
        new = ids[self._slot[ids] < 0]
        self._reserve(self._seen + len(new))
        begin, self._seen = self._seen, self._seen + len(new)
        self._ids.rows[begin : self._seen] = new
        self._slot[new] = torch.arange(begin, self._seen)
        slots = self._slot[ids]
        for name, value in self._to_store(rows).items():
            # In place: the store is N x d, too large to copy every round.
            self._stores[name].rows[slots] = value
        for name in self._first.keys() - rows.keys():
            self._stores[name].rows[begin : self._seen] = self._first[name]

    def _reserve(self, need: int) -> None:
        """Make room for `need` rows; if that fails, nothing has changed."""
        limit = self._most if need <= self._most else len(self._slot)
        for store in (self._ids, *self._stores.values()):
            with _report_disk_errors():
                store.reserve(self._seen, need, limit)

    def _to_store(self, rows: State) -> State:
        """Return rows on the device of the stores, after copies have finished."""
        if not self._is_on_host:
            return {name: v.to(self._stores[name].rows.device) for name, v in rows.items()}
        out, on = {}, None
        for name, v in rows.items():
            if v.is_cuda:
                on = v.device
                out[name] = torch.empty(v.shape, dtype=v.dtype, pin_memory=True)
                out[name].copy_(v, non_blocking=True)
            else:
                out[name] = v.cpu()
        if on is not None:
            torch.cuda.current_stream(on).synchronize()
        return out

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows in use and their client ids for a checkpoint, as views."""
        if not self._first:
            return {}
        rows = {f"memory.{name}": v[: self._seen] for name, v in self._rows().items()}
        return {"memory_ids": self._ids.rows[: self._seen], **rows}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the rows from a checkpoint; all others are dropped."""
        if not self._first:
            return
        ids = _plain(tensors["memory_ids"])
        self._cancel_prefetch()
        self._empty()
        self._slot.fill_(-1)
        self._reserve(len(ids))
        self._seen = len(ids)
        self._ids.rows[: self._seen] = ids
        self._slot[ids] = torch.arange(self._seen)
        for name, rows in self._rows().items():
            rows[: self._seen] = tensors[f"memory.{name}"]


class GrowingRows:
    """Rows in one tensor, which doubles when it is full.

    On a CPU, `room` rows are allocated at once, so that they never have to move: the system
    provides pages only when they are written to.
    """

    def __init__(self, first: Tensor, on: torch.device, room: int = 0) -> None:
        self.rows = torch.empty((0, *first.shape), dtype=first.dtype, device=on)
        if on.type == "cpu":
            with suppress(RuntimeError):  # a system without overcommit
                self.rows = self.rows.new_empty((room, *first.shape))

    def reserve(self, used: int, need: int, limit: int) -> None:
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
        first, size = self._first, room * self._first.nbytes
        shape = (room, *first.shape)
        if not size:
            self.rows = torch.empty(shape, dtype=first.dtype)
            return
        os.ftruncate(self._file, size)
        self.rows = torch.frombuffer(mmap.mmap(self._file, size), dtype=first.dtype).view(shape)

    def reserve(self, used: int, need: int, limit: int) -> None:
        """Make room for `need` rows, of which the first `used` are in use."""
        if len(self.rows) < need:
            self._map(min(max(need, 2 * len(self.rows)), limit))
        row = self._first.nbytes
        if need > used and row and hasattr(os, "posix_fallocate"):
            try:  # a full disk raises here; a write to the mapping would kill the process
                os.posix_fallocate(self._file, used * row, (need - used) * row)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not every file system can
                    raise


def _collect(stores: State, slots: Tensor, out: State) -> State:
    for name, rows in stores.items():
        torch.index_select(rows, 0, slots, out=out[name])
    return out


def _plain(ids: Tensor) -> Tensor:
    return ids.to("cpu", torch.int64)


def _choose(on: torch.device, need: int) -> Place:
    free = torch.cuda.mem_get_info(on)[0] if on.type == "cuda" else measure_free_ram()
    if on.type != "cpu" and need <= free / 2:
        return "device"
    return "host" if need * _local_processes() <= measure_free_ram() / 2 else "file"


def _local_processes() -> int:
    """Return the number of processes of this run on this machine, as set by `torchrun`."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _remove_leftovers(place: Path) -> None:
    """Remove the files left by killed processes."""
    for folder in place.glob(f"{TEMPORARY}*"):
        files = [] if folder.is_symlink() else list(folder.glob("memory-*.rows"))
        if files and all(is_unused(file) for file in files):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _report_disk_errors() -> Iterator[None]:
    """Report that the temporary folder cannot hold the files."""
    try:
        yield
    except OSError as error:
        where = repr(tempfile.gettempdir())
        raise TunefreeError(
            f"The clients' memory cannot be kept in {where}: {error.strerror or error}. "
            f"Free some space, or {LARGER}."
        ) from None
