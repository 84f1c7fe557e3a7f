"""The server's half of a round, with clients whose answers are written down."""

import dataclasses
import math

import pytest
import torch

import tunefree as tf
from helpers import assert_close, tensor
from tunefree.clients import Constant
from tunefree.core.random import cohort
from tunefree.rounds.server import (
    exchange_moments,
    init_server_state,
    output_model,
    run_round,
)
from tunefree.server import Average, Averaged
from tunefree.wire import Ledger

from .pool import IDS, PLAN, START, Written, result

HALF = tf.Method(step=Constant(0.1), server=Average(0.5))


def begin(method):
    return init_server_state(method, START, PLAN)


def test_the_server_steps_along_the_mean():
    pool = Written(result(2.0, 4.0, gradients=6.0))
    after, row = run_round(HALF, PLAN, begin(HALF), pool, IDS)
    assert torch.equal(after.x, tensor(2.0, 0.0))
    assert after.round == 1
    ((ids, down, t),) = pool.trained
    assert (ids, t.index, t.fraction) == ([2, 0], 0, 0.5)
    assert torch.equal(down["x"], START)
    assert row | {"server_step": None} == {
        "round": 0,
        "train_loss": 0.5,
        "bytes_up": 32,
        "bytes_up.delta": 32,
        "bytes_down": 32,
        "bytes_down.x": 32,
        "gradients": 6.0,
        "server_step": None,
    }
    assert pool.commits == 0  # the trainer commits, once the round counts


def test_the_schedule_is_that_of_the_round():
    method = dataclasses.replace(HALF, schedule="exponential")
    pool, now = Written(result(0.0, 0.0), result(0.0, 0.0)), begin(method)
    for _ in range(2):
        now, _ = run_round(method, PLAN, now, pool, IDS)
    assert [t.factor for _, _, t in pool.trained] == [1.0, 0.998]


def test_bytes_that_were_sent_before_are_in_the_row():
    ledger = Ledger()
    ledger.send_down({"scale": tensor(1.0, 1.0)}, 4)
    _, row = run_round(HALF, PLAN, begin(HALF), Written(result(0.0, 0.0)), IDS, ledger)
    assert (row["bytes_down"], row["bytes_down.scale"]) == (96, 64)


class Asking(Average):
    """Asks for losses at x when a round starts, and moves by the answers."""

    def __init__(self, who):
        super().__init__()
        object.__setattr__(self, "who", who)

    def start_round(self, x, state, t, query):
        return {"answer": query("grad", [x], self.who)[0]}

    def step(self, x, mean, state, t, query):
        return x + state["answer"], state, {"server_step": x.new_ones(())}


@pytest.mark.parametrize("who", ["cohort", "all", "panel"])
def test_a_rule_asks_before_clients_train(who):
    method, pool = tf.Method(step=Constant(0.1), server=Asking(who)), Written(result(0.0, 0.0))
    after, row = run_round(method, PLAN, begin(method), pool, IDS)
    assert torch.equal(after.x, 11 * START)
    (request,) = pool.asked
    assert (request.what, request.t) == ("grad", 0)
    panel = cohort(PLAN.seed, -2, 4, 4)  # three times the cohort, or all that there are
    expected = {"cohort": IDS, "all": torch.arange(4), "panel": panel}[who]
    assert torch.equal(request.ids(4), expected)
    assert row["bytes_down.point 0"] == 16 * len(expected)


def test_a_round_without_answers_changes_nothing_but_its_number():
    method = tf.Method(step=Constant(0.1), server=Average(0.5), output=Averaged())
    now = begin(method)
    after, row = run_round(method, PLAN, now, Written(None), IDS)
    assert after.round == 1
    kept = now.tensors()
    assert after.tensors().keys() == kept.keys()
    assert all(torch.equal(v, kept[name]) for name, v in after.tensors().items())
    assert math.isnan(row["train_loss"])
    assert row["answered"] == 0


class Fraction(Average):
    def step(self, x, mean, state, t, query):
        return x, state, {"server_step": x.new_tensor(t.fraction)}


@pytest.mark.parametrize(("answered", "expected"), [(None, 0.5), (0.25, 0.25)])
def test_the_rule_knows_the_weight_of_those_who_answered(answered, expected):
    method = tf.Method(step=Constant(0.1), server=Fraction())
    _, row = run_round(
        method, PLAN, begin(method), Written(result(0.0, 0.0, fraction=answered)), IDS
    )
    assert row["server_step"] == expected


