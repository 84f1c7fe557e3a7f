"""Flower's two apps, made of ours: parcels as Flower's records, and its grid as our post.

Flower is imported where it is used, so that all else works without it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from ..core.errors import ArgumentError, first_line
from ..methods import Method
from ..models.problem import Loss
from .node import Load, Node, client_number
from .payload import EncodedArray, Payload
from .serve import serve
from .settings import Settings

log = logging.getLogger("tunefree")

POLL_SECONDS = 0.5  # seconds between two looks for answers, at most; Flower's own loop takes 3


def import_flower(part: str = "app") -> Any:
    """Return a part of Flower."""
    try:
        return import_module(f"flwr.{part}")
    except ImportError as error:
        raise ArgumentError(
            f"A real federation needs Flower ({first_line(error)}): pip install 'tunefree[flower]'."
        ) from None


def to_records(payload: Payload) -> Any:
    """Return a parcel as Flower's records."""
    f = import_flower()
    arrays = {
        name: f.Array(dtype=raw.dtype, shape=raw.shape, stype=f"tunefree.{raw.form}", data=raw.data)
        for name, raw in payload.arrays.items()
    }
    return f.RecordDict(
        {
            "header": f.ConfigRecord(dict(payload.header)),
            "channels": f.ArrayRecord(arrays),
            "scalars": f.MetricRecord(dict(payload.scalars)),
            "metrics": f.MetricRecord(dict(payload.metrics)),
        }
    )


def from_records(content: Any) -> Payload:
    """Undo `to_records`; what a stranger may have left out or added is not read."""
    f = import_flower()

    def of(name: str, kind: type) -> Any:
        found = content.get(name)
        return found if isinstance(found, kind) else {}

    arrays = {
        str(name): EncodedArray(
            str(a.dtype), tuple(a.shape), str(a.stype).removeprefix("tunefree."), bytes(a.data)
        )
        for name, a in of("channels", f.ArrayRecord).items()
    }
    numbers = (dict(of(name, f.MetricRecord).items()) for name in ("scalars", "metrics"))
    return Payload(dict(of("header", f.ConfigRecord).items()), arrays, *numbers)


class FlowerTransport:
    """Flower's grid as the way to the nodes."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """Return the numbers of the nodes that are connected."""
        return list(self._grid.get_node_ids())

    def exchange(self, payloads: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
        """Return the first answer of each node, or what went wrong."""
        make = import_flower().Message
        sent = [
            make(content=to_records(p), dst_node_id=node, message_type=_message_type(p))
            for node, p in payloads.items()
        ]
        ids = list(self._grid.push_messages(sent))
        if len(ids) != len(sent):  # together they are too large
            ids = [next(iter(self._grid.push_messages([message])), None) for message in sent]
        waiting = {str(m): n for m, n in zip(ids, payloads, strict=True) if m is not None}
        said: dict[int, Payload | str] = {}
        began = time.monotonic()
        while True:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:  # else it has answered before
                    said[node] = _read_reply(reply)
            waited = time.monotonic() - began
            if not waiting or waited >= seconds:
                return said
            time.sleep(min(POLL_SECONDS, 0.02 + waited / 10))

    def pause(self) -> None:
        """Wait a little for nodes to come."""
        time.sleep(2 * POLL_SECONDS)


def _message_type(payload: Payload) -> str:
    return "train" if payload.header["kind"] in ("train", "keep") else "query"


def _read_reply(reply: Any) -> Payload | str:
    if reply.has_error():
        lines = (reply.error.reason or f"error {reply.error.code}").strip().splitlines()
        return lines[-1] if lines else f"error {reply.error.code}"
    try:
        return from_records(reply.content)
    except Exception as error:  # whatever a stranger's records can do
        return f"its records cannot be read ({first_line(error)})"


def _attach_log_handlers() -> None:
    """Let our lines go where Flower's go: to the log that `flwr run --stream` shows."""
    log.setLevel(logging.INFO)
    for handler in logging.getLogger("flwr").handlers:
        log.addHandler(handler)


def server_app(settings: Settings | Callable[[Mapping[str, Any]], Settings]) -> Any:
    """Return a ServerApp that plays the rounds of a run.

    Args:
        settings: What to do, or a function that makes it of the run's configuration
            (`[tool.flwr.app.config]`, and `flwr run -c`).
    """
    app = import_flower("serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:
        chosen = settings if isinstance(settings, Settings) else settings(context.run_config)
        _attach_log_handlers()
        serve(chosen, FlowerTransport(grid))

    app.main()(main)
    return app


def client_app(
    model: nn.Module | Callable[[], nn.Module],
    load: Load,
    *,
    method: Method | None = None,
    loss: Loss | None = None,
    device: str = "auto",
) -> Any:
    """Return a ClientApp that does a client's half of every round.

    The client's number is the node's `client-id` or `partition-id` (`--node-config`), and `memory`
    there, or $TUNEFREE_MEMORY, is the folder in which it remembers; by default ~/.tunefree/memory.

    Args:
        model: The server's module, or a function that builds it.
        load: Returns this node's data, (x, y) or a torch Dataset, from the node's configuration.
        method: The method, where the server's was not given by name.
        loss: The loss, where the server's is a function.
        device: Where to work; "auto" takes a GPU if there is one.
    """
    app, make = import_flower("clientapp").ClientApp(), import_flower().Message
    nodes: dict[int, Node] = {}

    def reply(message: Any, context: Any) -> Any:
        config = dict(context.node_config)
        client = client_number(config)
        if client not in nodes:
            nodes[client] = Node(model, load, config, method=method, loss=loss, device=device)
        local_update = nodes[client].reply(from_records(message.content))
        return make(content=to_records(local_update), reply_to=message)

    app.train()(reply)
    app.query()(reply)
    return app
