"""The server of a real federation: wait for the nodes, bind the run and train it as `fit` does."""

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckpointError, ResumeError, convert_errors
from ..core.files import MAX_JSON, check_writable, open_regular, read_file, write_atomically
from ..core.lock import lock_folder
from ..core.plan import Plan
from ..core.types import Vector, take_rows
from ..data.arrays import as_pair
from ..data.batches import batch_width
from ..data.federation import Federation
from ..methods import Method
from ..models.loop import LoopEngine
from ..models.problem import Problem, are_labels
from ..privacy import Privacy
from ..rounds.pool import ClientPool
from ..simulation.batches import BatchSource
from ..simulation.context import ClientContext
from ..training.bind import bind
from ..training.callbacks import Event
from ..training.client_data import ClientData, ClientSource, prepare_pair
from ..training.config import RunConfig
from ..training.decide import TABLE_SCHEDULE, decide_method
from ..training.evaluate import Evaluation
from ..training.folder import RunFolder
from ..training.run import Run
from ..training.trainer import Trainer
from .clients import FlowerClients
from .exchange import MAX_SAMPLES, Exchange, NodeRegistry, Transport
from .secagg_server import MaskedRounds
from .settings import Settings
from .terms import RunTerms, digest_method, digest_model, digest_start, name_method

log = logging.getLogger("tunefree")

SERVER_LOCK = "server.lock"  # held from the first contact with the nodes
NODES = "nodes.json"  # the run's id, and the clients' sizes and columns
LOG = "federation.log"  # which clients were absent, lost or refused in a round, and why


def serve(settings: Settings, transport: Transport) -> Run:
    """Train over the nodes that `transport` reaches; continue the run in `settings.out`, if any."""
    folder = None if settings.out is None else RunFolder(settings.out, checkpoint_every=1)
    with ExitStack() as held:
        if folder is not None:
            with check_writable("Settings(out=...) must be a folder", folder.path):
                folder.path.mkdir(parents=True, exist_ok=True)
                # A server whose SuperLink crashed ends once a new one rejects it, so wait for that.
                lock = lock_folder(folder.path, seconds=settings.wait, name=SERVER_LOCK)
                held.enter_context(lock)
        decide_method(settings)  # refused before the nodes are waited for
        known = _read_known(folder, settings.clients)
        registry = NodeRegistry(transport, settings.clients, settings.deadline)
        if known is None:
            registry.wait_for_all(settings.wait)
            run_id = secrets.token_hex(16)
            sizes = [registry.sizes[i] for i in range(settings.clients)]
        else:
            run_id, sizes, registry.columns = known
            registry.sizes = dict(enumerate(sizes))
        masked = MaskedRounds(None if folder is None else folder.path)
        counted = limit_claims(sizes, settings.claim_limit)
        source = NodeSource(settings, counted, run_id, registry, masked)
        run = bind(settings, settings.model, source)
        if settings.secure is not None:
            run = replace(run, settings=run.settings | {"secure": repr(settings.secure)})
        if folder is not None:
            if not os.path.lexists(folder.path / NODES):
                text = json.dumps({"run": run_id, "sizes": sizes, "columns": registry.columns})
                write_atomically(folder.path / NODES, text.encode())
            held.enter_context(_log_to(folder.path / LOG))
        for client, (stated, count) in enumerate(zip(sizes, counted.tolist(), strict=True)):
            if count < stated:
                limit = "the limit in units of the median (Settings(claim_limit=...))"
                said = "Client %d states %d samples and counts for %d, %s."
                log.warning(said, client, stated, count, limit)
        if isinstance(settings.aggregate, Privacy) and settings.aggregate.seed is not None:
            log.warning("Whoever knows or guesses Privacy(seed=...) can subtract this run's noise.")
        callbacks = [*settings.callbacks, _log_round]
        return Trainer(run, folder, callbacks).train()


def limit_claims(sizes: list[int], limit: float | None) -> Tensor:
    """Return what clients count for, of the numbers of samples that they state.

    >>> limit_claims([5, 3, 8, 2**40], 10.0).tolist()
    [5, 3, 8, 50]
    """
    stated = torch.tensor(sizes)
    if limit is None:
        return stated
    most = min(limit * int(stated.median()), MAX_SAMPLES)  # the lower one of two
    return stated.clamp(max=int(most))


