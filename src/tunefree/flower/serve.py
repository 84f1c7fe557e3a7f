"""The server's side of a run: meet the nodes, bind the run, and play the rounds as `fit` does."""

import hashlib
import json
import platform
import secrets
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.errors import CheckpointError, ResumeError
from ..core.files import write_atomically
from ..core.layout import Layout
from ..core.lock import lock_folder
from ..core.plan import Plan
from ..core.types import Pair, Vector
from ..data._arrays import as_pair
from ..data.batches import BatchPlan, batch_width, plan_steps
from ..data.federation import Federation
from ..methods import Method
from ..models.problem import Problem, are_labels
from ..models.turns import Looped
from ..penalties import Penalty, sparsity
from ..robust import Robust
from ..server.aggregate import weighted_mean
from ..simulation.desk import ClientContext
from ..training.bind import Job, find_device
from ..training.evaluate import Evaluation
from ..training.fit import options, train
from ..training.folder import Folder
from ..training.run import Run
from ..version import __version__
from .clients import FlowerClients
from .exchange import Exchange
from .logs import log_round, log_to_folder
from .node import OneClientBatches
from .registry import NodeRegistry, Transport
from .settings import Settings
from .terms import RunTerms, digest_method, digest_model, words_of

SERVER_LOCK = "server.lock"  # held from the first contact with the nodes


def serve(settings: Settings, transport: Transport) -> Run:
    """Train over the nodes that `transport` reaches; continue the run in `settings.out`, if any.

    Args:
        settings: The run.
        transport: Carries messages to the nodes.
    """
    if settings.out is None:
        return _serve(settings, transport, None)
    folder = Folder(settings.out)
    folder.path.mkdir(parents=True, exist_ok=True)
    # A server whose SuperLink crashed ends once a new SuperLink rejects it, so wait for that.
    with lock_folder(folder.path, seconds=settings.wait, name=SERVER_LOCK):
        return _serve(settings, transport, folder)


def _serve(s: Settings, transport: Transport, folder: Folder | None) -> Run:
    method, device = s.chosen(), find_device(s.device)
    known = _known(folder, s.clients)
    registry = NodeRegistry(transport, s.clients, s.deadline)
    if known is None:
        registry.wait_for_all(s.wait)
        known = _Known(secrets.token_hex(16), [registry.sizes[i] for i in range(s.clients)])
    else:
        registry.sizes = dict(enumerate(known.sizes))
    sizes = torch.tensor(known.sizes)
    job = _bind(s, method, device, sizes, known.run, registry)
    if folder is not None and not (folder.path / "nodes.json").exists():
        text = json.dumps({"run": known.run, "sizes": known.sizes})
        write_atomically(folder.path / "nodes.json", text.encode())
    with log_to_folder(folder):
        return train(job, folder, True, 1, [*s.callbacks, log_round])


@dataclass(frozen=True)
class _Known:
    """What is settled when a run begins: the name of its memory, and who has how much."""

    run: str
    sizes: list[int]


def _known(folder: Folder | None, clients: int) -> _Known | None:
    if folder is None or not (folder.started or (folder.path / "nodes.json").exists()):
        return None
    path = folder.path / "nodes.json"
    try:
        found = json.loads(path.read_text())
        known = _Known(str(found["run"]), [int(n) for n in found["sizes"]])
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


