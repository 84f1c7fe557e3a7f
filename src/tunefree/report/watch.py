"""An HTTP server for a live report page about runs that are still going.

It serves `/` and `/data.json`; no request path reaches the file system. The Host header of a
request must be an IP address, localhost, or the host that the server was started with, which
prevents DNS rebinding.
"""

import ipaddress
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from ..core.errors import ArgumentError, CheckpointError
from ..training.run import Run
from .collect import HistoryReader, find_run_folders, group_runs, is_running, read_run
from .page import render, security_policy, to_script_json
from .payload import build_payload

POLL_SECONDS = 2.0  # between two requests of the page for new data


class RunMonitor:
    """The runs below some folders; a run is read again when its files have changed."""

    def __init__(self, folders: Sequence[Path], title: str | None = None) -> None:
        self._folders, self._title = folders, title
        self._runs: dict[Path, tuple[Any, Run]] = {}  # with the state of their files
        self._readers: dict[Path, HistoryReader] = {}
        self._latest: tuple[Any, dict[str, Any]] | None = None
        self._lock = Lock()

    def payload(self) -> dict[str, Any]:
        """Return the current data of the page."""
        with self._lock:
            paths = dict.fromkeys(p for folder in self._folders for p in find_run_folders(folder))
            self._runs = {p: found for p in paths if (found := self._read(p)) is not None}
            runs = [
                replace(r, status="running") if is_running(r) else r for _, r in self._runs.values()
            ]
            key = [(p, self._runs[p][0], r.status) for p, r in zip(self._runs, runs, strict=True)]
            if self._latest is None or self._latest[0] != key:
                self._latest = key, build_payload(group_runs(runs), title=self._title)
            return self._latest[1]

    def _read(self, path: Path) -> tuple[Any, Run] | None:
        state = []
        for name in ("settings.json", "history.jsonl", "checkpoint.json"):
            with suppress(OSError):
                stat = (path / name).stat()
                state.append((name, stat.st_mtime_ns, stat.st_size))
        before = self._runs.get(path)
        if before is not None and before[0] == state:
            return before
        try:
            return state, read_run(path, self._readers.setdefault(path, HistoryReader()))
        except CheckpointError:  # damaged, or being written: try again at the next request
            return before


class PageServer(ThreadingHTTPServer):
    """Serves the page and its data."""

    daemon_threads = True

    def __init__(self, host: str, port: int, monitor: RunMonitor) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.monitor, self.names = monitor, {"localhost", host.lower()}
        super().__init__((host, port), PageHandler)

    @property
    def address(self) -> str:
        """The URL of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a response."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def is_allowed_host(self, host: str | None) -> bool:
        """Return whether a Host header may name this server.

        >>> server = PageServer.__new__(PageServer)
        >>> server.names = {"localhost", "127.0.0.1"}
        >>> hosts = ("127.0.0.1:80", "[::1]:80", "localhost", "evil.org", None)
        >>> [server.is_allowed_host(host) for host in hosts]
        [True, True, True, False, False]
        """
        if not host:
            return False
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in self.names


class PageHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: PageServer
    timeout = 20
    server_version, sys_version = "tunefree", ""

    def do_GET(self) -> None:
        """Send the page or its data."""
        if not self.server.is_allowed_host(self.headers.get("Host")):
            self._send(403, "text/plain", "This host name is not one of this server's.")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(200, "text/html", render(self.server.monitor.payload(), live=POLL_SECONDS))
        elif path == "/data.json":
            self._send(200, "application/json", to_script_json(self.server.monitor.payload()))
        else:
            self._send(404, "text/plain", "This server has / and /data.json only.")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header(
            "Content-Security-Policy", f"{security_policy(live=True)}; frame-ancestors 'none'"
        )
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the command that started the server prints to the terminal."""


def make_server(
    folders: Sequence[Path], host: str, port: int, title: str | None = None
) -> PageServer:
    """Return a server that is bound and listens; call its `serve_forever`."""
    try:
        return PageServer(host, port, RunMonitor(folders, title))
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            f"watch cannot listen on {host!r}, port {port}: "
            f"{getattr(error, 'strerror', None) or error}. Choose another --host or --port."
        ) from None
