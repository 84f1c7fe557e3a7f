"""The client's half of a round, on losses f_i(y) = (a_i / 2) |y|^2."""

from dataclasses import dataclass, replace

import pytest
import torch

import tunefree as tf
from helpers import Bowls, assert_close, tensor
from tunefree.clients import Constant, Direction, LocalPhases, LocalProblem, Round, loop
from tunefree.core.errors import ArgumentError
from tunefree.core.random import key, purpose
from tunefree.core.types import select_prefix
from tunefree.rounds.client import (
    ClientTask,
    init_client_memory,
    local_update,
    make_sender,
    pack_uploads,
    update_memory,
    wire_for_round,
)
from tunefree.wire import Dense, Ledger, TopK

from .pool import IDS, PLAN, START

NOW, FIRST = Round(PLAN, 0, fraction=0.5), Round(PLAN, -1)
A = tensor(1.0, 2.0)  # curvatures of two clients


class Task:
    """Two clients with 3 local steps each; notes what is asked for."""

    def __init__(self):
        self.phases, self.asked = [], []

    def batches(self, phase, steps):
        self.phases.append((phase, steps))
        count = 3 if steps is None else steps
        share = torch.full((2, count), 0.5, dtype=torch.float64)
        return loop.LocalBatches(lambda k: k, torch.tensor([count, count]), share, (count, count))

    def full_loss(self, y, with_grad):
        self.asked.append((y, with_grad))
        rows = y.expand(2, 2)
        return A / 2 * rows.square().sum(1), A[:, None] * rows

    def update(self, method, own=None, t=NOW, **down):
        task = ClientTask(Bowls(A.tolist(), (99, 99)), self.batches, self.full_loss)
        own = {} if own is None else own
        return local_update(method, task, {"x": START, **down}, own, t)


def shrunk(steps, lr=0.1):
    """The iterates after so many steps."""
    return ((1 - lr * A) ** steps)[:, None] * START


def test_the_move_is_sent():
    sent, kept, (work,) = Task().update(tf.Method(step=Constant(0.1)))
    assert sent.keys() == {"delta"}
    assert_close(sent["delta"], shrunk(3) - START)
    assert_close(work.y, shrunk(3))
    assert kept == {}


def test_the_schedule_multiplies_the_step():
    method = tf.Method(step=Constant(0.1))
    sent, _, _ = Task().update(method, t=replace(NOW, factor=0.5))
    assert_close(sent["delta"], shrunk(3, 0.05) - START)


def test_weight_decay_and_clipping_are_the_methods():
    sent, _, _ = Task().update(tf.Method(step=Constant(0.1), weight_decay=1.0))
    assert_close(sent["delta"], ((0.9 - 0.1 * A) ** 3)[:, None] * START - START)
    _, _, (work,) = Task().update(tf.Method(step=Constant(0.1), clip=0.01))
    assert_close((work.y - START).norm(dim=1), tensor(0.003, 0.003), 1e-9)


@dataclass(frozen=True)
class Twice(Direction):
    """Two phases; the second starts where the first ended, and remembers it."""

    uploads = ("end",)

    def init(self, x, plan):
        return {"end": torch.zeros_like(x)}, {}

    def local_phases(self, t):
        return LocalPhases(2, 1)

    def local_problem(self, x, down, own, t):
        return LocalProblem(start=own["end"] if t.phase else None)

    def between_phases(self, result, own, t):
        return {"end": result.y}

    def upload(self, result, own, t):
        return {"end": own["end"]}, {"end": result.y}


def test_phases_follow_each_other():
    method, task = tf.Method(direction=Twice(), step=Constant(0.1)), Task()
    own = {"direction.end": torch.zeros(2, 2, dtype=torch.float64)}
    sent, kept, phases = task.update(method, own)
    assert task.phases == [(0, 1), (1, 1)]
    assert_close(sent["end"], shrunk(1))
    assert_close(phases[1].y, shrunk(2))
    assert_close(kept["direction.end"], shrunk(2))


