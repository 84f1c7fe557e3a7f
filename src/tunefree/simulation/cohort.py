"""What the clients of a cohort return, and clients whose numbers are not finite.

Results are summed chunk by chunk, and non-finite numbers are found, without waiting for the device.
As in a real federation, a client that has some is refused for the round: means are over the other
clients, its memory does not change, and the history counts it under `refused`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..clients.rule import LocalResult
from ..core.types import Channels, Rows, State
from ..server.aggregate import Aggregation
from ..wire import Ledger
from .context import WORK_COUNTS, count_work

log = logging.getLogger("tunefree")

SHOWN = 10  # clients in a log message
MISSING = "missing"  # channel whose mean is the weight of the clients with non-finite answers


MemoryRows: TypeAlias = list[tuple[Tensor, State]]
"""New memory of clients: the ids of a chunk, and one row for each of them."""


@dataclass(frozen=True)
class ChunkResult:
    """What a chunk of clients returned."""

    ids: Tensor
    sent: Channels  # uploads before the wire; empty if no mean is echoed to the clients
    arrived: Channels  # uploads behind the wire
    own: State  # the clients' new memory
    works: list[LocalResult]  # one per phase
    ledger: Ledger


class CohortSums:
    """Means, work and checksums of a cohort; they stay on the device until they are read.

    `weight` is the weight of the clients that count in round t.
    """

    def __init__(self, aggregate: Aggregation, weight: float, t: int, device: torch.device) -> None:
        self._mean, self._measured = (aggregate(weight, t, w) for w in ("train", "measured"))
        self._work = torch.zeros(len(WORK_COUNTS), dtype=torch.float64, device=device)
        self._checksums: list[Tensor] = []

    def add(self, p: Tensor, chunk: ChunkResult) -> None:
        """Add the clients of a chunk with weights p (m,)."""
        works = chunk.works
        self._checksums.append(checksums(works, chunk.arrived, chunk.own))
        self._mean.add(p, chunk.arrived)
        loss, lr = (sum(getattr(w, n) for w in works) / len(works) for n in ("loss", "lr"))
        self._measured.add(p, {"loss": loss, "lr": lr})
        for work in works:
            self._work += count_work(work)

    def find_nonfinite(self, ids: Tensor) -> Tensor:
        """Return the clients with non-finite numbers; this waits for the device."""
        return find_nonfinite(ids, torch.cat(self._checksums).tolist())

    def means(self) -> Channels:
        """Return the means of the uploads."""
        return self._mean.result()

    def numbers(self, more: list[Tensor]) -> Tensor:
        """Return `WORK_COUNTS`, mean loss, mean lr, checksums and `more` as one tensor."""
        found, work = self._measured.result(), self._work
        means = [found[n].double() for n in ("loss", "lr") if n in found]
        return torch.cat([work, torch.stack(means or [work[0] * 0] * 2), *self._checksums, *more])


def checksums(works: Sequence[LocalResult], *channels: Channels) -> Rows:
    """Return one number per client (m,) that is finite if and only if all its numbers are.

    The numbers are the losses of local work, uploads and memory. The result stays on the device, to
    be read together with a round's other numbers.
    """
    rows = [work.loss for work in works]
    rows += [v for found in channels for v in found.values() if v.is_floating_point()]
    found = torch.stack([_checksum(v).double() for v in rows]).sum(0)
    if found.is_cuda or bool(torch.isfinite(found).all()):
        return found
    fine = torch.stack([torch.isfinite(v.reshape(len(v), -1)).all(1) for v in rows]).all(0)
    return torch.where(fine, 0.0, torch.nan).double()  # a sum may overflow although no term does


def mask_nonfinite(what: str, rows: Rows) -> tuple[Channels, Rows]:
    """Return answers (m, ...) with zeros for non-finite ones, and the clients' checksums.

    If some are not finite, the channel `MISSING` is 1 for them, so that its mean is their weight.
    """
    found = checksums((), {what: rows})
    good = torch.isfinite(found)
    if not found.is_cuda and bool(good.all()):
        return {what: rows}, found
    whole = good.reshape(-1, *[1] * (rows.ndim - 1))
    return {what: torch.where(whole, rows, 0.0), MISSING: (~good).to(rows.dtype)}, found


class PendingChecks:
    """Checksums of query answers that have not been read from the device yet."""

    def __init__(self, refused: "RefusedClients") -> None:
        self._found: list[tuple[int, Tensor, Rows]] = []
        self._refused = refused

    def add(self, t: int, ids: Tensor, sums: Rows) -> None:
        """Add the checksums of these clients' answers in round t."""
        self._found.append((t, ids, sums))

    def checksums(self) -> list[Rows]:
        """Return the checksums, to be read with a round's other numbers."""
        return [sums for _, _, sums in self._found]

    def report(self, values: Sequence[float]) -> None:
        """Log who was left out, given the values of all checksums end to end; then forget them."""
        bad: dict[int, set[int]] = {}
        for t, ids, sums in self._found:
            bad.setdefault(t, set()).update(find_nonfinite(ids, values[: len(sums)]).tolist())
            values = values[len(sums) :]
        self._found = []
        for t, who in bad.items():
            if who:
                why = "the answer to a query is NaN or Inf"
                self._refused.log(t, torch.tensor(sorted(who)), why)


