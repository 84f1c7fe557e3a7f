"""The ServerApp and the ClientApp of Flower, and the template of a project with both.

Payloads travel as Flower's records, and its grid is the transport.

Flower is imported where it is used, so that the package works without it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from torch import nn

from ..core.errors import ArgumentError, first_line, import_optional
from ..core.files import write_file
from ..methods import Method
from ..models.problem import Loss
from .exchange import Transport
from .node import Load, Node, client_number
from .payload import EncodedArray, Payload
from .serve import serve
from .settings import Settings

log = logging.getLogger("tunefree")

POLL_SECONDS = 0.5  # longest time between two polls for answers; Flower's own loop waits 3 s


def import_flower(part: str = "app") -> Any:
    """Import a module of Flower, or raise an error that tells how to install it."""
    return import_optional(f"flwr.{part}", "A real federation", "flwr", extra="flower")


def to_records(payload: Payload) -> Any:
    """Return a payload as Flower's records."""
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
    """Undo `to_records`; missing records are empty, unknown records are ignored."""
    f = import_flower()

    def read(name: str, kind: type) -> Any:
        found = content.get(name)
        return found if isinstance(found, kind) else {}

    arrays = {
        str(name): EncodedArray(
            str(a.dtype), tuple(a.shape), str(a.stype).removeprefix("tunefree."), bytes(a.data)
        )
        for name, a in read("channels", f.ArrayRecord).items()
    }
    numbers = (dict(read(name, f.MetricRecord).items()) for name in ("scalars", "metrics"))
    return Payload(dict(read("header", f.ConfigRecord).items()), arrays, *numbers)


@dataclass(frozen=True)
class FlowerTransport(Transport):
    """Carries payloads to the nodes by Flower's grid."""

    grid: Any

    def nodes(self) -> list[int]:
        return list(self.grid.get_node_ids())

    def exchange(self, payloads: dict[int, Payload], seconds: float) -> dict[int, Payload | str]:
        waiting = self._push(payloads)
        replies: dict[int, Payload | str] = {}
        began = time.monotonic()
        while True:
            for message in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:  # otherwise it has answered before
                    replies[node] = _read_reply(message)
            waited = time.monotonic() - began
            if not waiting or waited >= seconds:
                return replies
            time.sleep(min(POLL_SECONDS, 0.02 + waited / 10))

    def _push(self, payloads: dict[int, Payload]) -> dict[str, int]:
        """Send the payloads and return the nodes by message id."""
        make = import_flower().Message
        messages = []
        for node, payload in payloads.items():
            kind = "train" if payload.header["kind"] in ("train", "keep") else "query"
            content = to_records(payload)
            messages.append(make(content=content, dst_node_id=node, message_type=kind))
        ids = list(self.grid.push_messages(messages))
        if len(ids) != len(messages):  # together they are too large
            ids = [next(iter(self.grid.push_messages([message])), None) for message in messages]
        return {str(m): node for m, node in zip(ids, payloads, strict=True) if m is not None}

    def pause(self) -> None:
        time.sleep(2 * POLL_SECONDS)


def _read_reply(message: Any) -> Payload | str:
    """Return the payload of a reply, or its error message."""
    if message.has_error():
        error = message.error
        lines = (error.reason or f"error {error.code}").strip().splitlines()
        return lines[-1] if lines else f"error {error.code}"
    try:
        return from_records(message.content)
    except Exception as error:  # hostile records may raise anything
        return f"its records cannot be read ({first_line(error)})"


def server_app(settings: Settings | Callable[[Mapping[str, Any]], Settings]) -> Any:
    """Return a ServerApp that runs the rounds of a federation.

    Args:
        settings: The settings, or a function that returns them from the run's configuration
            (`[tool.flwr.app.config]` and `flwr run -c`).
    """
    app = import_flower("serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:
        chosen = settings if isinstance(settings, Settings) else settings(context.run_config)
        log.setLevel(logging.INFO)
        for handler in logging.getLogger("flwr").handlers:
            log.addHandler(handler)  # so that `flwr run --stream` shows our lines
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
    """Return a ClientApp that does the local work of one client.

    The client's number is `client-id` or `partition-id` of the node's configuration
    (`--node-config`). Its memory is in the folder `memory` of the configuration, or
    $TUNEFREE_MEMORY, or ~/.tunefree/memory.

    Args:
        model: The server's module, or a function that builds it.
        load: Returns this node's data, (x, y) or a torch Dataset, from the node's configuration.
        method: The method, if the server's was not given by name.
        loss: The loss, if the server's is a function.
        device: Device of the local work; "auto" is a GPU if there is one.
    """
    app, make = import_flower("clientapp").ClientApp(), import_flower().Message
    nodes: dict[int, Node] = {}

    def reply(message: Any, context: Any) -> Any:
        config = dict(context.node_config)
        client = client_number(config)
        if client not in nodes:
            nodes[client] = Node(model, load, config, method=method, loss=loss, device=device)
        answer = nodes[client].reply(from_records(message.content))
        return make(content=to_records(answer), reply_to=message)

    app.train()(reply)
    app.query()(reply)
    return app


def write_app(folder: Path, name: str | None = None) -> Path:
    """Write the template of an app into an empty or a new folder, and return the folder.

    The name of the app defaults to the folder's.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(f"{str(folder)!r} must be an empty or a new folder.")
    title = name or folder.resolve().name
    known = "".join(c if c.isalnum() or c == "-" else "-" for c in title.lower()).strip("-")
    with as_file(files(__package__).joinpath("files")) as source:
        for item in source.rglob("*.txt"):
            path = folder / item.relative_to(source).with_suffix("")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = item.read_text("utf-8").replace("NAME", known or "federation")
            write_file(path, text.encode())
    return folder
