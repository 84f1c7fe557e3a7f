"""One exchange with some clients: send requests, wait, read the answers, log missing clients."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..core.errors import TunefreeError
from ..wire import Ledger
from .check import RefusedError
from .payload import Payload
from .registry import NodeRegistry

log = logging.getLogger("tunefree")
T = TypeVar("T")


@dataclass(frozen=True)
class FailurePolicy:
    """How the server treats clients that fail.

    Args:
        minimum: Fewest clients of a cohort that must answer; None is half of the cohort. Methods
            that need full participation, and the preparation before round 0, need all clients.
        deadline: Seconds that clients have for an answer.
        wait: Seconds after which a round without enough answers is given up.
        lost: "refuse" excludes a client whose memory is lost; "renew" lets it start with a new
            memory (and prepare again), while the server keeps its share of the old memory.
        largest: Largest norm of a vector that is accepted, in units of 1 + |x|.
    """

    minimum: int | None = None
    deadline: float = 600.0
    wait: float = 1800.0
    lost: str = "refuse"
    largest: float = 1e4

    def min_answers(self, cohort: int, everyone: bool) -> int:
        """Return how many clients of a cohort must answer."""
        if everyone:
            return cohort
        return min(cohort, -(-cohort // 2) if self.minimum is None else self.minimum)


class TooFewError(TunefreeError):
    """Too few clients answered; the last checkpoint is intact."""


@dataclass
class _Replies(Generic[T]):
    """The replies of the clients in an exchange."""

    answers: dict[int, T] = field(default_factory=dict)
    excluded: set[int] = field(default_factory=set)  # refused or lost: not asked again
    errors: dict[int, str] = field(default_factory=dict)  # of clients that did not answer


class Exchange:
    """Sends requests to clients and reads their answers.

    Args:
        registry: The connected clients.
        policy: How to treat clients that fail.
    """

    def __init__(self, registry: NodeRegistry, policy: FailurePolicy) -> None:
        self.registry, self.policy = registry, policy
        self._missing: tuple[int, set[int]] = (-2, set())  # a round, and who did not answer in it
        self._events: dict[str, set[int]] = defaultdict(set)

    def run(
        self,
        clients: list[int],
        t: int,
        write: Callable[[int], Payload],
        read: Callable[[int, Payload], T],
        need: int,
        ledger: Ledger,
        renew: Callable[[int], bool] | None = None,
        label: str = "absent",
    ) -> dict[int, T]:
        """Ask clients until enough have answered, and return the answers by client.

        Clients that did not answer earlier in the round are asked only if the others are too few.

        Args:
            clients: The clients to ask.
            t: The round.
            write: Returns the request to a client.
            read: Converts an answer, or raises `RefusedError`.
            need: How many clients must answer.
            ledger: Counts the bytes of refused answers.
            renew: Resets a client whose memory is lost; returns whether to ask it again.
            label: The log's and history's word for clients that do not answer.

        Raises:
            TooFewError: Fewer than `need` clients answered in time.
        """
        replies: _Replies[T] = _Replies()
        missing = self._missing[1] if self._missing[0] == t else set()
        present = [i for i in clients if i not in missing]
        todo = present if len(present) >= need else clients
        began = time.monotonic()
        while True:
            renewed = self._ask(todo, t, write, read, ledger, renew, replies)
            if renewed:
                todo = renewed
                continue
            todo = [i for i in clients if i not in replies.answers and i not in replies.excluded]
            is_enough = len(replies.answers) >= need
            is_late = time.monotonic() - began >= self.policy.wait
            if is_enough or is_late or len(replies.answers) + len(todo) < need:
                break
            self.registry.pause()
        for i in todo:
            if i in replies.errors:  # the others were logged earlier in this round
                self._log_event(label, t, i, replies.errors[i])
        if not is_enough:
            raise TooFewError(
                f"Round {t} has {len(replies.answers)} of the {need} answers that it needs; the "
                "state before it is kept. Run again with the same folder to continue."
            )
        self._missing = t, (missing | set(todo) | replies.excluded) - set(replies.answers)
        return replies.answers

    def _ask(
        self,
        clients: list[int],
        t: int,
        write: Callable[[int], Payload],
        read: Callable[[int, Payload], T],
        ledger: Ledger,
        renew: Callable[[int], bool] | None,
        replies: _Replies[T],
    ) -> list[int]:
        """Ask each client once, sort the replies, and return the renewed clients to ask again."""
        renewed: list[int] = []
        received = self.registry.send({i: write(i) for i in self.registry.connected(clients)})
        for i in clients:
            reply = received.get(i)
            if not isinstance(reply, Payload):
                replies.errors[i] = reply or "no answer in time"
            elif reply.header.get("lost"):
                if self._renew(i, t, renew):
                    renewed.append(i)
                else:
                    replies.excluded.add(i)
            else:
                try:
                    replies.answers[i] = read(i, reply)
                except RefusedError as error:
                    self._log_event("refused", t, i, str(error))
                    ledger.send_up("refused", reply.size(), 0.0)
                    replies.excluded.add(i)
        return renewed

    def _renew(self, i: int, t: int, renew: Callable[[int], bool] | None) -> bool:
        """Reset a client whose memory is lost, if the policy allows it."""
        if self.policy.lost != "renew" or renew is None:
            self._log_event("lost", t, i, "its memory is missing")
            return False
        self._log_event("renewed", t, i, "its memory is missing; it begins anew at this model")
        return renew(i)

    def _log_event(self, event: str, t: int, client: int, reason: str) -> None:
        self._events[event].add(client)
        log.warning("Round %d: client %d is %s: %s.", t, client, event, reason.rstrip("."))

    def events(self) -> dict[str, int]:
        """Return and clear the numbers of absent, behind, refused, lost and renewed clients."""
        found = {event: len(clients) for event, clients in self._events.items()}
        self._events = defaultdict(set)
        return found
