"""The hostile clients of a run: who they are, and what becomes of what they send."""

import torch
from torch import Tensor

from ..core.random import key, purpose
from ..core.types import Channels
from ..data.federation import Federation
from .attack import Attack, AttackContext
from .moments import Moments


class Adversaries:
    """All clients of a run, some of them hostile.

    Rows come chunk by chunk, honest ones first (`order`) where the attack sees them. A chunk that
    is worked on again in smaller ones replaces what was seen of it.

    Args:
        attack: What hostile clients do.
        clients: How many there are.
        seed: The run's.
    """

    def __init__(self, attack: Attack, clients: int, seed: int) -> None:
        self.attack, self._seed = attack, seed
        self.ids = attack.who(clients, seed)
        self._hostile = torch.zeros(clients, dtype=torch.bool)
        self._hostile[self.ids] = True
        self._seen: dict[tuple[str, int], Moments] = {}
        self._counts = (0, 0)

    def poisoned(self, federation: Federation) -> Federation:
        """Return the data as the clients train on it."""
        return self.attack.data(federation, self.ids)

    def count(self, ids: Tensor) -> int:
        """Return how many of these are hostile."""
        return int(self._hostile[ids].sum())

    def order(self, ids: Tensor) -> Tensor:
        """Return the clients in the order in which they must work."""
        if not self.attack.sees:
            return ids
        return ids[torch.argsort(self._hostile[ids], stable=True)]

    def gather(self, ids: Tensor) -> None:
        """Begin a mean over these clients."""
        self._seen, self._counts = {}, (len(ids), self.count(ids))

    def forget(self) -> None:
        """Begin another mean over the same clients."""
        self._seen = {}

    def spoil(self, ids: Tensor, rows: Channels, round: int, what: str) -> Channels:
        """Return vectors as they are sent (m, d), with what hostile clients made of theirs.

        Args:
            ids: Whose they are.
            rows: Vectors, and numbers, which stay as they are.
            round: The round.
            what: Tells means of a round apart.
        """
        out = dict(rows)
        bad = self._hostile[ids].nonzero().flatten()
        for name, z in rows.items():
            if z.ndim == 1:
                continue
            honest = self._honest(f"{what} {name}", ids, z) if self.attack.sees else None
            if not len(bad):
                continue
            theirs = z[bad.to(z.device)]
            if honest is None or not honest.count:
                honest = Moments.of(theirs)
            keys = key(self._seed, "attack", round, ids[bad], purpose(f"{what} {name}"))
            sent = self.attack.vectors(theirs, AttackContext(*self._counts, honest, keys))
            out[name] = z.index_copy(0, bad.to(z.device), sent)
        return out

    def _honest(self, name: str, ids: Tensor, z: Tensor) -> Moments:
        """Return what honest clients send on a channel, as far as it has come."""
        self._seen[name, int(ids[0])] = Moments.of(z[(~self._hostile[ids]).to(z.device)])
        parts = [m for (n, _), m in self._seen.items() if n == name]
        total = parts[0]
        for m in parts[1:]:
            total = total.plus(m)
        return total

    def lie(self, ids: Tensor, rows: Channels) -> Channels:
        """Return numbers as they arrive (m,), with what hostile clients made of theirs."""
        out, bad = dict(rows), self._hostile[ids].nonzero().flatten()
        for name, v in rows.items():
            if v.ndim == 1 and len(bad):
                at = bad.to(v.device)
                out[name] = v.index_copy(0, at, self.attack.numbers(name, v[at]))
        return out
