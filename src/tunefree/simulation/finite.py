"""Clients whose numbers are not finite: found without waiting for the device, and left out.

As in a real federation, such a client is refused for the round: means are over the others, its
memory stays as it was, and the history counts it under `refused`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from ..clients.rule import LocalResult
from ..core.types import Channels, Rows, State

log = logging.getLogger("tunefree")

SHOWN = 10  # clients named in a line
MISSING = "missing"  # the share of the weight that did not answer, beside the answers' mean


def traces(works: Sequence[LocalResult], *channels: Channels) -> Rows:
    """Return a number for each client (m,) that is finite if all of its numbers are.

    They stay on the device, to be read along with a round's other numbers.

    Args:
        works: The record of their work, of which the losses count.
        channels: What they sent and what they remember.
    """
    rows = [work.loss for work in works]
    rows += [v for found in channels for v in found.values() if v.is_floating_point()]
    found = torch.stack([_trace(v).double() for v in rows]).sum(0)
    if found.is_cuda or bool(torch.isfinite(found).all()):
        return found
    fine = torch.stack([torch.isfinite(v.reshape(len(v), -1)).all(1) for v in rows]).all(0)
    return torch.where(fine, 0.0, torch.nan).double()  # sums may overflow where no term does


def settled(what: str, rows: Rows) -> tuple[Channels, Rows]:
    """Return answers (m, ...) with zeros for those that are not finite, and the clients' traces.

    Where some are not, the channel `MISSING` has a 1 for them, so that its mean is their weight.
    """
    found = traces((), {what: rows})
    good = torch.isfinite(found)
    if not found.is_cuda and bool(good.all()):
        return {what: rows}, found
    whole = good.reshape(-1, *[1] * (rows.ndim - 1))
    return {what: torch.where(whole, rows, 0.0), MISSING: (~good).to(rows.dtype)}, found


class PendingChecks:
    """Answers to questions whose numbers nobody has looked at yet."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Tensor, Rows]] = []

    def note(self, t: int, ids: Tensor, trace: Rows) -> None:
        """Keep the traces of these clients' answers in round t."""
        self._found.append((t, ids, trace))

    def traces(self) -> list[Rows]:
        """Return the traces, to be read with a round's other numbers."""
        return [trace for _, _, trace in self._found]

    def read(self, said: Sequence[float]) -> None:
        """Say who was left out, given the values of all traces end to end."""
        bad: dict[int, set[int]] = {}
        for t, ids, trace in self._found:
            bad.setdefault(t, set()).update(odd(ids, said[: len(trace)]).tolist())
            said = said[len(trace) :]
        self._found = []
        for t, who in bad.items():
            if who:
                refused(t, torch.tensor(sorted(who)), "the answer to a question is NaN or Inf")


def _trace(v: Rows) -> Rows:
    if v.ndim == 1:
        return v
    if v.is_cuda:  # nobody looks again, so it must be exact
        wide = v.flatten(1)
        return wide.abs().amax(1) if v.dtype == torch.float64 else wide.sum(1, dtype=torch.float64)
    return v.flatten(1).sum(1)  # the fastest: one pass, no memory


def odd(ids: Tensor, found: Sequence[float]) -> Tensor:
    """Return those of these clients whose trace is not finite."""
    return ids[[i for i, v in enumerate(found) if not math.isfinite(v)]]


def others(part: Tensor, without: Tensor) -> Tensor:
    """Return the places of those clients of a chunk that are not left out."""
    return (~torch.isin(part, without)).nonzero().flatten()


def picked(
    places: Tensor, sent: Channels, own: State, before: State, works: Sequence[LocalResult]
) -> tuple[Channels, State, State, list[LocalResult]]:
    """Return the rows of some clients of a chunk, by their places in it."""
    each = [{n: _at(v, places) for n, v in rows.items()} for rows in (sent, own, before)]
    return each[0], each[1], each[2], [_some(work, places) for work in works]


def _some(work: LocalResult, places: Tensor) -> LocalResult:
    rows = {f.name: getattr(work, f.name) for f in fields(work)}
    kept = {n: _at(v, places) for n, v in rows.items() if isinstance(v, Tensor)}
    scratch = {n: _at(v, places) for n, v in work.scratch.items()}
    return replace(work, **kept, scratch=scratch)


def _at(rows: Rows, places: Tensor) -> Rows:
    return rows.index_select(0, places.to(rows.device))


def refused(t: int, ids: Tensor, why: str) -> None:
    """Say who is left out of a round."""
    some = ", ".join(str(i) for i in ids[:SHOWN].tolist())
    who = f"client {some} is" if len(ids) == 1 else f"clients {some} are"
    if len(ids) > SHOWN:
        who = f"clients {some} and {len(ids) - SHOWN} others are"
    log.warning("Round %d: %s refused: %s.", t, who, why)
