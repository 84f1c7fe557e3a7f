"""A page about runs that are still going, served to this machine alone.

Two addresses exist, `/` and `/data.json`; no path reaches the file system. A request must name the
server by an IP address, as localhost, or as it was told to be called: a name that some page made
point here (DNS rebinding) is refused.
"""

import ipaddress
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from ..core.errors import ArgumentError, CheckpointError
from ..training.run import Run
from . import gather
from .page import as_data, policy, render
from .shape import payload

EVERY = 2.0  # seconds between two looks of the page


class Readings:
    """The runs below some folders, read again only when their files have changed."""

    def __init__(self, places: Sequence[Path], title: str | None = None) -> None:
        self._places, self._title = places, title
        self._seen: dict[Path, tuple[Any, Run]] = {}
        self._tails: dict[Path, gather.Tail] = {}
        self._said: tuple[Any, dict[str, Any]] | None = None
        self._lock = Lock()

    def facts(self) -> dict[str, Any]:
        """Return what the page shows now."""
        with self._lock:
            paths = dict.fromkeys(path for place in self._places for path in gather.find(place))
            self._seen = {p: found for p in paths if (found := self._read(p)) is not None}
            runs = [run for _, run in self._seen.values()]
            told = [replace(r, status="running") if gather.running(r) else r for r in runs]
            key = [(p, self._seen[p][0], r.status) for p, r in zip(self._seen, told, strict=True)]
            if self._said is None or self._said[0] != key:
                self._said = key, payload(gather.grouped(told), title=self._title)
            return self._said[1]

    def _read(self, path: Path) -> tuple[Any, Run] | None:
        marks = tuple(
            _mark(path / n) for n in ("settings.json", "history.jsonl", "checkpoint.json")
        )
        before = self._seen.get(path)
        if before is not None and before[0] == marks:
            return before
        try:
            return marks, gather.read(path, self._tails.setdefault(path, gather.Tail()))
        except CheckpointError:  # half written, or damaged: perhaps the next time
            return before


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


class PageServer(ThreadingHTTPServer):
    """Serves the page and its data."""

    daemon_threads = True

    def __init__(self, host: str, port: int, readings: Readings) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.readings, self.names = readings, {"localhost", host.lower()}
        super().__init__((host, port), PageHandler)

    @property
    def address(self) -> str:
        """Where to look."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over browsers that go away in the middle of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def knows(self, said: str | None) -> bool:
        """Return whether a Host header may name this server.

        >>> server = PageServer.__new__(PageServer)
        >>> server.names = {"localhost", "127.0.0.1"}
        >>> [server.knows(h) for h in ("127.0.0.1:80", "[::1]:80", "localhost", "evil.org", None)]
        [True, True, True, False, False]
        """
        if not said:
            return False
        name = said.rpartition(":")[0] if said.rpartition(":")[2].isdigit() else said
        name = name.strip("[]").lower()
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in self.names


class PageHandler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    timeout = 20
    server_version, sys_version = "tunefree", ""

    def do_GET(self) -> None:
        """Answer with the page or its data."""
        if not self.server.knows(self.headers.get("Host")):
            self._send(403, "text/plain", "This name is not one of this server's.")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(200, "text/html", render(self.server.readings.facts(), live=EVERY))
        elif path == "/data.json":
            self._send(200, "application/json", as_data(self.server.readings.facts()))
        else:
            self._send(404, "text/plain", "There are / and /data.json.")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to whoever started the command."""


def serve(places: Sequence[Path], host: str, port: int, title: str | None = None) -> PageServer:
    """Return a server that is bound and listens; call its serve_forever."""
    try:
        return PageServer(host, port, Readings(places, title))
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            f"watch cannot listen on {host!r}, port {port}: "
            f"{getattr(error, 'strerror', None) or error}. Choose another --host or --port."
        ) from None
