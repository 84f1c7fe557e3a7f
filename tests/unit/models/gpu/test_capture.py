"""Captured calls return the same results.

Without a GPU, a fake capture calls the function again and overwrites its old results in place.
"""

import pytest
import torch
from torch.utils._pytree import tree_flatten

import tunefree as tf
from tunefree.models import batched
from tunefree.models.gpu import capture
from tunefree.models.losses import DeferredBatch
from tunefree.models.problem import Problem
from tunefree.simulation.batches import BatchSource
from tunefree.testing._problem import make_federation, make_net

pytestmark = pytest.mark.compiled_engines


@pytest.fixture
def by_hand(monkeypatch):
    made = []

    def record(call, pool):
        out = call()
        places = tree_flatten(out)[0]

        def replay():
            for place, value in zip(places, tree_flatten(call())[0], strict=True):
                place.copy_(value)

        for place in places:
            place.fill_(float("nan"))
        made.append(replay)
        return replay, out

    monkeypatch.setattr(capture, "warm_up", lambda call: call())
    monkeypatch.setattr(capture, "capture", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(batched, "is_on_gpu", lambda problem: True)
    return made


def fit(name, penalty=None, **settings):
    method = tf.methods.get(name, **({} if penalty is None else {"penalty": penalty}))
    return tf.fit(
        make_net(0), make_federation(), method, rounds=4, cohort=None if method.full else 4,
        steps=5, batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=4, engine="vmap",
        **({"compile": False} | settings),
    )  # fmt: skip


METHODS = ["fedavg", "scaffold", "fedexpsls", "mime", "feddyn", "fedproxlod", "fedcanon"]


@pytest.mark.parametrize("places", [1, 2, 6])
@pytest.mark.parametrize("name", METHODS)
def test_recorded_runs_have_the_same_bits(name, places, request, monkeypatch):
    plain = fit(name)
    made = request.getfixturevalue("by_hand")
    monkeypatch.setattr(capture, "MAX_ADDRESSES", places)
    recorded = fit(name)
    assert made
    assert torch.equal(recorded.x, plain.x)
    assert torch.equal(recorded.output, plain.output)
    for a, b in zip(recorded.history, plain.history, strict=True):
        assert {n: v for n, v in a.items() if n != "seconds"} == {
            n: v for n, v in b.items() if n != "seconds"
        }


def test_unequal_clients_and_augmented_dropout(request):
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, 6, 6, generator=draw)
    y = torch.randint(3, (40,), generator=draw)
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor([3, 7, 20, 10]))
    data = tf.Federation(x, y, owner, classes=3)

    def run():
        torch.manual_seed(0)
        layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Dropout(0.5))
        model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 3))
        return tf.fit(
            model, data, tf.methods.get("fedavg", lr=0.1), rounds=3, epochs=2, batch=4, cohort=3,
            preprocess=tf.Preprocess(augment="crop-flip"), device="cpu", engine="vmap",
            compile=False,
        )  # fmt: skip

    plain = run()
    request.getfixturevalue("by_hand")
    recorded = run()
    torch.testing.assert_close(recorded.x, plain.x, rtol=1e-5, atol=1e-6)  # products, not groups


def test_a_model_that_cannot_be_recorded_still_runs(by_hand, monkeypatch, caplog):
    def record(call, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    expected = fit("fedavg")
    monkeypatch.setattr(capture, "capture", record)
    run = fit("fedavg")
    assert torch.equal(run.x, expected.x)
    assert "cannot be recorded for the GPU (operation not permitted" in caplog.text


def test_memory_that_ends_halves_the_chunk(by_hand, monkeypatch, caplog):
    expected = fit("scaffold")
    real = batched.VmapEngine.value_and_grad

    def small(self, y, *rest):
        if len(y) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, y, *rest)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    probe = batched.VmapEngine.value_and_grad
    calls = []

    def later(self, y, *rest):  # the probe before round 0 is not what is tested
        calls.append(len(y))
        return small(self, y, *rest) if len(calls) > 3 else probe(self, y, *rest)

    monkeypatch.setattr(batched.VmapEngine, "value_and_grad", later)
    run = fit("scaffold")
    torch.testing.assert_close(run.x, expected.x, rtol=1e-12, atol=1e-14)
    assert [row["bytes_up"] for row in run.history] == [r["bytes_up"] for r in expected.history]
    assert [row["gradients"] for row in run.history] == [r["gradients"] for r in expected.history]
    assert "does not hold 4 clients at once; going on with 2" in caplog.text
    assert min(calls) == 2


def test_places_that_come_again_get_recordings(by_hand, monkeypatch):
    monkeypatch.setattr(capture, "MAX_ADDRESSES", 4)
    monkeypatch.setattr(capture, "CAPTURE_AT_MISS", 3)
    rows = [torch.full((3,), float(i)) for i in range(40)]
    double = capture.CudaGraphFunction(lambda y: (2 * y,), rows[0])

    def recordings(places):
        before = len(by_hand)
        for i in places:
            assert torch.equal(double(rows[i])[0], 2 * rows[i])
        return len(by_hand) - before

    assert recordings([0, 0]) == 0
    assert recordings([1, 2, 1, 2, 3]) == 1  # seldom seen: copied to a place that has a recording
    assert recordings([1, 2, 0]) == 2  # they come again
    assert recordings([1, 2, 0] * 5) == 0
    assert recordings([7, 8, 9] * 3) == 3  # they come again, and take the places of the others
    assert recordings([7, 8, 9] * 5) == 0
    assert recordings([*range(10, 40)] * 3) <= 2 * capture.MAX_CAPTURES
    assert recordings([*range(10, 40)] * 3) == 0  # too many places: all are copied


@pytest.mark.parametrize(
    ("method", "penalty", "shape"),
    [
        ("fedmid", "1e-3*nuclear", [True, True]),
        ("fedmid", "1e-3*l1", [True]),
        ("scaffold", None, [True]),
        ("fedavg", None, [True]),
    ],
)
def test_what_is_compiled_is_the_form_of_training(method, penalty, shape, by_hand, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        torch._inductor, "compile", lambda graph, args: compiled.append(graph) or graph
    )
    monkeypatch.setattr("tunefree.models.engine.is_in_place_safe", lambda device: True)
    monkeypatch.setattr(BatchSource, "probe", BatchSource.order)  # as on a GPU
    monkeypatch.setattr(Problem, "activation_bytes", lambda *args: 0)
    monkeypatch.setattr(DeferredBatch, "row", lambda order, i: (), raising=False)
    shapes = []
    real = batched.VmapEngine._record
    monkeypatch.setattr(
        batched.VmapEngine, "_record", lambda *args: shapes.append(args[-1]) or real(*args)
    )
    fit(method, penalty, compile=True)
    assert len(compiled) == 2  # gradients or whole steps, and the losses that nobody asks for here
    assert shapes == shape  # training has met no shape but the one that was compiled
