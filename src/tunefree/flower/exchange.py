"""Requests to clients: which node hosts which client, sending, waiting, reading the answers."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ..core.errors import TunefreeError, shorten
from ..wire import Ledger
from .check import RefusedError, check_request
from .payload import HeaderValue, Payload
from .settings import Settings

log = logging.getLogger("tunefree")
T = TypeVar("T")

IDENTIFY_SECONDS = 60.0  # longest time that a new node has to identify itself
MAX_SAMPLES = 1 << 40


class Transport(Protocol):
    """Carries payloads to nodes and back."""

    def nodes(self) -> list[int]:
        """Return the numbers of the connected nodes."""

    def exchange(self, payloads: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
        """Return the answers by node, or an error message; late nodes are left out."""

    def pause(self) -> None:
        """Sleep before nodes are looked for again."""


class NodeRegistry:
    """Tracks N clients while nodes connect, leave and return with another node number."""

    def __init__(self, transport: Transport, clients: int, deadline: float) -> None:
        self.transport, self._clients = transport, clients
        self._deadline = deadline  # seconds that nodes have for an answer
        self._nodes: dict[int, int] = {}  # node of each connected client
        self._rejected: set[int] = set()  # nodes with an unusable identity
        # Nodes that did not identify themselves: number of attempts, and the next discovery to ask.
        self._unresponsive: dict[int, tuple[int, int]] = {}
        self._discoveries = 0
        self.sizes: dict[int, int] = {}  # samples of each client, as first reported
        self.columns: int | None = None  # of the clients' tables; 0 for other inputs

    def discover(self) -> None:
        """Ask newly connected nodes which client they host."""
        connected = set(self.transport.nodes())
        self._nodes = {i: node for i, node in self._nodes.items() if node in connected}
        self._rejected &= connected
        self._discoveries += 1
        new = connected - set(self._nodes.values()) - self._rejected
        new = {n for n in new if self._unresponsive.get(n, (0, 0))[1] <= self._discoveries}
        if not new:
            return
        replies = self._identify(sorted(new))
        for node in new - replies.keys():  # ask again after 2, 4, 8, ... further discoveries
            attempts = self._unresponsive.get(node, (0, 0))[0] + 1
            self._unresponsive[node] = attempts, self._discoveries + 2**attempts
        for node, reply in sorted(replies.items()):
            if isinstance(reply, str):
                log.warning("Node %d did not identify itself: %s", node, shorten(reply.rstrip(".")))
                continue
            named = ("client", "samples", "columns")
            self._register(node, *(reply.header.get(name) for name in named))

    def _register(self, node: int, client: object, samples: object, columns: object) -> None:
        if type(client) is not int or not 0 <= client < self._clients:
            reason = f"client {client!r} is none of the {self._clients} clients"
        elif type(samples) is not int or not 1 <= samples <= MAX_SAMPLES:
            reason = f"client {client} with {samples!r} samples is invalid"
        elif type(columns) is not int or self.columns not in (None, columns):
            reason = f"client {client} has {columns!r} columns, others have {self.columns}"
        elif self.sizes.get(client, samples) != samples:
            reason = (
                f"client {client} had {self.sizes[client]} samples when the run began, now it has "
                f"{samples}; start a new run for other data"
            )
        elif (other := self._nodes.get(client)) is not None and self._is_responding(other):
            reason = f"client {client} is on node {other} already, which answers"
        else:
            self.sizes[client], self.columns = samples, columns
            self._nodes[client] = node
            return
        log.warning("Node %d is refused: %s.", node, shorten(reason))
        self._rejected.add(node)

    def _is_responding(self, node: int) -> bool:
        return isinstance(self._identify([node]).get(node), Payload)

    def _identify(self, nodes: list[int]) -> dict[int, Payload | str]:
        requests = {node: Payload({"kind": "hello"}) for node in nodes}
        return self.transport.exchange(requests, min(self._deadline, IDENTIFY_SECONDS))

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every client has connected once; raise an error after `seconds`."""
        began = time.monotonic()
        while True:
            self.discover()
            if len(self.sizes) == self._clients:
                return
            if time.monotonic() - began >= seconds:
                missing = [i for i in range(self._clients) if i not in self.sizes]
                shown = ", ".join(map(str, missing[:20]))
                raise TunefreeError(
                    f"{len(missing)} of {self._clients} clients did not come within {seconds:g} s: "
                    f"{shown}. Start their nodes, or lower Settings(clients=...)."
                )
            self.transport.pause()

    def connected(self, clients: Iterable[int]) -> list[int]:
        """Return those of the clients whose node is connected."""
        self.discover()
        return [i for i in clients if i in self._nodes]

    def send(self, payloads: dict[int, Payload]) -> dict[int, Payload | str]:
        """Send payloads to clients and return the answers that arrive before the deadline."""
        if not payloads:
            return {}
        clients = {self._nodes[i]: i for i in payloads}
        requests = {node: payloads[i] for node, i in clients.items()}
        replies = self.transport.exchange(requests, self._deadline)
        return {clients[node]: reply for node, reply in replies.items() if node in clients}


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
            self.registry.transport.pause()
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
