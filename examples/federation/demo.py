"""Train one app over local SuperNodes, in Flower's simulation and in tunefree's simulation."""

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

from tunefree import Engine, methods
from tunefree.core.errors import TunefreeError
from tunefree.flower.apps import import_flower, server_app, write_app
from tunefree.training.command import parse_method_settings
from tunefree.training.fit import fit
from tunefree.training.folder import RunFolder
from tunefree.training.run import Run

from .loopback import Loopback, num_threads

CLIENTS = 3
LIMIT = 3600.0  # seconds for a whole run
ROOT = Path(__file__).resolve().parents[2]
CHILD = "from examples.federation.demo import run_child; run_child()"


def train_federation(
    home: Path,
    method: str,
    settings: tuple[str, ...],
    rounds: int,
    seed: int,
    clients: int = CLIENTS,
    on_round: Callable[[dict[str, Any]], object] | None = None,
) -> Run:
    """Train the template's app over SuperNodes on this machine; stop all processes at the end.

    Args:
        home: Folder for the app, the run and Flower's files.
        method: Name of the method.
        settings: Settings of the method, such as "lr=0.1".
        rounds: Rounds T.
        seed: Seed of the run.
        clients: Number of clients.
        on_round: Called with the history's row after each round.
    """
    app = home / "app"
    if not app.exists():
        write_app(app, "demo")
    out = home / "run"
    with Loopback(home / "flower", clients) as loop:
        config: dict[str, Any] = {"method": method, "set": " ".join(settings), "rounds": rounds}
        config |= {"seed": seed, "clients": clients, "out": out}
        process, reported = loop.run(app, **config), 0
        end = time.monotonic() + LIMIT
        while (code := process.poll()) is None:
            if time.monotonic() > end:
                raise TunefreeError(f"The federation did not finish within {LIMIT:g} s.")
            time.sleep(0.5)
            rows = RunFolder(out).read_history() if on_round is not None else []
            for row in rows[reported:]:
                assert on_round is not None
                on_round(row)
            reported = max(reported, len(rows))
    try:
        return Run.load(out)
    except TunefreeError as error:
        log = loop.home / "run.log"
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise TunefreeError(
            f"The federation did not train (exit {code}): {error}\n{tail}"
        ) from None


def train_simulation(
    home: Path,
    method: str,
    settings: tuple[str, ...],
    rounds: int,
    seed: int,
    clients: int = CLIENTS,
) -> Run:
    """Train the same app in this process, one client at a time, with a node's number of threads."""
    task, before = load_task(home / "app/federation/task.py"), torch.get_num_threads()
    torch.set_num_threads(num_threads())  # the last bits of sums depend on it
    try:
        return fit(
            task.model(),
            task.digits(clients),
            methods.get(method, **parse_method_settings(method, settings)),
            rounds=rounds,
            steps=20,
            batch=50,
            seed=seed,
            device="cpu",
            engine=Engine(backend="loop", chunk=1),
        )
    finally:
        torch.set_num_threads(before)


def train_flower_simulation(
    home: Path,
    method: str,
    settings: tuple[str, ...],
    rounds: int,
    seed: int,
    clients: int = CLIENTS,
) -> Run:
    """Train the same app in Flower's simulation, a child process with Ray actors."""
    out = home / "virtual"
    config = {"method": method, "set": " ".join(settings), "rounds": rounds, "seed": seed}
    config |= {"clients": clients, "out": str(out)}
    path = os.pathsep.join(filter(None, [str(home / "app"), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TUNEFREE_MEMORY": str(home / "memory"),
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": str(num_threads()),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(home / "app"), json.dumps(config)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=LIMIT,
    )
    if done.returncode:
        raise TunefreeError(f"Flower's simulation failed:\n{done.stderr[-2000:]}")
    return Run.load(out)


def run_child() -> None:
    """Run the app in the folder sys.argv[1] in Flower's simulation; sys.argv[2] is its config."""
    app, config = Path(sys.argv[1]), json.loads(sys.argv[2])
    known = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = importlib.import_module("federation.server").settings(known | config)
    import_flower("simulation").run_simulation(
        server_app=server_app(settings),
        client_app=importlib.import_module("federation.client").app,
        num_supernodes=settings.clients,
        backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
    )


def load_task(path: Path) -> Any:
    """Import the `task.py` of an app's folder."""
    spec = importlib.util.spec_from_file_location("federation_task", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["federation_task"] = module
    spec.loader.exec_module(module)
    return module


def compare_histories(federation: Run, simulation: Run) -> list[dict[str, Any]]:
    """Return a table of the two histories, one row per round."""
    return [
        {
            "round": a["round"],
            "answered": a["answered"],
            "federation": f"{a['test_accuracy']:.4f}",
            "simulation": f"{b['test_accuracy']:.4f}",
            "loss": f"{a['train_loss']:.6f}",
            "simulated loss": f"{b['train_loss']:.6f}",
            "seconds": f"{a['seconds']:.1f}",
        }
        for a, b in zip(federation.history, simulation.history, strict=False)
    ]


def describe_difference(federation: Run, simulation: Run) -> str:
    """Return a sentence with the largest difference between the two models."""
    if torch.equal(federation.x, simulation.x):
        return "The two models are the same, bit for bit."
    gap = float((federation.x - simulation.x).abs().max())
    return f"The two models differ by up to {gap:.1e}."
