"""The server of a real federation: wait for the nodes, bind the run and train it as `fit` does."""

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckpointError, ResumeError
from ..core.files import write_atomically
from ..core.lock import lock_folder
from ..core.plan import Plan
from ..core.types import Vector
from ..data._arrays import as_pair
from ..data.batches import BatchPlan, batch_width
from ..data.federation import Federation
from ..methods import Method
from ..models.loop import LoopEngine
from ..models.problem import Problem, are_labels
from ..rounds import ClientPool
from ..simulation.context import ClientContext
from ..training.bind import ClientData, bind, prepare_pair
from ..training.config import RunConfig
from ..training.folder import RunFolder
from ..training.run import Run
from ..training.trainer import Trainer
from .clients import FlowerClients
from .exchange import Exchange
from .logs import log_round, log_to_folder
from .node import OneClientBatches
from .registry import NodeRegistry, Transport
from .settings import Settings
from .terms import RunTerms, digest_method, digest_model, name_method

SERVER_LOCK = "server.lock"  # held from the first contact with the nodes


def serve(settings: Settings, transport: Transport) -> Run:
    """Train over the nodes that `transport` reaches; continue the run in `settings.out`, if any.

    Args:
        settings: The run.
        transport: Carries messages to the nodes.
    """
    if settings.out is None:
        return _serve(settings, transport, None)
    folder = RunFolder(settings.out)
    folder.path.mkdir(parents=True, exist_ok=True)
    # A server whose SuperLink crashed ends once a new SuperLink rejects it, so wait for that.
    with lock_folder(folder.path, seconds=settings.wait, name=SERVER_LOCK):
        return _serve(settings, transport, folder)


def _serve(settings: Settings, transport: Transport, folder: RunFolder | None) -> Run:
    settings.resolve_method()  # refused before the nodes are waited for
    known = _read_known(folder, settings.clients)
    registry = NodeRegistry(transport, settings.clients, settings.deadline)
    if known is None:
        registry.wait_for_all(settings.wait)
        sizes = [registry.sizes[i] for i in range(settings.clients)]
        known = _KnownClients(secrets.token_hex(16), sizes)
    else:
        registry.sizes = dict(enumerate(known.sizes))
    source = NodeSource(settings, torch.tensor(known.sizes), known.run, registry)
    run = bind(settings, settings.model, source)
    if settings.secure is not None:
        run = replace(run, settings=run.settings | {"secure": repr(settings.secure)})
    if folder is not None and not (folder.path / "nodes.json").exists():
        text = json.dumps({"run": known.run, "sizes": known.sizes})
        write_atomically(folder.path / "nodes.json", text.encode())
    with log_to_folder(folder):
        callbacks = [*settings.callbacks, log_round]
        return Trainer(run, folder, checkpoint_every=1, callbacks=callbacks).train()


@dataclass(frozen=True)
class _KnownClients:
    """What is fixed when a run starts: the name of its memory, and the clients' sizes."""

    run: str
    sizes: list[int]


def _read_known(folder: RunFolder | None, clients: int) -> _KnownClients | None:
    if folder is None or not (folder.is_started or (folder.path / "nodes.json").exists()):
        return None
    path = folder.path / "nodes.json"
    try:
        found = json.loads(path.read_text())
        known = _KnownClients(str(found["run"]), [int(n) for n in found["sizes"]])
    except FileNotFoundError:
        raise ResumeError(
            f"The run in {str(folder.path)!r} is no federation's; choose another folder."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None
    if not all(0 < n < 2**63 for n in known.sizes):
        raise CheckpointError(f"{path} is damaged: a client has no such number of examples.")
    if len(known.sizes) != clients:
        raise ResumeError(
            f"The run in {str(folder.path)!r} has {len(known.sizes)} clients, not {clients}; "
            "choose another folder for a new run."
        )
    return known


class NodeSource:
    """The nodes of a federation as the clients of a run.

    Args:
        settings: The run.
        sizes: Samples of each client (N,).
        run: Name of the run, under which nodes keep their memory.
        registry: The nodes.
    """

    def __init__(self, settings: Settings, sizes: Tensor, run: str, registry: NodeRegistry) -> None:
        self._settings, self._sizes, self._run, self._registry = settings, sizes, run, registry

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self._settings.clients

    @property
    def has_labels(self) -> bool:
        """Whether the server's own targets are class labels; True if it has none."""
        s = self._settings
        seen = s.held if s.test is None else s.test
        return seen is None or are_labels(as_pair(*seen)[1])

    def load(self, config: RunConfig, problem: Problem) -> ClientData:
        """Return what the server knows of the data."""
        s, sizes = self._settings, self._sizes
        shown = min(s.clients, 100)
        return ClientData(
            sizes=sizes,
            description={
                "name": "federation",
                "clients": s.clients,
                "samples": int(sizes.sum()),
                "picture": {"clients": list(range(shown)), "sizes": sizes[:shown].tolist()},
            },
            has_held=s.held is not None,
            test=None if s.test is None else prepare_pair(problem, as_pair(*s.test)),
        )

    def create_pool(
        self, config: RunConfig, method: Method, problem: Problem, plan: Plan, start: Vector
    ) -> ClientPool:
        """Return the nodes as a pool."""
        s, batches = self._settings, config.batch_plan
        width = batch_width(self._sizes, batches)
        terms = RunTerms(
            clients=s.clients,
            steps=plan.steps,
            held=plan.held,
            width=width,
            options=config.record(node=True),
            named=name_method(s.method, s.set),
            method=digest_method(method),
            model=digest_model(problem),
        )
        held = None
        if s.held is not None:
            held = _make_held_context(method, problem, s.held, batches, s.seed, width)
        return FlowerClients(
            method,
            plan,
            self._sizes,
            start,
            self._run,
            terms.text(),
            Exchange(self._registry, s.failure_policy),
            held,
            config.aggregation,
            s.secure,
        )


def _make_held_context(
    method: Method,
    problem: Problem,
    held: tuple[Any, Any],
    batches: BatchPlan,
    seed: int,
    width: int,
) -> ClientContext:
    """Return a context in which the server evaluates on its own sample, batched as clients do."""
    inputs, target = as_pair(*held)
    fed = Federation(inputs, target, [0] * len(target), held=(inputs, target))
    source = OneClientBatches(
        problem, fed.to(problem.device, problem.dtype), batches, seed, None, width
    )
    return ClientContext(method, source, LoopEngine(problem))