def _log_round(event: Event) -> None:
    """Log the loss, the accuracy and the number of answers of a round."""
    row = event.row
    parts = [f"loss {row['train_loss']:.4f}", f"{row['answered']} answered"]
    if "test_accuracy" in row:
        parts.insert(1, f"accuracy {row['test_accuracy']:.4f}")
    log.info("Round %d: %s.", event.round, ", ".join(parts))


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Inside a `with` block, also write the log to a file."""
    with check_writable("Settings(out=...) must be a folder with a log", path):
        file = open_regular(path, "a")
    handler, level = logging.StreamHandler(file), log.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        log.info("The server starts.")
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        file.close()


def _read_known(folder: RunFolder | None, clients: int) -> tuple[str, list[int], int] | None:
    """Return what was fixed when a run started: its id, the clients' sizes, and their columns."""
    if folder is None or not (folder.is_started or os.path.lexists(folder.path / NODES)):
        return None
    path, name = folder.path / NODES, str(folder.path)
    if not os.path.lexists(path):
        raise ResumeError(f"The run in {name!r} is no federation's; choose another folder.")
    with convert_errors(f"{path} is damaged", CheckpointError):
        found = json.loads(read_file(path, MAX_JSON))
        run, sizes = str(found["run"]), [int(n) for n in found["sizes"]]
        columns = int(found["columns"])
    if not all(0 < n < 2**63 for n in sizes):
        raise CheckpointError(f"{path} is damaged: a client has no such number of examples.")
    if len(sizes) != clients:
        reason = f"The run in {name!r} has {len(sizes)} clients, not {clients}"
        raise ResumeError(f"{reason}; choose another folder for a new run.")
    return run, sizes, columns


@dataclass(frozen=True)
class NodeSource(ClientSource):
    """The nodes of a federation as the clients of a run."""

    settings: Settings
    counted: Tensor  # (N,), the samples that clients count for
    run: str
    registry: NodeRegistry
    masked: MaskedRounds

    @property
    def clients(self) -> int:
        return self.settings.clients

    @property
    def sizes(self) -> None:
        """None: the nodes train on all of their samples."""

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Return what the server knows of the data."""
        s, sizes = self.settings, self.counted
        shown = min(s.clients, 100)
        known: dict[str, Any] = {}
        if (seen := s.held if s.test is None else s.test) is not None:
            x, y = prepare_pair(problem, as_pair(*seen))
            highest = int(y.max()) if are_labels(y) else None
            problem.check(take_rows(x, slice(2)), y[:2], highest, y)
            known = {"target": list(y.shape[1:]), "casts": problem.casts or None}
        elif config.loss == "auto":
            problem.set_loss("cross_entropy")
        test = None
        if s.test is not None:
            pair = prepare_pair(problem, as_pair(*s.test))
            test = Evaluation(problem, pair, config.evaluate.metrics or {})
        return ClientData(
            sizes=sizes,
            description={
                "name": "federation",
                "clients": s.clients,
                "samples": int(sizes.sum()),
                "picture": {"clients": list(range(shown)), "sizes": sizes[:shown].tolist()},
                **known,
            },
            has_held=s.held is not None,
            test=test,
            columns=self.registry.columns or 0,
        )

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        s, batches = self.settings, config.batch_plan
        width, decided = batch_width(self.counted, batches), dict[str, Any]()
        if config.sets_itself and method.weight_decay:  # adapted to a table
            decided["weight_decay"] = method.weight_decay
            decided |= {} if method.step.sets_lr else {"schedule": TABLE_SCHEDULE}
        terms = RunTerms(
            clients=s.clients,
            steps=plan.steps,
            held=plan.held,
            width=width,
            options=config.record(node=True),
            named=name_method(s.method, {**s.set, **decided}),
            method=digest_method(method),
            model=digest_model(problem),
            start=digest_start(start),
            deep=decide_method(s).deep is not None and method.deep is None,
        )
        held = None
        if s.held is not None:  # the server evaluates on its own sample, batched as clients do
            inputs, target = as_pair(*s.held)
            fed = Federation(inputs, target, [0] * len(target), held=(inputs, target))
            fed = fed.to(problem.device, problem.dtype)
            own = BatchSource(problem, fed, batches, s.seed, None, padded=width)
            held = ClientContext(method, own, LoopEngine(problem))
        exchange = Exchange(self.registry, s, self.run, terms.text())
        scaling, sizes = problem.scaling, self.counted
        return FlowerClients(method, plan, sizes, start, exchange, held, scaling, self.masked)
