"""Compiled descent on the GPU's code path, with plain products for its kernels."""

import pytest
import torch
from benchmarks.workload import make_samples
from torch import nn
from torch.func import grad_and_value, vmap

from tunefree.core.types import map_inputs
from tunefree.models import nets
from tunefree.models.compiled import descent, gradient
from tunefree.models.compiled.descent import CompiledDescent
from tunefree.models.loop import LoopEngine
from tunefree.models.losses import Batch
from tunefree.models.problem import Problem
from unit.models.gpu.plain_kernels import fake_kernels

pytestmark = pytest.mark.compiled_engines

CLIENTS, SAMPLES = 3, 4
KERNELS = {"channel_sums", "descend", "forward", "grad_input", "grad_weight"}


def wide(inplace):
    """Images that are normalised, pooled, dropped and flattened; a large layer behind them."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace), nn.Conv2d(8, 40, 3, padding=1),
        nn.ReLU(inplace), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(640, 32),
        nn.ReLU(inplace), nn.Linear(32, 4),
    )  # fmt: skip


def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.ones(CLIENTS, SAMPLES, dtype=torch.bool)
    mask[1, -1] = False
    return Batch(
        torch.randn(CLIENTS, SAMPLES, 2, 10, 10, generator=draw),
        torch.randint(4, (CLIENTS, SAMPLES), generator=draw),
        mask,
        torch.arange(CLIENTS) + 10 * seed,
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Descent as on a GPU from now on, uncompiled; the calls of its kernels."""
    for module in (descent, gradient):
        monkeypatch.setattr(module, "is_on_gpu", lambda problem: True)
    monkeypatch.setattr(descent, "compile_graph", lambda graph, device: graph)
    monkeypatch.setattr(descent, "CudaGraphFunction", lambda function, *args: function)
    return fake_kernels(monkeypatch)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-4), ("bf16", 0.03)])
def test_steps(precision, tolerance, inplace, as_on_a_gpu):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = wide(inplace)
    problem = Problem(net, precision="bf16" if precision == "bf16" else "fp32")
    y = problem.start + 0.02 * torch.randn(
        CLIENTS, problem.layout.size, generator=torch.Generator().manual_seed(0)
    )
    lr = torch.tensor([0.1, 0.2, 0.0])
    engine, expected, total = LoopEngine(problem), y.clone(), torch.zeros(CLIENTS)
    for seed in range(3):
        loss, slope = engine.value_and_grad(expected, batch(seed))
        expected = expected - lr[:, None] * slope
        total += torch.where(lr > 0, loss, 0.0)

    problem.precision = precision  # which a CPU does not have
    calls = as_on_a_gpu
    fused = CompiledDescent(problem, vmap(grad_and_value(problem.value)), batch(0))
    assert list(fused._gradient._columns) == [6]  # the large layer's columns lie as images do
    fused.begin(y)
    for seed in range(3):
        calls.clear()
        fused.step(batch(seed), lr)
        assert sorted(set(calls)) == [
            "channel_sums",
            "descend",
            "forward",
            "grad_input",
            "grad_weight",
        ]
        assert calls.count("descend") == 1
    found, losses = fused.end()
    assert torch.equal(found[2], y[2])
    error = (found - expected).norm(dim=1)[:2] / (expected - y).norm(dim=1)[:2]
    assert bool((error < tolerance).all()), error
    torch.testing.assert_close(losses, total, rtol=tolerance, atol=tolerance)
    weight = problem.layout.split(found)[6]
    again = fused._gradient.in_model_order(fused._gradient.parts, 6).flatten(2)
    assert torch.equal(weight, again)


class LowRank(nn.Module):
    """A weight that is a product of two, both of them large."""

    def __init__(self):
        super().__init__()
        self.u, self.v = (nn.Parameter(0.1 * torch.randn(s)) for s in ((20, 1024), (1024, 20)))
        self.first, self.last = nn.Linear(200, 20), nn.Linear(20, 4)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).relu()
        return self.last(nn.functional.linear(hidden, self.u @ self.v).relu())


def test_tensors_that_are_factors_of_gradients_have_not_moved_before(as_on_a_gpu):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(LowRank(), precision="fp32")
    rows = problem.start.expand(CLIENTS, -1).contiguous()
    _, slope = LoopEngine(problem).value_and_grad(rows, batch(0))
    problem.precision = "tf32"
    axes = (0, 0, 0, 0, None)
    fused = CompiledDescent(problem, vmap(grad_and_value(problem.value), in_dims=axes), batch(0))
    fused.begin(rows)
    fused.step(batch(0), torch.full((CLIENTS,), 0.5))
    torch.testing.assert_close(fused.end()[0], rows - 0.5 * slope, rtol=1e-5, atol=1e-6)
    assert "descend" not in as_on_a_gpu