def _checksum(v: Rows) -> Rows:
    if v.ndim == 1:
        return v
    if v.is_cuda:  # must be exact: it is not checked again, since that would wait for the device
        wide = v.flatten(1)
        return wide.abs().amax(1) if v.dtype == torch.float64 else wide.sum(1, dtype=torch.float64)
    return v.flatten(1).sum(1)  # the fastest: one pass, no memory


def find_nonfinite(ids: Tensor, sums: Sequence[float]) -> Tensor:
    """Return the clients whose checksum is not finite."""
    return ids[[i for i, v in enumerate(sums) if not math.isfinite(v)]]


def positions_without(ids: Tensor, excluded: Tensor) -> Tensor:
    """Return the positions in `ids` of the clients that are not excluded."""
    return (~torch.isin(ids, excluded)).nonzero().flatten()


def select_clients(
    places: Tensor, sent: Channels, own: State, before: State, works: Sequence[LocalResult]
) -> tuple[Channels, State, State, list[LocalResult]]:
    """Return the rows of some clients of a chunk, by their positions in it."""
    each = [{n: _at(v, places) for n, v in rows.items()} for rows in (sent, own, before)]
    return each[0], each[1], each[2], [_select_work(work, places) for work in works]


def _select_work(result: LocalResult, places: Tensor) -> LocalResult:
    rows = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "x"}
    kept: dict[str, Any] = {n: _at(v, places) for n, v in rows.items() if isinstance(v, Tensor)}
    scratch = {n: _at(v, places) for n, v in result.scratch.items()}
    return replace(result, **kept, scratch=scratch)


def _at(rows: Rows, places: Tensor) -> Rows:
    return rows.index_select(0, places.to(rows.device))


class RefusedClients:
    """Logs clients that are left out: the first time at once, all further ones in one summary."""

    def __init__(self, names: Sequence[int | str]) -> None:
        self._names = names
        self._rounds: dict[int, set[int]] = {}  # of each client

    def log(self, t: int, ids: Tensor, why: str) -> None:
        """Note, and log, which clients are left out of a round."""
        level = logging.INFO if self._rounds else logging.WARNING
        for i in ids.tolist():
            self._rounds.setdefault(i, set()).add(t)
        verb, who = "is" if len(ids) == 1 else "are", [self._names[i] for i in ids.tolist()]
        log.log(level, "Round %d: %s %s refused: %s.", t, name_clients(who), verb, why)

    def summary(self) -> str | None:
        """Return who was left out, and how often, if that happened in several rounds."""
        rounds = sorted(set().union(*self._rounds.values()))
        if len(rounds) < 2:
            return None
        often = sorted(self._rounds, key=lambda i: (-len(self._rounds[i]), i))
        return (
            f"In {len(rounds)} rounds from {rounds[0]} to {rounds[-1]}, clients were refused whose "
            f"numbers were NaN or Inf: {name_clients([self._names[i] for i in often])}."
        )


def name_clients(ids: Sequence[int | str]) -> str:
    """Return clients as text, the first ten by name.

    >>> name_clients(range(12))
    'clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 others'
    """
    some = ", ".join(map(str, ids[:SHOWN]))
    if len(ids) == 1:
        return f"client {some}"
    return f"clients {some}" + (f" and {len(ids) - SHOWN} others" if len(ids) > SHOWN else "")
