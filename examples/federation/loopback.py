"""A SuperLink and SuperNodes as processes on this machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tunefree.core.errors import ArgumentError, TunefreeError

LINK = "loop"  # name of the SuperLink in Flower's configuration
RECONNECT_SECONDS = 6.0  # after which a killed node may connect again
LIMIT = 60.0  # seconds for a command that should take a few


def num_threads() -> int:
    """Return the number of threads of each process."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Loopback:
    """A SuperLink and SuperNodes on this machine; leaving the `with` block stops them.

    Args:
        home: Folder for Flower's files, logs and the nodes' memory.
        clients: Number of clients; nodes get it as `num-partitions`.
        secure: Whether to use TLS and registered node keys (needs openssl and ssh-keygen).
    """

    def __init__(self, home: Path, clients: int, secure: bool = False) -> None:
        self.home, self.clients = home.resolve(), clients
        self.home.mkdir(parents=True, exist_ok=True)
        self.port, self.secure = free_port(), secure
        self._link: subprocess.Popen[bytes] | None = None
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self._orphans: set[tuple[int, str]] = set()  # children of killed processes
        config = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
        config += f'address = "127.0.0.1:{self.port}"\n'
        config += f'root-certificates = "{self.home}/ca.crt"\n' if secure else "insecure = true\n"
        (self.home / "flwr").mkdir(exist_ok=True)
        (self.home / "flwr/config.toml").write_text(config)

    def __enter__(self) -> "Loopback":
        try:
            self.start_link()
            for i in range(self.clients):
                self.start_node(i)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _environment(self) -> dict[str, str]:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        one = {"OMP_NUM_THREADS": str(num_threads())}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(self.home / "flwr"), "PATH": path}
        return {**os.environ, **quiet, **one, **own}

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, so that Ctrl-C does not reach it."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [program(words[0]), *words[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=self.home,
                start_new_session=True,
            )
        self._all.append(process)
        return process

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self._link = self._start(
            "superlink",
            "flower-superlink",
            *(
                (*self._certificates(), "--enable-supernode-auth")
                if self.secure
                else ("--insecure",)
            ),
            "--disable-runtime-dependency-installation",
            *("--port", str(self.port), "--database", str(self.home / "superlink.db")),
        )
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if self._link.poll() is not None:
                break
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise TunefreeError(f"The SuperLink did not start; see {self.home / 'superlink.log'}.")

    def start_node(self, i: int, extra: Mapping[str, str | int] | None = None) -> None:
        """Start the SuperNode of a client."""
        memory = self.home / f"memory-{i}"
        config: dict[str, str | int] = {"partition-id": i, "num-partitions": self.clients}
        config |= {"memory": str(memory), **(extra or {})}
        words = " ".join(
            f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in config.items()
        )
        self._nodes[i] = self._start(
            f"node-{i}",
            "flower-supernode",
            *(self._key(i) if self.secure else ("--insecure",)),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--node-config", words),
        )

    def _certificates(self) -> tuple[str, ...]:
        """Create an authority and a certificate, once; return the options that name them."""
        if not (self.home / "server.crt").exists():
            self._call(
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-sha256", "-days", "30"),
                *("-nodes", "-subj", "/CN=federation", "-keyout", "ca.key", "-out", "ca.crt"),
                *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            )
            self._call(
                *("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
                *("-keyout", "server.key", "-out", "server.csr"),
            )
            names = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
            keys = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
            (self.home / "extensions.txt").write_text(names + keys)
            self._call(
                *("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt"),
                *("-CAkey", "ca.key", "-CAcreateserial", "-sha256", "-days", "30"),
                *("-extfile", "extensions.txt", "-out", "server.crt"),
            )
        named = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        return tuple(w for k, v in named.items() for w in (f"--ssl-{k}", str(self.home / v)))

    def _key(self, i: int) -> tuple[str, ...]:
        """Create and register a node's key, once; return the options that name it."""
        key = self.home / f"key-{i}"
        if not key.exists():
            self._call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key))
            self._call(program("flwr"), "supernode", "register", f"{key}.pub", LINK)
        root = ("--root-certificates", str(self.home / "ca.crt"))
        return (*root, "--auth-supernode-private-key", str(key), *self._certificates())

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            words,
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if done.returncode:
            output = (done.stderr or done.stdout).strip()[-500:]
            raise TunefreeError(f"{Path(words[0]).name} failed: {output}")

    def kill_node(self, i: int) -> None:
        """Kill a SuperNode by SIGKILL; its children go on, and `stop` kills them."""
        self._kill(self._nodes.pop(i))

    def kill_link(self) -> None:
        """Kill the SuperLink by SIGKILL; the ServerApp goes on, and `stop` kills it."""
        assert self._link is not None
        self._kill(self._link)
        self._link = None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._orphans |= _descendants(process.pid)
        process.kill()
        process.wait(LIMIT)

    def run(self, app: Path, **config: object) -> subprocess.Popen[bytes]:
        """Start `flwr run` for an app, with its log in run.log; the process ends with the run."""
        words = [
            f'{k}="{v}"' if isinstance(v, str | Path) else f"{k}={str(v).lower()}"
            for k, v in config.items()
        ]
        return self._start(
            "run", "flwr", "run", str(app.resolve()), LINK, "--stream", "-c", " ".join(words)
        )

    def stop(self) -> None:
        """Stop all processes that were started, and their children."""
        grown = {born for pid, _ in self._orphans for born in _descendants(pid)}
        for process in reversed(self._all):
            _stop(process)
        _kill_all(self._orphans | grown)
        self._all, self._orphans = [], set()


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside this Python or on $PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ArgumentError(f"{name} is not installed: pip install 'tunefree[flower]'.")
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and its descendants, by their ids; Flower's children leave its group."""
    if process.poll() is not None:
        return
    descendants = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        descendants |= _descendants(process.pid)
        process.kill()
        process.wait(LIMIT)
    _kill_all(descendants)


def _kill_all(processes: set[tuple[int, str]]) -> None:
    """Kill those of the processes that still run, and no later process with the same id."""
    for pid, _ in processes & _running().keys():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _running() -> dict[tuple[int, str], int]:
    """Return the parent's id of every process, by its own id and its start time."""
    words = ["ps", "-A", "-o", "pid=,ppid=,lstart="]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT)
    found = (line.split(None, 2) for line in done.stdout.splitlines())
    return {(int(pid), began.strip()): int(parent) for pid, parent, began in found}


def _descendants(pid: int) -> set[tuple[int, str]]:
    """Return the children of a process, and their descendants."""
    running = _running()
    out: set[tuple[int, str]] = set()
    parents = {pid}
    while parents:
        born = {who for who, parent in running.items() if parent in parents} - out
        out |= born
        parents = {number for number, _ in born}
    return out
