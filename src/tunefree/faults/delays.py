"""Late uploads: sent in one round, counted in a later one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import Channels, State, select_prefix
from ..wire import Ledger


@dataclass(frozen=True)
class LateUpload:
    """One client's late upload."""

    client: int
    due: int  # the round in which it arrives
    rows: Channels  # that arrive (1, ...)
    measured: Channels  # loss and step size (1,)
    own: State  # the client's memory from then on (1, ...)
    ledger: Ledger  # bytes of the upload


class DelayQueue:
    """Uploads on these channels that have not arrived, and clients that are busy until they do."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self._channels = channels
        self._uploads: list[LateUpload] = []
        self._busy: dict[int, tuple[int, int]] = {}  # client: (sampled in, late until)
        self._last = -1  # the last round that was committed

    def busy(self, t: int) -> list[int]:
        """Return the clients that cannot be sampled in round t."""
        return [i for i, (since, until) in self._busy.items() if since < t <= until]

    def engage(self, clients: Tensor, t: int, until: Tensor) -> None:
        """Mark clients that were sampled in round t as busy until the given rounds."""
        self._busy = {i: e for i, e in self._busy.items() if e[1] >= t - 1}
        ends = zip(clients.tolist(), until.tolist(), strict=True)
        self._busy |= {i: (t, end) for i, end in ends}

    def due(self, t: int) -> list[LateUpload]:
        """Return the uploads that arrive in round t, ordered by client."""
        return sorted((a for a in self._uploads if a.due == t), key=lambda a: a.client)

    def settle(self, t: int, sent: list[LateUpload]) -> None:
        """Remove the uploads that arrived in round t, and add those sent in it."""
        self._uploads = [a for a in self._uploads if a.due > t] + sent
        self._last = t

    def state(self) -> dict[str, Tensor]:
        """Return the queue for a checkpoint; a cohort sampled ahead is sampled again on resume."""
        busy = [(i, *e) for i, e in self._busy.items() if e[0] <= self._last < e[1]]
        uploads, out = self._uploads, {}
        if busy:
            out["late.busy"] = torch.tensor(busy)
        if not uploads:
            return out
        out["late.uploads"] = torch.tensor([(a.client, a.due) for a in uploads])
        sizes = [[a.ledger.up[n] for n in self._channels] for a in uploads]
        out["late.sizes"] = torch.tensor(sizes)
        out["late.counted"] = torch.tensor([a.ledger.counted_up for a in uploads]).double()
        for part in ("rows", "measured", "own"):
            for name in getattr(uploads[0], part):
                found = [getattr(a, part)[name] for a in uploads]
                out[f"late.{part}.{name}"] = torch.cat(found)
        return out

    def load_state(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore the queue from a checkpoint."""
        own = select_prefix(tensors, "late")
        self._uploads, self._busy = [], {}
        if "busy" in own:
            self._busy = {i: (since, until) for i, since, until in own["busy"].tolist()}
            self._last = max(since for since, _ in self._busy.values())
        for k, (client, due) in enumerate(own["uploads"].tolist() if "uploads" in own else []):
            ledger = Ledger()
            for name, size in zip(self._channels, own["sizes"][k].tolist(), strict=True):
                ledger.send_up(name, size, 0.0)
            ledger.counted_up = float(own["counted"][k])
            parts: dict[str, Channels] = {}
            for part in ("rows", "measured", "own"):
                stored = select_prefix(own, part)
                parts[part] = {n: v[k : k + 1].to(device) for n, v in stored.items()}
            self._uploads.append(LateUpload(client, due, ledger=ledger, **parts))