class Recovers(Average):
    def recover(self, x, state, t):
        return x / 2, state


def test_a_loss_that_is_not_finite_is_left_to_the_rule():
    lost = result(2.0, 4.0, loss=math.nan)
    method = tf.Method(step=Constant(0.1), server=Recovers())
    after, row = run_round(method, PLAN, begin(method), Written(lost), IDS)
    assert torch.equal(after.x, START / 2)
    assert row["recovered"] == 1
    after, row = run_round(HALF, PLAN, begin(HALF), Written(lost), IDS)
    assert torch.equal(after.x, START + tensor(1.0, 2.0))  # the trainer sees the loss
    assert "recovered" not in row


def test_everyone_prepares_before_round_0_and_the_server_does_not_step():
    method = tf.methods.get("comparfrefl")
    sent = {name: tensor(0.0, 0.0) for name in method.channels(False)}
    mean = result(0.0, 0.0, gradients=2.0)
    mean = dataclasses.replace(mean, mean=mean.mean | sent)
    pool, now = Written(mean, mean, mean), begin(method)
    now, first = run_round(method, PLAN, now, pool, IDS)
    assert [(ids, t.index) for ids, _, t in pool.trained] == [([0, 1, 2, 3], -1), ([2, 0], 0)]
    assert pool.commits == 1  # of what clients remember of it
    assert first["gradients"] == 4.0
    assert first["bytes_up.delta"] == 16 * 6
    _, second = run_round(method, PLAN, now, pool, IDS)
    assert pool.trained[-1][2].index == 1
    assert second["gradients"] == 2.0


def test_what_is_shipped_is_that_of_the_output():
    method = tf.Method(step=Constant(0.1), server=Average(), output=Averaged(gamma=0))
    pool, now, passed = Written(result(2.0, 0.0), result(2.0, 0.0)), begin(method), []
    for _ in range(2):
        now, _ = run_round(method, PLAN, now, pool, IDS)
        passed.append(now.x)
    assert_close(output_model(method, now), torch.stack(passed).mean(0))


def test_a_state_is_restored_by_name_and_form():
    method = tf.methods.get("fedadam")
    now, _ = run_round(method, PLAN, begin(method), Written(result(2.0, 4.0)), IDS)
    tensors = now.tensors()
    assert {"x"} < tensors.keys()
    again = begin(method).restored(1, tensors)
    assert again.round == 1
    assert all(torch.equal(v, tensors[name]) for name, v in again.tensors().items())
    for wrong in (tensors["x"].float(), tensors["x"][:1]):
        with pytest.raises(ValueError, match=r"^x is torch\.float"):
            begin(method).restored(1, tensors | {"x": wrong})


class Columns(Written):
    """Clients that have rows, and answer with their moments."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def query(self, request, ledger):
        self.asked.append(request)
        request.count_down(len(request.ids(4)), ledger)
        z = self.rows.double() - request.at[0]
        count = z.new_tensor([len(z)])
        return [torch.cat([count, z.sum(0), z.square().sum(0)]) / 4]  # all count alike


def moments(rows, **given):
    pool, ledger = Columns(rows), Ledger()
    return exchange_moments(pool, 4, rows[:1], ledger, **given), pool, ledger


def test_moments_are_those_of_all_rows():
    rows = tensor([0.0, 3.0], [2.0, 3.0], [4.0, 3.0])
    found, pool, ledger = moments(rows)
    assert_close(found, tensor([2.0, 3.0], [math.sqrt(8 / 3), 1.0]))  # a constant column has 1
    assert [(r.what, r.t) for r in pool.asked] == [("moments", -1)] * 2  # its variance was lost
    assert ledger.down == {"point 0": 64, "scale": 128}


@pytest.mark.parametrize("once", [False, True])
def test_columns_far_from_zero_are_asked_for_again_at_their_mean(once):
    rows = 1e9 + tensor([-2.0], [2.0])
    found, pool, _ = moments(rows, once=once)
    assert len(pool.asked) == 2 - once
    assert float(found[0]) == 1e9
    assert float(found[1]) == (1.0 if once else 2.0)  # or taken for a constant
    if not once:
        assert float(pool.asked[1].at[0]) == 1e9