def test_nothing_but_what_a_part_prepares_is_sent_before_round_0():
    method = tf.methods.get("comparfrefl")
    memory = init_client_memory(method, START, PLAN)
    own = {name: v.expand(2, *v.shape).clone() for name, v in memory.items()}
    sent, _, _ = Task().update(method, own, FIRST)
    assert set(sent) <= set(method.channels(True))
    sent, _, _ = Task().update(method, own)
    assert set(sent) <= set(method.channels(False))


@dataclass(frozen=True)
class Undeclared(Direction):
    def local_problem(self, x, down, own, t):
        return LocalProblem()

    def upload(self, result, own, t):
        return {"secret": result.y}, own


def test_a_channel_that_is_not_declared_is_refused():
    with pytest.raises(ArgumentError, match="sends the channel 'secret', which neither"):
        Task().update(tf.Method(direction=Undeclared(), step=Constant(0.1)))


def test_a_gradient_over_all_data_is_taken_where_a_part_reads_it():
    task = Task()
    task.update(tf.Method(step=Constant(0.1)))
    assert task.asked == []
    task.update(tf.methods.get("fedlin", lr=0.1), grad=torch.zeros_like(START))
    assert [(y is START, with_grad) for y, with_grad in task.asked] == [(True, True)]


def test_memory_is_named_by_part_and_channel():
    method = tf.methods.get("scaffold", wire="ef+topk:0.5")
    memory = init_client_memory(method, START, PLAN)
    assert memory.keys() == {
        "direction.control",
        "wire.delta.error",
    }  # changes of the control are error-compensated
    assert all(torch.equal(v, torch.zeros_like(START)) for v in memory.values())


def test_vectors_are_packed_and_scalars_sent_as_they_are():
    method, ledger = tf.Method(server=tf.server.FedExP(), wire="ef+topk:0.5"), Ledger()
    rows = tensor([3.0, 1.0], [1.0, 2.0])
    own = {"wire.delta.error": tensor([0.0, 4.0], [0.0, 0.0])}
    arrived, kept = pack_uploads(method, {"delta": rows}, own, IDS, NOW, ledger)
    assert torch.equal(arrived["delta"], tensor([0.0, 5.0], [0.0, 2.0]))
    assert torch.equal(kept["wire.delta.error"], tensor([3.0, 0.0], [1.0, 0.0]))
    assert torch.equal(arrived["delta_sq"], tensor(25.0, 4.0))  # of what arrives
    assert ledger.up["delta_sq"] == 16
    assert ledger.up["delta"] > 0
    assert ledger.counted_up == 16 + 16  # a value of each client, and its length


def test_nothing_is_compressed_before_round_0():
    method = tf.Method(wire="topk:0.5")
    assert wire_for_round(method, "delta", NOW) == TopK(0.5)
    assert wire_for_round(method, "delta", FIRST) == Dense()


def test_the_bits_of_a_wire_depend_on_seed_round_client_and_channel():
    sender = make_sender("delta", IDS, NOW)
    assert torch.equal(sender.keys, key(PLAN.seed, "wire", 0, IDS, purpose("delta")))
    for other in (
        make_sender("control", IDS, NOW),
        make_sender("delta", IDS, replace(NOW, index=1)),
        make_sender("delta", IDS + 1, NOW),
        make_sender("delta", IDS, replace(NOW, plan=replace(PLAN, seed=1))),
    ):
        assert not bool((other.keys == sender.keys).any())


def test_clients_remember_what_arrived():
    """A control variate moves by what the server got, and a wire keeps its own memory."""
    method = tf.methods.get("scaffold", wire="ef+topk:0.5")
    memory = init_client_memory(method, START, PLAN)
    own = {name: v.expand(2, *v.shape).clone() for name, v in memory.items()}
    own["wire.delta.error"] += 7
    own["direction.new"] = tensor([1.0, 2.0], [3.0, 4.0])
    sent = {"delta": tensor([1.0, 2.0], [3.0, 4.0]), "control": tensor([1.0, 2.0], [3.0, 4.0])}
    arrived = {"delta": sent["delta"], "control": tensor([0.0, 2.0], [0.0, 4.0])}
    kept = update_memory(method, sent, arrived, {}, own, NOW)
    assert kept.keys() == memory.keys()
    assert torch.equal(kept["wire.delta.error"], own["wire.delta.error"])
    assert torch.equal(select_prefix(kept, "direction")["control"], arrived["control"])
