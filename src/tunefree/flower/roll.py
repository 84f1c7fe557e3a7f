"""Who is there: which node is which client, by the number in the node's own configuration."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from ..core.errors import TunefreeError
from .parcel import Payload

log = logging.getLogger("tunefree")

HELLO = 60.0  # seconds that a new node has to say who it is, at most


class Transport(Protocol):
    """Carries parcels to nodes and back."""

    def nodes(self) -> list[int]:
        """Return the numbers of the nodes that are connected."""
        ...

    def exchange(self, parcels: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
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

    def __init__(self, post: Transport, clients: int, deadline: float) -> None:
        self._post, self._clients, self._deadline = post, clients, deadline
        self._node: dict[int, int] = {}  # of each client
        self._strange: set[int] = set()  # nodes that said something unusable
        self._silent: dict[int, tuple[int, int]] = {}  # nodes: times they were silent, when to ask
        self._met = 0
        self.sizes: dict[int, int] = {}  # samples of each client, as first told

    def pause(self) -> None:
        """Wait a little."""
        self._post.pause()

    def meet(self) -> None:
        """Ask newly connected nodes who they are."""
        there = set(self._post.nodes())
        self._node = {i: node for i, node in self._node.items() if node in there}
        self._strange &= there
        self._met += 1
        new = there - set(self._node.values()) - self._strange
        new = {node for node in new if self._silent.get(node, (0, 0))[1] <= self._met}
        if not new:
            return
        said = self._hello(sorted(new))
        for node in new - said.keys():  # asked again, but ever more seldom
            times = self._silent.get(node, (0, 0))[0] + 1
            self._silent[node] = times, self._met + 2**times
        for node, reply in sorted(said.items()):
            if isinstance(reply, str):
                log.warning("Node %d does not say who it is: %s", node, reply.rstrip("."))
                continue
            self._enter(node, reply.facts.get("client"), reply.facts.get("samples"))

    def _enter(self, node: int, client: object, samples: object) -> None:
        if not _whole(client, 0, self._clients - 1) or not _whole(samples, 1, 1 << 40):
            self._refuse(node, f"client {client!r} with {samples!r} samples cannot be")
            return
        assert isinstance(client, int)
        assert isinstance(samples, int)
        if self.sizes.get(client, samples) != samples:
            self._refuse(
                node,
                f"client {client} had {self.sizes[client]} samples when the run began, now it has "
                f"{samples}; start a new run for other data",
            )
            return
        before = self._node.get(client)
        if before is not None and self._alive(before):
            self._refuse(node, f"client {client} is on node {before} already, which answers")
            return
        self.sizes[client] = samples
        self._node[client] = node

    def _alive(self, node: int) -> bool:
        return isinstance(self._hello([node]).get(node), Payload)

    def _hello(self, nodes: list[int]) -> dict[int, Payload | str]:
        asked = {node: Payload({"kind": "hello"}) for node in nodes}
        return self._post.exchange(asked, min(self._deadline, HELLO))

    def _refuse(self, node: int, why: str) -> None:
        log.warning("Node %d is refused: %s.", node, why)
        self._strange.add(node)

    def gather(self, wait: float) -> None:
        """Wait until every client has been met."""
        began = time.monotonic()
        while True:
            self.meet()
            if len(self.sizes) == self._clients:
                return
            if time.monotonic() - began >= wait:
                missing = sorted(set(range(self._clients)) - self.sizes.keys())
                raise TunefreeError(
                    f"{len(missing)} of {self._clients} clients did not come within {wait:g} s: "
                    f"{', '.join(map(str, missing[:20]))}. Start their nodes, or give the number "
                    "of those there are."
                )
            self._post.pause()

    def reached(self, clients: Iterable[int]) -> list[int]:
        """Return those of these clients whose node is connected."""
        self.meet()
        return [i for i in clients if i in self._node]

    def write(self, parcels: dict[int, Payload]) -> dict[int, Payload | str]:
        """Send parcels to clients and return what they say in time."""
        if not parcels:
            return {}
        nodes = {self._node[i]: i for i in parcels}
        said = self._post.exchange({n: parcels[i] for n, i in nodes.items()}, self._deadline)
        return {nodes[n]: reply for n, reply in said.items() if n in nodes}


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
