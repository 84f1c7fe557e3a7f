"""Several processes: the cohort is split over ranks, and only sums are exchanged.

`torchrun` starts the same program on the same data in every process. Client i is always trained by
rank i mod size, which has its memory; every process computes the server's part.
"""

import atexit
import os
from collections import deque
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .types import Channels

# A backend thread must not hold the last reference to a piece of work: to free its tensors it needs
# the interpreter, and asking for it during shutdown aborts the program.
_held: deque[Any] = deque(maxlen=16)


@dataclass(frozen=True)
class Ranks:
    """This process among `size` processes; with one process every method is trivial."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def mine(self, ids: Tensor) -> Tensor:
        """Return the clients that this process trains."""
        return ids if self.size == 1 else ids[ids % self.size == self.rank]

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.size == 1:
            return value
        out = value.clone()
        _wait(dist.all_reduce(out, async_op=True))
        return out

    def totals(self, names: tuple[str, ...], parts: Channels, like: Channels) -> Channels:
        """Return the sums by name; a process without values adds those of `like`, zeros."""
        if self.size == 1:
            return parts
        return {n: self.total(parts[n] if n in parts else like[n]) for n in names}

    def counts(self, values: list[float]) -> list[float]:
        """Return the sums of Python numbers over all processes."""
        if self.size == 1:
            return values
        total = self.total(torch.tensor(values, dtype=torch.float64, device=_home()))
        return list(total.tolist())

    def agreed(self, value: Any) -> Any:
        """Return the value of rank 0: plain data and tensors."""
        if self.size == 1:
            return value
        file = BytesIO()
        if self.leads:
            torch.save(value, file)
        length = torch.tensor([file.getbuffer().nbytes], device=_home())
        _wait(dist.broadcast(length, 0, async_op=True))
        data = torch.empty(int(length), dtype=torch.uint8, device=_home())
        if self.leads:
            data.copy_(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        _wait(dist.broadcast(data, 0, async_op=True))
        if self.leads:
            return value
        return torch.load(BytesIO(data.cpu().numpy().tobytes()), weights_only=True)

    def gather_rows(self, ids: Tensor, rows: Channels) -> tuple[Tensor, Channels]:
        """Return the rows of all processes, concatenated."""
        if self.size == 1:
            return ids, rows
        counts = [int(n) for n in self._each(torch.tensor([len(ids)]))]
        most = max(counts)

        def joined(value: Tensor) -> Tensor:
            wide = value.new_zeros((most, *value.shape[1:]))
            wide[: len(value)] = value
            return torch.cat([p[:n] for p, n in zip(self._each(wide), counts, strict=True)])

        return joined(ids), {name: joined(value) for name, value in rows.items()}

    def _each(self, value: Tensor) -> list[Tensor]:
        sent = value.to(_home())
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        _wait(dist.all_gather(parts, sent, async_op=True))
        return [p.to(value.device) for p in parts]


def _wait(work: Any) -> None:
    work.wait()
    _held.append(work)


def _home() -> torch.device:
    """Return the device on which the backend expects tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def init_ranks() -> Ranks:
    """Return this process's rank under `torchrun`, or a single rank without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not dist.is_available():
        return Ranks()
    if not dist.is_initialized():
        gpus = torch.cuda.device_count()
        if gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        dist.init_process_group("nccl" if here <= gpus else "gloo")  # NCCL: a GPU for each process
        atexit.register(dist.destroy_process_group)  # its threads must not outlive the program
    return Ranks(dist.get_rank(), size)
