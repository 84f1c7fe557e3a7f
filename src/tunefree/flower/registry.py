"""Who is there: which node is which client, by the number in the node's own configuration."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from ..core.errors import TunefreeError
from .payload import Payload

log = logging.getLogger("tunefree")

IDENTIFY_SECONDS = 60.0  # seconds that a new node has to say who it is, at most


class Transport(Protocol):
    """Carries parcels to nodes and back."""

    def nodes(self) -> list[int]:
        """Return the numbers of the nodes that are connected."""
        ...

    def exchange(self, payloads: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
        """Return the nodes' answers, or what went wrong; nothing of those who are late."""
        ...

    def pause(self) -> None:
        """Wait a little for nodes to come."""
        ...


class NodeRegistry:
    """Keeps track of clients as nodes come, go and return under another number.

    Args:
        post: The way to the nodes.
        clients: Number of clients N.
        deadline: Seconds that a node has for an answer.
    """

    def __init__(self, transport: Transport, clients: int, deadline: float) -> None:
        self._transport, self._clients, self._deadline = transport, clients, deadline
        self._node: dict[int, int] = {}  # of each client
        self._rejected: set[int] = set()  # nodes that said something unusable
        self._unresponsive: dict[
            int, tuple[int, int]
        ] = {}  # nodes: times they were silent, when to ask
        self._discoveries = 0
        self.sizes: dict[int, int] = {}  # samples of each client, as first told

    def pause(self) -> None:
        """Wait a little."""
        self._transport.pause()

    def discover(self) -> None:
        """Ask newly connected nodes who they are."""
        there = set(self._transport.nodes())
        self._node = {i: node for i, node in self._node.items() if node in there}
        self._rejected &= there
        self._discoveries += 1
        new = there - set(self._node.values()) - self._rejected
        new = {node for node in new if self._unresponsive.get(node, (0, 0))[1] <= self._discoveries}
        if not new:
            return
        said = self._identify(sorted(new))
        for node in new - said.keys():  # asked again, but ever more seldom
            times = self._unresponsive.get(node, (0, 0))[0] + 1
            self._unresponsive[node] = times, self._discoveries + 2**times
        for node, reply in sorted(said.items()):
            if isinstance(reply, str):
                log.warning("Node %d does not say who it is: %s", node, reply.rstrip("."))
                continue
            self._register(node, reply.header.get("client"), reply.header.get("samples"))

    def _register(self, node: int, client: object, samples: object) -> None:
        if not _is_int_in(client, 0, self._clients - 1) or not _is_int_in(samples, 1, 1 << 40):
            self._reject(node, f"client {client!r} with {samples!r} samples cannot be")
            return
        assert isinstance(client, int)
        assert isinstance(samples, int)
        if self.sizes.get(client, samples) != samples:
            self._reject(
                node,
                f"client {client} had {self.sizes[client]} samples when the run began, now it has "
                f"{samples}; start a new run for other data",
            )
            return
        before = self._node.get(client)
        if before is not None and self._is_responding(before):
            self._reject(node, f"client {client} is on node {before} already, which answers")
            return
        self.sizes[client] = samples
        self._node[client] = node

    def _is_responding(self, node: int) -> bool:
        return isinstance(self._identify([node]).get(node), Payload)

    def _identify(self, nodes: list[int]) -> dict[int, Payload | str]:
        asked = {node: Payload({"kind": "hello"}) for node in nodes}
        return self._transport.exchange(asked, min(self._deadline, IDENTIFY_SECONDS))

    def _reject(self, node: int, why: str) -> None:
        log.warning("Node %d is refused: %s.", node, why)
        self._rejected.add(node)

    def wait_for_all(self, wait: float) -> None:
        """Wait until every client has been met."""
        began = time.monotonic()
        while True:
            self.discover()
            if len(self.sizes) == self._clients:
                return
            if time.monotonic() - began >= wait:
                missing = sorted(set(range(self._clients)) - self.sizes.keys())
                raise TunefreeError(
                    f"{len(missing)} of {self._clients} clients did not come within {wait:g} s: "
                    f"{', '.join(map(str, missing[:20]))}. Start their nodes, or give the number "
                    "of those there are."
                )
            self._transport.pause()

    def connected(self, clients: Iterable[int]) -> list[int]:
        """Return those of these clients whose node is connected."""
        self.discover()
        return [i for i in clients if i in self._node]

    def write(self, payloads: dict[int, Payload]) -> dict[int, Payload | str]:
        """Send parcels to clients and return what they say in time."""
        if not payloads:
            return {}
        nodes = {self._node[i]: i for i in payloads}
        said = self._transport.exchange({n: payloads[i] for n, i in nodes.items()}, self._deadline)
        return {nodes[n]: reply for n, reply in said.items() if n in nodes}


def _is_int_in(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