class Twice(nn.Module):
    """A weight that meets flattened images in bfloat16, and is read as it is besides."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense, self.last = nn.Conv2d(2, 8, 3), nn.Linear(512, 64), nn.Linear(64, 4)

    def forward(self, x):
        out = self.last(self.dense(self.conv(x).relu().flatten(1)).relu())
        scale = torch.linspace(0, 9, 512, device=x.device) @ self.dense.weight.detach().float().T
        return out * (1 + scale.mean())


def test_a_weight_that_is_read_in_both_precisions_lies_as_it_did(as_on_a_gpu):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(Twice(), precision="bf16")
    rows, lr = problem.start.expand(CLIENTS, -1).contiguous(), torch.full((CLIENTS,), 0.1)
    loss, slope = LoopEngine(problem).value_and_grad(rows, batch(0))
    axes = (0, 0, 0, 0, None)
    fused = CompiledDescent(problem, vmap(grad_and_value(problem.value), in_dims=axes), batch(0))
    fused.begin(rows)
    fused.step(batch(0), lr)
    found, total = fused.end()
    torch.testing.assert_close(total, loss, rtol=1e-2, atol=1e-2)
    assert float((found - rows + 0.1 * slope).norm() / (0.1 * slope).norm()) < 0.1
    assert "forward" in as_on_a_gpu


def test_one_client_alone(as_on_a_gpu):
    """As on a machine of its own: the large layer's columns lie as images do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(wide(inplace=False), precision="fp32")
    rows, given = problem.start[None].clone(), batch(0)
    one = Batch(given.inputs[:1], given.target[:1], given.mask[:1], given.key[:1])
    _, slope = LoopEngine(problem).value_and_grad(rows, one)
    problem.precision = "tf32"
    fused = CompiledDescent(problem, vmap(grad_and_value(problem.value)), one)
    assert list(fused._gradient._columns) == [6]
    fused.begin(rows)
    fused.step(one, torch.tensor([0.5]))
    torch.testing.assert_close(fused.end()[0], rows - 0.5 * slope, rtol=1e-4, atol=1e-6)
    assert "descend" in as_on_a_gpu


IMAGES, SMALL = ((3, 32, 32), 10), ((1, 28, 28), 10)
NETWORKS = {  # shape, classes, smaller sizes; weights with reordered columns, any factored gradient
    "linear": (*SMALL, {}, [], False),
    "mlp": (*SMALL, {}, [], True),
    "convex": ((1, 8, 8), 5, {}, [], False),
    "cnn-p1": ((1, 28, 28), 62, {}, [4], True),
    "cnn-p2": (*SMALL, {}, [4], False),
    "cnn-p4": (*SMALL, {}, [4], True),
    "cnn-pfl": (*IMAGES, {}, [4], True),
    "resnet18": ((3, 16, 16), 10, {"width": 8}, [], False),  # its first three blocks
    "vit": ((3, 16, 16), 10, {"layers": 1}, [], False),
    "lstm": ((3,), 80, {"hidden": 64, "embedding": 64}, [], True),
    "text": ((12,), 2, {}, [], False),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_reference_networks(name, as_on_a_gpu):
    shape, classes, sizes, reordered, factored = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nets.build(name, shape=shape, classes=classes, **sizes)
        if name == "resnet18":  # tracing takes seconds per block; these have all kinds of layers
            net.blocks, net.head = net.blocks[:3], nn.Linear(16, classes)
        problem = Problem(net, precision="fp32")
    x, y = make_samples(name, shape, classes, 2 * SAMPLES)
    problem.check(map_inputs(lambda t: t[:2], x), y[:2], classes - 1)
    given = Batch(
        map_inputs(lambda t: t.unflatten(0, (2, SAMPLES)), x),
        y.unflatten(0, (2, SAMPLES)),
        torch.ones(2, SAMPLES, dtype=torch.bool),
        torch.arange(2),
    )
    draw = torch.Generator().manual_seed(0)
    rows = problem.start + 0.01 * torch.randn(2, problem.layout.size, generator=draw)
    _, slope = LoopEngine(problem).value_and_grad(rows, given)
    problem.precision = "tf32"
    axes = (0, 0, 0, 0, 0 if problem.has_dropout else None)
    fused = CompiledDescent(problem, vmap(grad_and_value(problem.value), in_dims=axes), given)
    assert list(fused._gradient._columns) == reordered
    assert ("descend" in as_on_a_gpu) == factored
    fused.begin(rows)
    fused.step(given, torch.tensor([0.05, 0.02]))
    moved = (fused.end()[0] - rows) / -torch.tensor([[0.05], [0.02]])
    assert float((moved - slope).norm() / slope.norm()) < 2e-4
