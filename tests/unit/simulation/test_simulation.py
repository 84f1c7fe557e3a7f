"""Exchanges inside a round: full-data means over those asked, and what they cost."""

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound
from tunefree.core.errors import ArgumentError
from tunefree.core.random import cohort
from tunefree.rounds.pool import QueryRequest
from tunefree.rounds.server import init_server_state, run_round
from tunefree.wire import Ledger

SIZES = (3, 7, 1, 12)
D = 5


def data(seed=0, held=True):
    g = torch.Generator().manual_seed(seed)
    rows = sum(SIZES)
    x = torch.randn(rows, D, generator=g, dtype=torch.float64)
    y = torch.randn(rows, generator=g, dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))
    own = (x[:6] + 1, y[:6]) if held else None
    return tf.Federation(x, y, owner, held=own)


def simulation(fed, **given):
    model = nn.Linear(D, 1, bias=False)
    job = bound(model=model, federation=fed, dtype=torch.float64, **given)
    return job.pool, job.start


def by_hand(x, y, w):
    """Loss and gradient of mean (x w - y)^2."""
    error = x @ w - y
    return error.square().mean(), 2 * (error[:, None] * x).mean(0)


def expected(fed, ids, w, weights):
    pairs = [by_hand(*fed.client(i), w) for i in ids]
    p = torch.tensor([float(SIZES[i]) if weights == "samples" else 1.0 for i in ids])
    p = p.double() / p.sum()
    return {
        "loss": sum(a * loss for a, (loss, _) in zip(p, pairs, strict=True)),
        "grad": sum(a * g for a, (_, g) in zip(p, pairs, strict=True)),
        "grad_sq": sum(a * g.square().sum() for a, (_, g) in zip(p, pairs, strict=True)),
    }


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("who", ["cohort", "all"])
@pytest.mark.parametrize("batch", [2, 5, None])
def test_asks_mean_over_all_data_of_those_asked(who, weights, batch):
    fed = data()
    method = tf.methods.get("fedavg", weights=weights)
    sim, w = simulation(fed, method=method, chunk=3, batch=batch)  # seen in blocks of a batch
    ids = torch.tensor([0, 3])
    want = expected(fed, ids.tolist() if who == "cohort" else range(4), w, weights)
    for what, value in want.items():
        (got,) = sim.query(QueryRequest(ids, 0, what, [w], who), Ledger())
        torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12)


def test_asks_are_counted():
    sim, w = simulation(data())
    ids = torch.tensor([0, 1, 3])
    for what, numbers in (("loss", 1), ("grad_sq", 1), ("grad", D)):
        ledger = Ledger()
        sim.query(QueryRequest(ids, 0, what, [w, 2 * w]), ledger)
        assert ledger.bytes_down == 2 * 3 * D * 8
        assert ledger.bytes_up == 2 * 3 * numbers * 8


def test_the_servers_own_sample_costs_nothing():
    fed = data()
    sim, w = simulation(fed, method="fedavg")
    ledger = Ledger()
    loss, grad = by_hand(*fed.held, w)
    for what, value in (("loss", loss), ("grad", grad)):
        (got,) = sim.query(QueryRequest(torch.tensor([0]), 0, what, [w], "held"), ledger)
        torch.testing.assert_close(got, value)
    assert ledger.bytes_up == ledger.bytes_down == 0


def test_no_sample_no_answer():
    sim, w = simulation(data(held=False))
    with pytest.raises(ArgumentError, match=r"give Federation\(held=...\)"):
        sim.query(QueryRequest(torch.tensor([0]), 0, "loss", [w], "held"), Ledger())


def test_scaffold_option_one_keeps_the_gradient_over_all_data():
    fed = data()
    method = tf.methods.get("scaffold", option="I", lr=0.01)
    sim, w = simulation(fed, method=method, batch=2, steps=3)
    plan = bound(model=nn.Linear(D, 1, bias=False), federation=fed, method=method, steps=3).plan
    run_round(method, plan, init_server_state(method, w, plan), sim, cohort(0, 0, 4, 4))
    assert not sim.memory.gather(torch.arange(4))["direction.control"].any()
    sim.commit()
    rows = sim.memory.gather(torch.arange(4))["direction.control"]
    want = torch.stack([by_hand(*fed.client(i), w)[1] for i in range(4)])
    torch.testing.assert_close(rows, want, rtol=1e-12, atol=1e-12)