def _bind(
    s: Settings,
    method: Method,
    device: torch.device,
    sizes: Tensor,
    run: str,
    registry: NodeRegistry,
) -> Job:
    seen = s.held if s.test is None else s.test
    labelled = seen is None or are_labels(as_pair(*seen)[1])
    loss = ("cross_entropy" if labelled else "mse") if s.loss == "auto" else s.loss
    problem = Problem(s.model, loss, s.dtype, device, "fp32")
    cut = BatchPlan(
        batch=s.batch,
        steps=20 if s.steps is None and s.epochs is None else s.steps,
        epochs=s.epochs,
    )
    cohort = s.clients if s.cohort is None else s.cohort
    K = float(plan_steps(sizes, cut).to(torch.float64).mean())
    plan = Plan(s.clients, cohort, s.rounds, K, problem.layout, s.seed, s.batch, s.held is not None)
    method.check(plan)
    if isinstance(s.aggregate, Robust):
        s.aggregate.check(plan.cohort)
    terms = RunTerms(
        clients=s.clients,
        cohort=cohort,
        rounds=s.rounds,
        plan_steps=K,
        seed=s.seed,
        batch=s.batch,
        held=plan.held,
        width=batch_width(sizes, cut),
        steps=cut.steps,
        epochs=cut.epochs,
        loss=s.loss if isinstance(s.loss, str) else problem.loss_name,
        dtype=str(s.dtype).removeprefix("torch."),
        augment=s.augment,
        words=words_of(s.method, s.set),
        method=digest_method(method),
        model=digest_model(problem),
    )
    crew = FlowerClients(
        method,
        plan,
        sizes,
        problem.start,
        run,
        terms.text(),
        Exchange(registry, s.patience),
        None if s.held is None else _held(method, problem, s.held, cut, s.seed, terms.width),
        s.aggregate,
        s.secure,
    )
    test = None
    if s.test is not None:
        test = Evaluation(problem, _prepared(problem, s.test), dict(s.metrics))
    shape = None if method.penalty is None else _Shape(method.penalty, problem.layout)
    given = options(
        model=s.model,
        federation=None,
        method=method,
        rounds=s.rounds,
        cohort=cohort,
        seed=s.seed,
        eval_every=s.eval_every,
        aggregate=s.aggregate,
    )
    record = _record(s, method, problem, cut, cohort, sizes, crew)
    # The job of a simulation, with another crew; nothing in `train` asks for its data.
    other = cast(Any, (None, crew, shape))
    return Job(
        given,
        method,
        problem,
        other[0],
        plan,
        other[1],
        test,
        None,
        other[2],
        problem.start,
        record,
    )


@dataclass(frozen=True)
class _Shape:
    """What can be said of a regularised model without the clients' data."""

    penalty: Penalty
    layout: Layout

    def measure(self, x: Vector) -> dict[str, float]:
        value = float(self.penalty.value(x, self.layout))
        return {"penalty": value, "sparsity": float(sparsity(x))}


def _prepared(problem: Problem, pair: tuple[Any, Any]) -> Pair:
    inputs, target = as_pair(*pair)
    return problem.prepare(inputs), cast(Tensor, problem.prepare(target))


def _held(
    method: Method, problem: Problem, held: tuple[Any, Any], cut: BatchPlan, seed: int, wide: int
) -> ClientContext:
    """Return a desk on which the server evaluates on its own sample, cut as clients cut theirs."""
    inputs, target = as_pair(*held)
    fed = Federation(inputs, target, [0] * len(target), held=(inputs, target))
    feed = OneClientBatches(problem, fed.to(problem.device, problem.dtype), cut, seed, None, wide)
    return ClientContext(method, feed, Looped(problem))


def _record(
    s: Settings,
    method: Method,
    problem: Problem,
    cut: BatchPlan,
    cohort: int,
    sizes: Tensor,
    crew: FlowerClients,
) -> dict[str, Any]:
    """Return what decides the run as plain data: kept beside the result, compared on resume."""
    first = problem.start.cpu().numpy().tobytes()
    picture = {"clients": list(range(min(s.clients, 100))), "sizes": sizes[:100].tolist()}
    return {
        "tunefree": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": str(problem.device),
        "data": {
            "name": "federation",
            "clients": s.clients,
            "samples": int(sizes.sum()),
            "picture": picture,
        },
        "model": {"name": type(s.model).__name__, "parameters": problem.layout.size},
        "frozen": problem.frozen(),
        "start": hashlib.sha256(first).hexdigest()[:16],
        "method": method.describe(),
        "rounds": s.rounds,
        "batch": s.batch,
        "seed": s.seed,
        "eval_every": s.eval_every,
        "validation": None,
        "patience": None,
        "keep_best": False,
        "cohort": cohort,
        "steps": cut.steps,
        "epochs": cut.epochs,
        "loss": problem.loss_name,
        "dtype": str(s.dtype).removeprefix("torch."),
        "precision": problem.precision,
        "metrics": sorted(s.metrics),
        "per_client": False,
        "heterogeneity": False,
        "augment": s.augment,
        **crew.describe(),
        **({} if s.aggregate is weighted_mean else {"aggregate": repr(s.aggregate)}),
        **({} if s.secure is None else {"secure": repr(s.secure)}),
        "command": {},
    }
