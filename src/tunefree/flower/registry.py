"""Which node hosts which client, by the client number in the node's own configuration."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from ..core.errors import TunefreeError, shorten
from .payload import Payload

log = logging.getLogger("tunefree")

IDENTIFY_SECONDS = 60.0  # longest time that a new node has to identify itself
MAX_SAMPLES = 1 << 40


class Transport(Protocol):
    """Carries payloads to nodes and back."""

    def nodes(self) -> list[int]:
        """Return the numbers of the connected nodes."""
        ...

    def exchange(self, payloads: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
        """Return the answers by node, or an error message; late nodes are left out."""
        ...

    def pause(self) -> None:
        """Sleep before nodes are looked for again."""
        ...


class NodeRegistry:
    """Tracks N clients while nodes connect, leave and return with another node number.

    Nodes have `deadline` seconds for an answer.
    """

    def __init__(self, transport: Transport, clients: int, deadline: float) -> None:
        self._transport, self._clients, self._deadline = transport, clients, deadline
        self._nodes: dict[int, int] = {}  # node of each connected client
        self._rejected: set[int] = set()  # nodes with an unusable identity
        # Nodes that did not identify themselves: number of attempts, and the next discovery to ask.
        self._unresponsive: dict[int, tuple[int, int]] = {}
        self._discoveries = 0
        self.sizes: dict[int, int] = {}  # samples of each client, as first reported
        self.columns: int | None = None  # of the clients' tables; 0 for other inputs

    def pause(self) -> None:
        """Sleep before nodes are looked for again."""
        self._transport.pause()

    def discover(self) -> None:
        """Ask newly connected nodes which client they host."""
        connected = set(self._transport.nodes())
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
        return self._transport.exchange(requests, min(self._deadline, IDENTIFY_SECONDS))

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
            self._transport.pause()

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
        replies = self._transport.exchange(requests, self._deadline)
        return {clients[node]: reply for node, reply in replies.items() if node in clients}
