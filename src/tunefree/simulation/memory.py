"""Clients' own memory (control variates and the like), for the clients ever seen.

Rows live in one growing store per name; a client that was never seen has the first memory. The
store is on the device if all rows that may be needed fit there, else in the host's RAM, else in
memory-mapped files. Where it is changes no number.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.errors import ArgumentError, TunefreeError, check_int, unknown_name
from ..core.lock import unused
from ..core.types import State
from .rows import MappedRows, TensorRows, width

Place = Literal["auto", "device", "host", "file"]
TEMPORARY = "tunefree-"  # what temporary folders are called
LARGER = "choose a folder on a larger disk (TMPDIR, where none is given)"


class ClientMemory:
    """Memory rows of many clients.

    Args:
        first: What a client remembers before its first round, without a client axis.
        clients: Population size N.
        most: The most clients that will ever be seen, if that is known.
        place: Where rows are kept. "auto" takes the first of device, host and file that the rows
            of `most` clients fill by half at most, and without `most` the device.
        folder: Where "file" puts its files; a temporary folder without it. They are working
            memory, not a checkpoint: what is found there is overwritten, and removed at the end.
    """

    def __init__(
        self,
        first: State,
        clients: int,
        *,
        most: int | None = None,
        place: Place = "auto",
        folder: Path | None = None,
    ) -> None:
        if place not in get_args(Place):
            raise unknown_name("place", place, get_args(Place))
        if most is not None:
            check_int("ClientMemory", "most", most)
        self._first, self._most = first, clients if most is None else min(most, clients)
        self._room = 0 if most is None else self._most
        on = next((v.device for v in first.values() if v.device.type != "cpu"), torch.device("cpu"))
        if place == "auto":
            place = "device" if most is None else _choose(on, self.bytes)
        self.place = "host" if place == "device" and on.type == "cpu" else place
        self._apart = self.place == "file" or (self.place == "host" and on.type != "cpu")
        self._slot = torch.full((clients,), -1, dtype=torch.int64)
        self._worker: ThreadPoolExecutor | None = None
        self._ahead: tuple[Tensor, Future[State]] | None = None  # whose rows are on their way
        self._files: list[Path] = []
        if self.place == "file" and first:
            self._open(folder)
        self._empty()

    @property
    def bytes(self) -> int:
        """What the rows may grow to."""
        return self._most * sum(width(v) for v in self._first.values())

    def _open(self, folder: Path | None) -> None:
        """Find the files their folder, and refuse a disk that is too small."""
        if folder is None:
            _sweep(Path(tempfile.gettempdir()))
        with _disk(folder):
            home = Path(tempfile.mkdtemp(prefix=TEMPORARY)) if folder is None else Path(folder)
            home.mkdir(parents=True, exist_ok=True)
            self._files = [home / f"memory-{k}.rows" for k in range(len(self._first))]
            _remove(self._files)
        spare = [] if folder is not None else [home]
        self._finalizer = weakref.finalize(self, _remove, self._files, *spare)
        need, free = self.bytes * _neighbours(), shutil.disk_usage(home).free
        if need > free:
            self._finalizer()
            raise ArgumentError(
                f"The memory of {self._most:,} clients needs {need / 1e9:,.1f} GB on disk, but "
                f"{str(folder or home.parent)!r} has {free / 1e9:,.1f} GB free. Free some space, "
                f"{LARGER}, or take fewer rounds, a smaller cohort, or a method whose clients keep "
                "less."
            )

    def _empty(self) -> None:
        """Begin without rows. Old ones are not written over: somebody may hold a view of them."""
        self._seen, self._ids = 0, TensorRows(torch.tensor(0), torch.device("cpu"))
        self._stores: dict[str, TensorRows | MappedRows] = {}
        for k, (name, v) in enumerate(self._first.items()):
            if self.place == "file":
                with _disk(self._files[k].parent):
                    self._stores[name] = MappedRows(v, self._files[k], self._most)
            else:
                on = v.device if self.place == "device" else torch.device("cpu")
                self._stores[name] = TensorRows(v, on, self._room)

    def gather(self, ids: Tensor) -> State:
        """Return the rows of these clients, in their order."""
        ids = _plain(ids)
        slots = self._slot[ids]
        seen = (slots >= 0).nonzero().flatten()
        found = self._found(ids, slots[seen])
        out = {n: found[n].to(v.device, non_blocking=v.is_cuda) for n, v in self._first.items()}
        if len(seen) == len(ids):
            return out
        for name, first in self._first.items():
            rows = first.expand(len(ids), *first.shape).clone()
            rows[seen] = out[name]
            out[name] = rows
        return out

    def _found(self, ids: Tensor, slots: Tensor) -> State:
        if self._ahead is not None and torch.equal(ids, self._ahead[0]):
            future, self._ahead = self._ahead[1], None
            return future.result()
        if self._apart:
            return _collect(self._rows(), slots, self._buffers(len(slots)))
        return {n: rows.index_select(0, slots.to(rows.device)) for n, rows in self._rows().items()}

    def _rows(self) -> State:
        return {name: store.rows for name, store in self._stores.items()}

    def _buffers(self, count: int) -> State:
        """Return fresh memory on the host; pinned, torch reuses it only once copies are through."""
        return {
            name: torch.empty((count, *v.shape), dtype=v.dtype, pin_memory=v.is_cuda)
            for name, v in self._first.items()
        }

    def prefetch(self, ids: Tensor) -> None:
        """Begin to read the rows of these clients, for the next `gather` of the same ids.

        One set of ids is on its way at a time. Rows on the device need no reading.
        """
        ids = _plain(ids)
        if not self._apart or (self._ahead is not None and torch.equal(ids, self._ahead[0])):
            return
        self._drop()
        slots = self._slot[ids]
        slots = slots[slots >= 0]
        buffers = self._buffers(len(slots))  # here: another thread would pin through device 0
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "tunefree-memory")
        self._ahead = ids.clone(), self._worker.submit(_collect, self._rows(), slots, buffers)

    def _drop(self) -> None:
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None

    def scatter(self, ids: Tensor, rows: State) -> None:
        """Keep these rows for these clients, each named once."""
        if not self._first:
            return
        ids = _plain(ids)
        if self._ahead is not None and bool(torch.isin(ids, self._ahead[0]).any()):
            self._drop()
        new = ids[self._slot[ids] < 0]
        self._hold(self._seen + len(new))
        begin, self._seen = self._seen, self._seen + len(new)
        self._ids.rows[begin : self._seen] = new
        self._slot[new] = torch.arange(begin, self._seen)
        slots = self._slot[ids]
        for name, value in self._brought(rows).items():
            # In place: the store is N x d, a copy a round is dear.
            self._stores[name].rows[slots] = value
        for name in self._first.keys() - rows.keys():
            self._stores[name].rows[begin : self._seen] = self._first[name]

    def _hold(self, need: int) -> None:
        """Make room for so many rows; nothing has changed if there is none."""
        limit = self._most if need <= self._most else len(self._slot)
        for store in (self._ids, *self._stores.values()):
            with _disk(self._files[0].parent if self._files else None):
                store.hold(self._seen, need, limit)

    def _brought(self, rows: State) -> State:
        """Return rows where the stores are; they have arrived."""
        if not self._apart:
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
        """Return the rows in use and whose they are, for a checkpoint: views, not copies."""
        if not self._first:
            return {}
        rows = {f"memory.{name}": v[: self._seen] for name, v in self._rows().items()}
        return {"memory_ids": self._ids.rows[: self._seen], **rows}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take the rows from a checkpoint, and forget all others."""
        if not self._first:
            return
        ids = _plain(tensors["memory_ids"])
        self._drop()
        self._empty()
        self._slot.fill_(-1)
        self._hold(len(ids))
        self._seen = len(ids)
        self._ids.rows[: self._seen] = ids
        self._slot[ids] = torch.arange(self._seen)
        for name, rows in self._rows().items():
            rows[: self._seen] = tensors[f"memory.{name}"]

    def close(self) -> None:
        """Give everything back, files too; the memory must not be used again."""
        self._drop()
        self._stores = {}
        if self._worker is not None:
            self._worker.shutdown()
        if self._files:
            self._finalizer()


