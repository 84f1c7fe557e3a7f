"""The hostile clients of a run: who they are, and how they change what they send."""

from functools import reduce

import torch
from torch import Tensor

from ..core.random import key, purpose
from ..core.types import Channels, Rows
from ..data.federation import Federation
from .attack import Attack, AttackContext, Moments


class Behaviour:
    """How clients treat what they send. This one is honest: it changes nothing.

    A simulation calls `start` before each mean, `change_vectors` before the wire, `change_numbers`
    behind it, and both on the answers to a query.
    """

    def order(self, ids: Tensor) -> Tensor:
        """Return these clients in the order in which they must work."""
        return ids

    def start(self, ids: Tensor) -> None:
        """Start a mean over these clients."""

    def change_vectors(self, ids: Tensor, rows: Channels, t: int, what: str) -> Channels:
        """Return the channels (m, d) that these clients send in round t.

        Args:
            ids: The clients.
            rows: What honest clients would send; numbers (m,) are returned as they are.
            t: The round.
            what: Distinguishes the means of a round: "train" or "probe".
        """
        return rows

    def change_numbers(self, ids: Tensor, rows: Channels) -> Channels:
        """Return the channels with the numbers (m,) that these clients report."""
        return rows

    def measure(self, ids: Tensor) -> dict[str, float]:
        """Return measurements of a cohort for the history."""
        return {}


class Adversaries(Behaviour):
    """Some clients are hostile and follow an attack; the others are honest.

    Rows come chunk by chunk, honest clients first (`order`) if the attack sees their uploads. A
    chunk that is repeated in smaller chunks replaces what was seen of it.
    """

    def __init__(self, attack: Attack, clients: int, seed: int) -> None:
        self.attack, self._seed = attack, seed
        self.ids = attack.hostile_clients(clients, seed)
        self._hostile = torch.zeros(clients, dtype=torch.bool)
        self._hostile[self.ids] = True
        self._seen: dict[tuple[str, int], Moments] = {}
        self._counts = (0, 0)

    def poison(self, federation: Federation) -> Federation:
        """Return the data that the clients train on."""
        return self.attack.poison(federation, self.ids)

    def order(self, ids: Tensor) -> Tensor:
        if not self.attack.sees_honest:
            return ids
        return ids[torch.argsort(self._hostile[ids], stable=True)]

    def start(self, ids: Tensor) -> None:
        self._seen, self._counts = {}, (len(ids), self._count(ids))

    def change_vectors(self, ids: Tensor, rows: Channels, t: int, what: str) -> Channels:
        out = dict(rows)
        bad = self._hostile[ids].nonzero().flatten()
        for name, z in rows.items():
            if z.ndim == 1:
                continue
            honest = self._see_honest(f"{what} {name}", ids, z) if self.attack.sees_honest else None
            if not len(bad):
                continue
            theirs = z[bad.to(z.device)]
            if honest is None or not honest.count:
                honest = Moments.of(theirs)
            keys = key(self._seed, "attack", t, ids[bad], purpose(f"{what} {name}"))
            sent = self.attack.change_vectors(theirs, AttackContext(*self._counts, honest, keys))
            out[name] = z.index_copy(0, bad.to(z.device), sent)
        return out

    def change_numbers(self, ids: Tensor, rows: Channels) -> Channels:
        out, bad = dict(rows), self._hostile[ids].nonzero().flatten()
        for name, v in rows.items():
            if v.ndim == 1 and len(bad):
                at = bad.to(v.device)
                out[name] = v.index_copy(0, at, self.attack.change_numbers(name, v[at]))
        return out

    def measure(self, ids: Tensor) -> dict[str, float]:
        return {"hostile": self._count(ids)}

    def _count(self, ids: Tensor) -> int:
        return int(self._hostile[ids].sum())

    def _see_honest(self, name: str, ids: Tensor, z: Rows) -> Moments:
        """Return the moments of the honest uploads on a channel, this chunk's included."""
        self._seen[name, int(ids[0])] = Moments.of(z[(~self._hostile[ids]).to(z.device)])
        return reduce(Moments.plus, (m for (n, _), m in self._seen.items() if n == name))
