"""Clients' own memory (control variates and the like), for the clients ever seen.

Rows live in one growing tensor per name; a client that was never seen has the first memory.
"""

import torch
from torch import Tensor

from ..types import State


class Memory:
    """Memory rows of many clients.

    Args:
        first: What a client remembers before its first round, without a client axis.
        clients: Population size N.
    """

    def __init__(self, first: State, clients: int) -> None:
        self._first = first
        self._slot = torch.full((clients,), -1, dtype=torch.int64)
        self._ids: list[int] = []
        self._rows = {name: v.new_empty((0, *v.shape)) for name, v in first.items()}

    def gather(self, ids: Tensor) -> State:
        """Return the rows of these clients, in their order."""
        slots = self._slot[ids]
        seen = (slots >= 0).nonzero().flatten()
        out = {}
        for name, first in self._first.items():
            rows = first.expand(len(ids), *first.shape).clone()
            rows[seen] = self._rows[name][slots[seen]]
            out[name] = rows
        return out

    def scatter(self, ids: Tensor, rows: State) -> None:
        """Keep these rows for these clients."""
        if not self._first:
            return
        new = ids[self._slot[ids] < 0]
        self._slot[new] = len(self._ids) + torch.arange(len(new))
        self._ids += new.tolist()
        self._grow(len(self._ids))
        slots = self._slot[ids]
        for name, value in rows.items():
            self._rows[name][slots] = value  # in place: the store is N x d, a copy a round is dear

    def _grow(self, need: int) -> None:
        for name, rows in self._rows.items():
            if rows.shape[0] < need:
                room = min(max(need, 2 * rows.shape[0]), len(self._slot))
                bigger = rows.new_zeros((room, *rows.shape[1:]))
                bigger[: rows.shape[0]] = rows
                self._rows[name] = bigger

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows in use and whose they are, for a checkpoint."""
        if not self._first:
            return {}
        n = len(self._ids)
        rows = {f"memory.{name}": v[:n] for name, v in self._rows.items()}
        return {"memory_ids": torch.tensor(self._ids, dtype=torch.int64), **rows}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take the rows from a checkpoint."""
        if not self._first:
            return
        ids = tensors["memory_ids"]
        rows = {n: tensors[f"memory.{n}"].to(v.device) for n, v in self._first.items()}
        self.__init__(self._first, len(self._slot))  # type: ignore[misc]
        self.scatter(ids, rows)
