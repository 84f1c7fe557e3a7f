"""Uploads on their way: made in one round, counted in a later one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import Channels, State
from ..wire import Ledger

HEAD = "late."


@dataclass(frozen=True)
class LateUpload:
    """One client's upload on its way."""

    client: int
    due: int  # the round in which it arrives
    rows: Channels  # what arrives (1, ...)
    measured: Channels  # loss and step size (1,)
    own: State  # what the client remembers from then on (1, ...)
    bill: Ledger  # what it costs


class DelayQueue:
    """Letters on their way, and who is busy until which round.

    Args:
        channels: Names of what clients send.
    """

    def __init__(self, channels: tuple[str, ...]) -> None:
        self._channels = channels
        self._letters: list[LateUpload] = []
        self._busy: dict[int, tuple[int, int]] = {}  # client: drawn in, late until
        self._played = -1  # the last round that counts

    def busy(self, t: int) -> list[int]:
        """Return the clients that cannot be drawn in round t."""
        return [i for i, (since, until) in self._busy.items() if since < t <= until]

    def engage(self, clients: Tensor, t: int, until: Tensor) -> None:
        """Note that these clients, drawn in round t, will be late."""
        self._busy = {i: e for i, e in self._busy.items() if e[1] >= t - 1}
        ends = zip(clients.tolist(), until.tolist(), strict=True)
        self._busy |= {i: (t, end) for i, end in ends}

    def due(self, t: int) -> list[LateUpload]:
        """Return what arrives in round t, by client."""
        return sorted((a for a in self._letters if a.due == t), key=lambda a: a.client)

    def settle(self, t: int, sent: list[LateUpload]) -> None:
        """Forget what has arrived in round t, and take what was sent in it."""
        self._letters = [a for a in self._letters if a.due > t] + sent
        self._played = t

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it for a checkpoint; who was drawn for the next round is drawn again."""
        busy = [(i, *e) for i, e in self._busy.items() if e[0] <= self._played < e[1]]
        out = {}
        if busy:
            out[f"{HEAD}busy"] = torch.tensor(busy)
        if not self._letters:
            return out
        letters = self._letters
        out[f"{HEAD}letters"] = torch.tensor([(a.client, a.due) for a in letters])
        sizes = [[a.bill.up[n] for n in self._channels] for a in letters]
        out[f"{HEAD}sizes"] = torch.tensor(sizes)
        out[f"{HEAD}counted"] = torch.tensor([a.bill.counted_up for a in letters]).double()
        for part in ("rows", "measured", "own"):
            for name in getattr(letters[0], part):
                found = [getattr(a, part)[name] for a in letters]
                out[f"{HEAD}{part}.{name}"] = torch.cat(found)
        return out

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Take it from a checkpoint."""
        own = {n[len(HEAD) :]: v for n, v in tensors.items() if n.startswith(HEAD)}
        self._letters, self._busy = [], {}
        if "busy" in own:
            self._busy = {i: (since, until) for i, since, until in own["busy"].tolist()}
            self._played = max(since for since, _ in self._busy.values())
        for k, (client, due) in enumerate(own["letters"].tolist() if "letters" in own else []):
            bill = Ledger()
            for name, size in zip(self._channels, own["sizes"][k].tolist(), strict=True):
                bill.send_up(name, size, 0.0)
            bill.counted_up = float(own["counted"][k])
            parts = {
                part: {
                    n[len(part) + 1 :]: v[k : k + 1].to(device)
                    for n, v in own.items()
                    if n.startswith(f"{part}.")
                }
                for part in ("rows", "measured", "own")
            }
            self._letters.append(LateUpload(client, due, bill=bill, **parts))
