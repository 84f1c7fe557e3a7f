"""Products that are computed by the kernels that use them, on the GPU's code path.

Kernels are replaced by plain products, except for the kernels' own tests: these run on a GPU, or in
Triton's interpreter where TRITON_INTERPRET=1 asks for it.
"""

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree import clients
from tunefree.models import batched, engine
from tunefree.models.compiled import descent, gradient, steps
from tunefree.models.compiled.steps import CompiledSteps
from tunefree.models.gpu import epilogue
from unit.models.compiled.test_steps import PENALTIES, STEPS, one_of_each
from unit.models.gpu.plain_kernels import fake_kernels

pytestmark = pytest.mark.compiled_engines


def federation():
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([5, 9, 16, 12])
    x = torch.randn(int(sizes.sum()), 2, 10, 10, generator=draw)
    y = torch.randint(4, (len(x),), generator=draw)
    return tf.Federation(x, y, torch.repeat_interleave(torch.arange(4), sizes), classes=4)


def net():
    """A network with two large layers; the columns of the first lie as images do on a GPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 129),
            nn.ReLU(), nn.Linear(129, 130), nn.ReLU(), nn.Linear(130, 4),
        )  # fmt: skip


def fit(method, **settings):
    given = {"rounds": 2, "epochs": 2, "steps": None, "batch": 4}
    return tf.fit(net(), federation(), method, device="cpu", **given | settings)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Steps as on a GPU in TF32 from now on, uncompiled; the calls of its kernels."""
    for module in (steps, gradient):
        monkeypatch.setattr(module, "is_on_gpu", lambda problem: True)
    monkeypatch.setattr(steps, "CudaGraphFunction", lambda function, *args: function)
    monkeypatch.setattr(engine, "is_in_place_safe", lambda device: True)
    for module in (steps, batched, descent):
        monkeypatch.setattr(module, "compile_graph", lambda graph, device: graph)
    build = CompiledSteps.__init__

    def in_tf32(self, problem, *args):
        problem.precision = "tf32"  # which a CPU does not have
        build(self, problem, *args)

    monkeypatch.setattr(CompiledSteps, "__init__", in_tf32)
    return fake_kernels(monkeypatch)


@pytest.fixture
def updates(monkeypatch):
    """The updates that were found."""
    found, extract = [], epilogue.extract

    def watched(*args):
        out = extract(*args)
        found.extend(out)
        return out

    monkeypatch.setattr(epilogue, "extract", watched)
    return found


def compare(method, calls, **settings):
    """Assert that fused steps do what the local loop does; both large layers are fused."""
    plain = fit(method, compile=False, **settings)
    calls.clear()
    fused = fit(method, compile=True, **settings)
    moved = plain.x - plain.problem.start
    assert float((fused.x - plain.x).norm() / moved.norm()) < 1e-4
    for one, two in zip(fused.history, plain.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in two.items() if k != "seconds"}, rel=2e-3, nan_ok=True
        )


@pytest.mark.parametrize("name", one_of_each())
def test_methods(name, as_on_a_gpu, updates):
    compare(name, as_on_a_gpu, cohort=None if tf.methods.get(name).full else 3)
    if name != "fedexpsls":  # whose trials need the direction as a whole
        assert len(updates) == 2
        assert {"update"} <= set(as_on_a_gpu)