def _collect(stores: State, slots: Tensor, out: State) -> State:
    for name, rows in stores.items():
        torch.index_select(rows, 0, slots, out=out[name])
    return out


def _plain(ids: Tensor) -> Tensor:
    return ids.to("cpu", torch.int64)


def _choose(on: torch.device, need: int) -> Place:
    free = torch.cuda.mem_get_info(on)[0] if on.type == "cuda" else free_ram()
    if on.type != "cpu" and need <= free / 2:
        return "device"
    return "host" if need * _neighbours() <= free_ram() / 2 else "file"


def free_ram() -> int:
    """Return the bytes of RAM that may still be taken, by this machine and by this container."""
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (int((group / f"memory.{n}").read_text()) for n in ("max", "current"))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, min(free, most - used + int(facts["inactive_file"])))  # caches give way
    except (OSError, ValueError, KeyError):  # no group, or one without a limit
        return free


def _neighbours() -> int:
    """Return how many processes of this run share the machine, as `torchrun` tells."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _sweep(place: Path) -> None:
    """Remove the files of processes that were killed."""
    for folder in place.glob(f"{TEMPORARY}*"):
        files = [] if folder.is_symlink() else list(folder.glob("memory-*.rows"))
        if files and all(unused(file) for file in files):
            _remove(files, folder)


def _remove(files: list[Path], *folders: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = tempfile.gettempdir() if folder is None else folder
        raise TunefreeError(
            f"The clients' memory cannot be kept in {str(where)!r}: {error.strerror or error}. "
            f"Free some space, or {LARGER}."
        ) from None
