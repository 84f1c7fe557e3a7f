"""The small problem that methods are checked on: six uneven clients, three classes."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.random import cohort
from ..data.federation import Federation
from ..methods import Method
from ..rounds.server import init_server_state, run_round
from ..training.bind import BoundRun, bind
from ..training.client_data import SimulatedClients
from ..training.config import RunConfig
from ..training.fit import fit
from ..training.run import Run

SIZES = (3, 9, 5, 12, 4, 7)  # samples of the clients: one to three batches of 4 in a pass
FEATURES, CLASSES = 5, 3
ROUNDS = 3


def make_federation(order: Sequence[int] | None = None, spread: float = 1.5) -> Federation:
    """Return six clients of unequal size; client i is called order[i], which decides its id."""
    draw = torch.Generator().manual_seed(3)
    names = range(len(SIZES)) if order is None else order
    x = torch.randn(sum(SIZES), FEATURES, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (sum(SIZES),), generator=draw)
    anchor = spread * torch.randn(len(SIZES), FEATURES, generator=draw, dtype=torch.float64)
    ids = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    test = (x[::3].clone(), y[::3].clone())
    held = (x[1::4].clone(), y[1::4].clone())
    owner = torch.tensor(list(names))[ids]
    return Federation(x + anchor[ids], y, owner, test=test, held=held, classes=CLASSES)


def make_net(dropout: float = 0.3, seed: int = 0) -> nn.Module:
    """Return a perceptron with one hidden layer of six, float64; 57 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, CLASSES)
        ).to(torch.float64)


def _settings(method: Method, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fit`: minibatches, uneven steps, some of the clients, float64.

    Clients run one after another, which starts faster than training them in one batch.
    """
    out: dict[str, Any] = {"rounds": ROUNDS, "cohort": 4, "batch": 4, "seed": 7, "engine": "loop"}
    out |= {"device": "cpu", "dtype": torch.float64} | given
    if method.full:
        out["cohort"] = None
    if method.step.most is not None:  # a solver works on all of a client's data
        out["batch"] = None
    return out if "steps" in out else {"epochs": 1} | out


def run_trial(
    method: Method, fed: Federation | None = None, model: nn.Module | None = None, **given: Any
) -> Run:
    """Run a copy of the method, as a new process would: what a part hides in itself is lost."""
    fed = make_federation() if fed is None else fed
    model = make_net() if model is None else model
    return fit(model, fed, copy.deepcopy(method), **_settings(method, given))


def bind_trial(method: Method, **given: Any) -> BoundRun:
    """Return such a run of the method itself, bound but not started."""
    given = _settings(method, given)
    return bind(RunConfig(method=method, **given), make_net(), SimulatedClients(make_federation()))


def run_rounds(run: BoundRun) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Run the rounds of a bound run; yield each cohort and the history's row."""
    plan = run.plan
    now = init_server_state(run.method, run.start, plan)
    for t in range(plan.rounds):
        ids = cohort(plan.seed, t, plan.clients, plan.cohort)
        now, row = run_round(run.method, plan, now, run.pool, ids)
        run.pool.commit()
        yield ids, row
