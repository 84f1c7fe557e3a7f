"""One exchange with some clients: write, wait, read, and say who is missing and why."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..core.errors import TunefreeError
from ..wire import Ledger
from .check import RefusedError
from .payload import Payload
from .registry import NodeRegistry

log = logging.getLogger("tunefree")
T = TypeVar("T")


@dataclass(frozen=True)
class FailurePolicy:
    """How a server deals with clients that fail.

    Args:
        minimum: Fewest clients of a cohort that must answer; None is half of them. Methods that
            are defined for full participation, and the pass before round 0, need everyone.
        deadline: Seconds that clients have for an answer.
        wait: Seconds after which a round is given up for want of answers.
        lost: What becomes of a client whose memory is lost: "refuse" leaves it out, "renew" lets it
            begin anew (and prepare again), though the server's share of the old memory stays.
        largest: Longest vector that is let in, in units of 1 + |x|.
    """

    minimum: int | None = None
    deadline: float = 600.0
    wait: float = 1800.0
    lost: str = "refuse"
    largest: float = 1e4

    def need(self, cohort: int, everyone: bool) -> int:
        """Return how many of a cohort must answer."""
        if everyone:
            return cohort
        return min(cohort, -(-cohort // 2) if self.minimum is None else self.minimum)


class TooFewError(TunefreeError):
    """Too few clients answered; the last checkpoint is whole."""


class Exchange:
    """Carries questions to clients and reads their answers, within a server's patience.

    Args:
        roll: Who is there.
        patience: How to deal with those who fail.
    """

    def __init__(self, registry: NodeRegistry, policy: FailurePolicy) -> None:
        self.registry, self.policy = registry, policy
        self._away: tuple[int, set[int]] = (-2, set())  # who did not answer, in which round
        self._events: dict[str, set[int]] = defaultdict(set)

    def run(
        self,
        people: list[int],
        t: int,
        write: Callable[[int], Payload],
        read: Callable[[int, Payload], T],
        need: int,
        ledger: Ledger,
        renew: Callable[[int], bool] | None = None,
        away: str = "absent",
    ) -> dict[int, T]:
        """Write to clients and return what those say who answer in time, once they are enough.

        Args:
            people: The clients.
            t: The round.
            write: Makes a client's question.
            read: Makes something of an answer, or refuses it.
            need: How many must answer.
            ledger: Where bytes are counted that were refused.
            renew: Called for a client whose memory is lost; whether to ask it again.
            away: What those are called who do not answer.
        """
        done: dict[int, T] = {}
        out: set[int] = set()  # whose answer does not count: asking again would not help
        why: dict[int, str] = {}  # of those who are away
        before = self._away[1] if self._away[0] == t else set()
        here = [i for i in people if i not in before]
        todo = here if len(here) >= need else people
        began = time.monotonic()
        while True:
            again: list[int] = []
            said = self.registry.write({i: write(i) for i in self.registry.connected(todo)})
            for i in todo:
                reply = said.get(i)
                if not isinstance(reply, Payload):
                    why[i] = reply or "no answer in time"
                elif reply.header.get("lost"):
                    renewed = self._lost(i, t, renew)
                    (again.append if renewed else out.add)(i)
                else:
                    try:
                        done[i] = read(i, reply)
                    except RefusedError as error:
                        self._note("refused", t, i, str(error))
                        ledger.send_up("refused", reply.size(), 0.0)
                        out.add(i)
            if again:
                todo = again
                continue
            todo = [i for i in people if i not in done and i not in out]
            enough = len(done) >= need
            waited = time.monotonic() - began >= self.policy.wait
            if enough or waited or len(done) + len(todo) < need:
                break
            self.registry.pause()
        for i in todo:
            if i in why:  # others were away before, in this round
                self._note(away, t, i, why[i])
        if not enough:
            raise TooFewError(
                f"Round {t} has {len(done)} of the {need} answers that it needs; the state before "
                "it is kept. Run again with the same folder to continue."
            )
        self._away = t, (before | set(todo) | out) - set(done)
        return done

    def _lost(self, i: int, t: int, renew: Callable[[int], bool] | None) -> bool:
        if self.policy.lost != "renew" or renew is None:
            self._note("lost", t, i, "its memory is not there")
            return False
        self._note("renewed", t, i, "its memory is not there; it begins anew at the present model")
        return renew(i)

    def _note(self, what: str, t: int, client: int, why: str) -> None:
        self._events[what].add(client)
        log.warning("Round %d: client %d is %s: %s.", t, client, what, why.rstrip("."))

    def events(self) -> dict[str, int]:
        """Return how many were absent, behind, refused, lost or renewed since the last call."""
        found = {what: len(who) for what, who in self._events.items()}
        self._events = defaultdict(set)
        return found
