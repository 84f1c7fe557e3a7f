"""Ten rounds over three SuperNodes on this machine, beside the simulation of the same seed."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import methods
from ..core.errors import TunefreeError
from ..training.command import parse_method_settings
from ..training.fit import fit
from ..training.folder import Folder
from ..training.run import Run
from .apps import flower, server_app
from .loopback import Loopback, new, threads

CLIENTS = 3
CHILD = "from tunefree.flower.demo import child; child()"


def federated(
    home: Path,
    method: str,
    words: tuple[str, ...],
    rounds: int,
    seed: int,
    clients: int = CLIENTS,
    tell: Callable[[dict[str, Any]], object] | None = None,
) -> Run:
    """Train the template's app over SuperNodes on this machine; all processes end with it.

    Args:
        home: Folder for the app, the run and Flower's files.
        method: The method's name.
        words: Its settings.
        rounds: Rounds T.
        seed: The run's.
        clients: Number of clients.
        tell: Called with the history's row after each round.
    """
    app = new(home / "app", "demo") if not (home / "app").exists() else home / "app"
    out = home / "run"
    with Loopback(home / "flower", clients) as loop:
        config: dict[str, Any] = {"method": method, "set": " ".join(words), "rounds": rounds}
        config |= {"seed": seed, "clients": clients, "out": out}
        process, told = loop.run(app, **config), 0
        while (ended := process.poll()) is None:
            time.sleep(0.5)
            rows = Folder(out).history() if tell is not None else []
            for row in rows[told:]:
                assert tell is not None
                tell(row)
            told = max(told, len(rows))
    try:
        run = Run.load(out)
    except TunefreeError as error:
        log = loop.home / "run.log"
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise TunefreeError(
            f"The federation did not train (exit {ended}): {error}\n{tail}"
        ) from None
    return run


def simulated(
    home: Path, method: str, words: tuple[str, ...], rounds: int, seed: int, clients: int = CLIENTS
) -> Run:
    """Train the same in this process, one client at a time, with as many threads as a node."""
    task, before = _task(home / "app/federation/task.py"), torch.get_num_threads()
    torch.set_num_threads(threads())  # sums depend on it in their last bits
    try:
        return fit(
            task.model(),
            task.digits(clients),
            methods.get(method, **parse_method_settings(method, words)),
            rounds=rounds,
            steps=20,
            batch=50,
            seed=seed,
            device="cpu",
            engine="loop",
            chunk=1,
        )
    finally:
        torch.set_num_threads(before)


def virtual(
    home: Path, method: str, words: tuple[str, ...], rounds: int, seed: int, clients: int = CLIENTS
) -> Run:
    """Train the template's app in Flower's own simulation, which is a process with Ray's actors."""
    out = home / "virtual"
    config = {"method": method, "set": " ".join(words), "rounds": rounds, "seed": seed}
    config |= {"clients": clients, "out": str(out)}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    own = {"TUNEFREE_MEMORY": str(home / "memory"), "PYTHONPATH": str(home / "app")}
    own |= {"OMP_NUM_THREADS": str(threads())}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(home / "app"), json.dumps(config)],
        capture_output=True,
        text=True,
        env={**os.environ, **quiet, **own},
    )
    if done.returncode:
        raise TunefreeError(f"Flower's simulation failed:\n{done.stderr[-2000:]}")
    return Run.load(out)


def child() -> None:
    """Run the app in the folder that the command line names, in Flower's simulation."""
    app, config = Path(sys.argv[1]), json.loads(sys.argv[2])
    known = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = importlib.import_module("federation.server").settings(known | config)
    flower("simulation").run_simulation(
        server_app=server_app(settings),
        client_app=importlib.import_module("federation.client").app,
        num_supernodes=settings.clients,
        backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
    )


def _task(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("federation_task", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["federation_task"] = module
    spec.loader.exec_module(module)
    return module


def table(federation: Run, simulation: Run) -> list[dict[str, Any]]:
    """Return the two histories side by side."""
    rows = []
    for a, b in zip(federation.history, simulation.history, strict=False):
        rows.append(
            {
                "round": a["round"],
                "answered": a["answered"],
                "federation": f"{a['test_accuracy']:.4f}",
                "simulation": f"{b['test_accuracy']:.4f}",
                "loss": f"{a['train_loss']:.6f}",
                "simulated loss": f"{b['train_loss']:.6f}",
                "seconds": f"{a['seconds']:.1f}",
            }
        )
    return rows


def verdict(federation: Run, simulation: Run) -> str:
    """Return in a sentence how far the two models are apart."""
    if torch.equal(federation.x, simulation.x):
        return "The two models are the same, bit for bit."
    gap = float((federation.x - simulation.x).abs().max())
    return f"The two models differ by up to {gap:.1e}."
