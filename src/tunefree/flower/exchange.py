"""One exchange with some clients: send requests, wait, read the answers, log missing clients."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..core.errors import TunefreeError, shorten
from ..wire import Ledger
from .check import RefusedError, check_request
from .payload import HeaderValue, Payload
from .registry import NodeRegistry
from .settings import Settings

log = logging.getLogger("tunefree")
T = TypeVar("T")


class TooFewError(TunefreeError):
    """Too few clients answered; the last checkpoint is intact."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request to clients, and how to read their answers."""

    t: int
    version: str  # name of the memory that the request creates; answers repeat it
    ledger: Ledger  # counts the bytes of refused answers
    need: int  # how many clients must answer
    write: Callable[[int], Payload]  # returns the message to a client
    read: Callable[[Payload], T]  # converts an answer, or raises `RefusedError`
    renew: Callable[[int], bool] | None = None  # resets a lost memory; whether to ask again
    label: str = "absent"  # the log's and history's word for clients that do not answer


@dataclass
class _Replies(Generic[T]):
    """The replies of the clients in an exchange."""

    answers: dict[int, T] = field(default_factory=dict)
    excluded: set[int] = field(default_factory=set)  # refused or lost: not asked again
    errors: dict[int, str] = field(default_factory=dict)  # of clients that did not answer


class Exchange:
    """Sends requests of a run to clients and reads their answers.

    Every message has the run's id, under which nodes store their memory, and the text of its
    `RunTerms`.
    """

    def __init__(self, registry: NodeRegistry, settings: Settings, run: str, terms: str) -> None:
        self.registry, self.settings = registry, settings
        self._run, self._terms = run, terms
        self._missing: tuple[int, set[int]] = (-2, set())  # a round, and who did not answer in it
        self._events: dict[str, set[int]] = defaultdict(set)

    def header(self, kind: str, client: int, t: int, version: str) -> dict[str, HeaderValue]:
        """Return the header of a message to a client."""
        same = {"run": self._run, "terms": self._terms}
        return {"kind": kind, "client": client, "round": t, "version": version, **same}

    def run(self, clients: list[int], request: Request[T]) -> dict[int, T]:
        """Ask clients until enough have answered, and return the answers by client.

        Clients that did not answer earlier in the round are asked only if the others are too few.

        Raises:
            TooFewError: Fewer than `request.need` clients answered in time.
        """
        t, need, replies = request.t, request.need, _Replies[T]()
        missing = self._missing[1] if self._missing[0] == t else set()
        present = [i for i in clients if i not in missing]
        todo = present if len(present) >= need else clients
        began = time.monotonic()
        while True:
            renewed = self._ask(todo, request, replies)
            if renewed:
                todo = renewed
                continue
            todo = [i for i in clients if i not in replies.answers and i not in replies.excluded]
            is_enough = len(replies.answers) >= need
            is_late = time.monotonic() - began >= self.settings.wait
            if is_enough or is_late or len(replies.answers) + len(todo) < need:
                break
            self.registry.pause()
        for i in todo:
            if i in replies.errors:  # the others were logged earlier in this round
                self._log_event(request.label, t, i, replies.errors[i])
        if not is_enough:
            raise TooFewError(
                f"Round {t} has {len(replies.answers)} of the {need} answers that it needs; the "
                "state before it is kept. Run again with the same folder to continue."
            )
        self._missing = t, (missing | set(todo) | replies.excluded) - set(replies.answers)
        return replies.answers

    def _ask(self, clients: list[int], request: Request[T], replies: _Replies[T]) -> list[int]:
        """Ask each client once, sort the replies, and return the renewed clients to ask again."""
        renewed: list[int] = []
        messages = {i: request.write(i) for i in self.registry.connected(clients)}
        received = self.registry.send(messages)
        for i in clients:
            reply = received.get(i)
            if not isinstance(reply, Payload):
                replies.errors[i] = reply or "no answer in time"
            elif reply.header.get("lost"):
                if self._renew(i, request):
                    renewed.append(i)
                else:
                    replies.excluded.add(i)
            else:
                try:
                    check_request(reply, client=i, round=request.t, version=request.version)
                    replies.answers[i] = request.read(reply)
                except RefusedError as error:
                    self._log_event("refused", request.t, i, str(error))
                    request.ledger.send_up("refused", reply.size(), 0.0)
                    replies.excluded.add(i)
        return renewed

    def _renew(self, i: int, request: Request[T]) -> bool:
        """Reset a client whose memory is lost, if the settings allow it."""
        if self.settings.lost != "renew" or request.renew is None:
            self._log_event("lost", request.t, i, "its memory is missing")
            return False
        reason = "its memory is missing; it begins anew at this model"
        self._log_event("renewed", request.t, i, reason)
        return request.renew(i)

    def _log_event(self, event: str, t: int, client: int, reason: str) -> None:
        self._events[event].add(client)
        said = shorten(reason.rstrip("."))
        log.warning("Round %d: client %d is %s: %s.", t, client, event, said)

    def events(self) -> dict[str, int]:
        """Return and clear the numbers of absent, behind, refused, lost and renewed clients."""
        found = {event: len(clients) for event, clients in self._events.items()}
        self._events.clear()
        return found
