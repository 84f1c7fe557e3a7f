"""The choice of the engine, its fallbacks and warnings; agreement of the engines."""

import logging
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import assert_close, fit, labelled
from tunefree.core.errors import ArgumentError
from tunefree.models import batched
from tunefree.models.batched import VmapEngine
from tunefree.models.compiled.descent import CompiledDescent
from tunefree.models.engine import select_engine
from tunefree.models.gpu import rewrite
from tunefree.models.loop import LoopEngine
from tunefree.models.losses import Batch
from tunefree.models.problem import Problem
from tunefree.simulation import engine as engine_choice


class Branching(nn.Module):
    """A model that looks at its data, which vmap cannot batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(x.flatten(1) if x.sum() > 0 else -x.flatten(1))


def federation():
    x = torch.randn(9, 4, 2, generator=torch.Generator().manual_seed(0))
    return tf.Federation(x, (x.sum((1, 2)) > 0).long(), [0, 0, 0, 0, 1, 1, 1, 2, 2])


def batch(shape=(3, 4, 3), width=4):
    draw = torch.Generator().manual_seed(0)
    mask = torch.arange(width) < torch.tensor([4, 2, 3])[:, None]
    return Batch(
        inputs=torch.randn(*shape, generator=draw, dtype=torch.float64),
        target=torch.randint(2, (3, width), generator=draw),
        mask=mask,
        key=torch.tensor([1, 2, 3]),
    )


def problem():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.4), nn.Linear(5, 2))
    return Problem(net, "cross_entropy", torch.float64)


def test_the_engines_agree_and_are_right():
    p = problem()
    y = p.start + 0.1 * torch.arange(3)[:, None]
    one, other = VmapEngine(p), LoopEngine(p)
    values, grads = one.value_and_grad(y, batch())
    for engine in (one, other):
        torch.testing.assert_close(engine.value(y, batch()), values, rtol=1e-12, atol=1e-12)
    again = other.value_and_grad(y, batch())
    torch.testing.assert_close(again[0], values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again[1], grads, rtol=1e-12, atol=1e-12)
    step = 1e-6
    for j in (0, 7, 20):
        up, down = y.clone(), y.clone()
        up[:, j] += step
        down[:, j] -= step
        slope = (one.value(up, batch()) - one.value(down, batch())) / (2 * step)
        torch.testing.assert_close(slope, grads[:, j], rtol=1e-6, atol=1e-8)


def test_recorded_graphs_have_the_same_bits():
    """Other points, samples, masks and keys each time, far beyond where a graph is recorded."""
    p, engine = problem(), VmapEngine(problem())
    for k in range(batched.TRACE_AFTER + 5):
        y = p.start + 0.1 * (1 + k) * torch.arange(3)[:, None]
        mask = torch.arange(4) < torch.tensor([4, 1 + k % 3, 1 + k % 4])[:, None]
        given = Batch(batch().inputs * (1 + k), (batch().target + k) % 2, mask, batch().key + k)
        value, (again, grad) = engine.value(y, given), engine.value_and_grad(y, given)
        fresh = VmapEngine(p)
        assert torch.equal(value, fresh.value(y, given))
        expected, slope = fresh.value_and_grad(y, given)
        assert torch.equal(again, expected)
        assert torch.equal(grad, slope)
        assert_close(grad, LoopEngine(p).value_and_grad(y, given)[1], 1e-11)


def test_padding_does_not_count():
    p, full = problem(), batch()
    y = p.start.expand(3, -1)
    inputs = full.inputs.clone()
    inputs[~full.mask] = 1e6
    other = Batch(inputs, full.target, full.mask, full.key)
    for engine in (VmapEngine(p), LoopEngine(p)):
        a, b = engine.value_and_grad(y, full), engine.value_and_grad(y, other)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_a_client_without_samples_does_not_disturb_the_others():
    """A client that is through with its steps has an all-padding batch."""
    p, full = problem(), batch()
    mask = full.mask.clone()
    mask[1] = False
    y = p.start.expand(3, -1)
    empty = Batch(full.inputs, full.target, mask, full.key)
    for engine in (VmapEngine(p), LoopEngine(p)):
        whole, part = engine.value_and_grad(y, full), engine.value_and_grad(y, empty)
        assert torch.equal(part[1][[0, 2]], whole[1][[0, 2]])
        engine.value(y, empty)


def test_a_module_that_cannot_be_batched_runs_in_turn(caplog):
    caplog.set_level(logging.INFO, "tunefree")
    settings = {"rounds": 2, "steps": 2, "batch": 2, "device": "cpu"}
    model = Branching()
    run = tf.fit(model, federation(), "fedavg", **settings)
    assert run.settings["engine"] == "loop"
    assert len(caplog.records) == 1
    assert "cannot be batched over clients" in caplog.text
    assert "clients run in turn" in caplog.text
    assert "(its forward branches on the values of a tensor, or calls item())" in caplog.text
    looped = tf.fit(model, federation(), "fedavg", engine="loop", **settings)
    assert torch.equal(run.x, looped.x)
    assert len(caplog.records) == 1


def test_vmap_of_a_module_that_cannot_be_batched_is_refused():
    with pytest.raises(ArgumentError) as error:
        tf.fit(Branching(), federation(), "fedavg", rounds=1, engine="vmap", device="cpu")
    assert "fit(engine='vmap') cannot batch this model (its forward branches" in str(error.value)
    assert "; use engine='loop'." in str(error.value)


@pytest.mark.compiled_engines
@pytest.mark.parametrize("when", ["called", "built"])
def test_without_a_compiler(monkeypatch, caplog, when):
    """The compiler is missing when the function is first called; some builds refuse earlier."""

    def broken(graph, args):
        if when == "built":
            raise RuntimeError("no compiler here\nand more lines")

        def call(*args):
            raise RuntimeError("no compiler here\nand more lines")

        return call

    monkeypatch.setattr(torch._inductor, "compile", broken)
    p = problem()
    engine = select_engine(p, batch(), "auto", compile=True)
    assert engine.name == "vmap"
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "Compilation is not available here (no compiler here)" in said.getMessage()
    values, _ = engine.value_and_grad(p.start.expand(3, -1), batch())
    assert bool(torch.isfinite(values).all())


@pytest.mark.compiled_engines
@pytest.mark.parametrize(("net", "engine"), [("cnn-p2", "loop"), ("mlp", "vmap")])
def test_without_a_compiler_the_choice_is_that_of_runs_without_it(monkeypatch, net, engine):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: 1 / 0)
    model = tf.models.build(net, shape=(1, 28, 28), classes=10)
    rows = torch.arange(300)
    fed = tf.Federation(torch.randn(300, 1, 28, 28), rows % 10, rows % 6)
    chosen = [
        tf.fit(model, fed, "fedavg", rounds=1, steps=1, batch=50, device="cpu", compile=c).settings
        for c in (True, False)
    ]
    assert [s["engine"] for s in chosen] == [engine] * 2
    assert chosen[0]["chunk"] == chosen[1]["chunk"] == 6


def test_names():
    p = problem()
    assert select_engine(p, batch(), "auto", compile=False).name == "vmap"
    assert select_engine(p, batch(), "loop", compile=True).name == "loop"
    with pytest.raises(ArgumentError, match=r"Unknown engine 'vamp'\. Did you mean 'vmap'\?"):
        select_engine(p, batch(), "vamp", compile=False)


@pytest.mark.compiled_engines
def test_a_compiler_that_fails_on_values_only(monkeypatch, caplog):
    """The line search's plain values are compiled apart from the gradients; both must work."""

    def half(graph, args):
        def call(*args):
            out = graph(*args)
            if len(out) == 1:  # values alone; gradients come with them
                raise RuntimeError("cannot lower this")
            return out

        return call

    monkeypatch.setattr(torch._inductor, "compile", half)
    p = problem()
    engine = select_engine(p, batch(), "auto", compile=True)
    assert bool(torch.isfinite(engine.value(p.start.expand(3, -1), batch())).all())
    assert "Compilation is not available here (cannot lower this)" in caplog.text


@pytest.fixture
def uncompiled(monkeypatch):
    """A compiler that leaves everything as it is, its order too."""
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: graph)
    monkeypatch.setattr("tunefree.models.engine.is_in_place_safe", lambda device: True)


@pytest.mark.compiled_engines
@pytest.mark.usefixtures("uncompiled")
def test_a_descent_follows_the_gradient():
    p, lr = problem(), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    engine = select_engine(p, batch(), "auto", True, steps="descent")
    start = p.start + torch.arange(3, dtype=torch.float64)[:, None]
    fused = engine.descent(3)
    for _ in range(2):
        y, total = start, 0.0
        fused.begin(start)
        for key in range(3):
            given = replace(batch(), key=torch.full((3,), key))
            values, grads = LoopEngine(p).value_and_grad(y, given)
            fused.step(given, lr / (1 + key))
            y, total = y - lr[:, None] / (1 + key) * grads, total + (lr > 0) * values
            assert_close(fused.end(), (y, total), 1e-11)
        assert torch.equal(fused.end()[0][1], start[1])
    assert engine.descent(2) is None
    engine.release()
    assert engine.descent(3) is None
    assert VmapEngine(p).descent(3) is None


@pytest.mark.compiled_engines
@pytest.mark.usefixtures("uncompiled")
def test_clients_with_lr_0_keep_their_iterate():
    p, given = problem(), batch()
    given.inputs[1] = torch.nan
    fused = select_engine(p, batch(), "auto", True, steps="descent").descent(3)
    fused.begin(p.start.expand(3, -1))
    fused.step(given, torch.tensor([0.1, 0.0, 0.1], dtype=torch.float64))
    y, total = fused.end()
    assert torch.equal(y[1], p.start)
    assert bool(torch.isfinite(y).all())
    assert bool(torch.isfinite(total).all())
    assert not torch.equal(y[0], p.start)


class Scale(nn.Module):
    """Numbers that no product takes, and so no autocast casts."""

    def __init__(self, width):
        super().__init__()
        self.each = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x.float() * self.each


@pytest.mark.compiled_engines
@pytest.mark.usefixtures("uncompiled")
def test_in_bfloat16_tensors_are_cast_once(monkeypatch):
    """The same bits as with a cast in every step, and what is not cast stays exact."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), Scale(8), nn.Linear(8, 2)).float()
    p = Problem(net, "cross_entropy", torch.float32, precision="bf16")
    given = replace(batch(), inputs=batch().inputs.float())
    found = []
    for cast in (rewrite.use_cast_inputs, lambda graph, count: []):
        monkeypatch.setattr(rewrite, "use_cast_inputs", cast)
        fused = select_engine(p, given, "auto", True, steps="descent").descent(3)
        fused.begin(p.start + 0.1 * torch.arange(3)[:, None])
        for _ in range(4):
            fused.step(given, torch.tensor([0.1, 0.0, 0.3]))
        found.append(fused.end())
        held = fused._gradient
        low = [torch.equal(a, b.bfloat16()) for a, b in zip(held.low, held.parts, strict=True)]
        found[-1] += (low,)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    weights_and_biases = [True, True, False, True, True]
    assert (found[0][2], found[1][2]) == (weights_and_biases, [False] * 5)


@pytest.mark.compiled_engines
def test_every_descent_is_compiled_by_itself(monkeypatch):
    """The compiler keeps few versions of one function, then runs it uncompiled."""
    codes = []

    def compile(graph, args):
        codes.append(graph.forward.__code__)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", compile)
    for _ in range(2):
        select_engine(problem(), batch(), "auto", True, steps="descent")
    assert len(codes) >= 2
    assert len({id(code) for code in codes}) == len(codes)


@pytest.mark.compiled_engines
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("name", "settings", "plain_descent"),
    [
        ("fedavg", {}, True),
        ("fedexp", {"schedule": "cosine"}, True),
        ("fedavg", {"weight_decay": 0.01}, False),
        ("fedavg", {"clip": 0.1}, False),
        ("scaffold", {}, False),
        ("fedprox", {}, False),
        ("fedlin", {}, False),
    ],
)
def test_only_plain_descent_is_left_to_the_engine(name, settings, plain_descent, monkeypatch):
    """And is the same descent, with clients that take different numbers of steps."""
    made = tf.methods.get(name, lr=0.05, **settings)
    even = labelled()
    owner = torch.tensor([0, 1, 2, 3]).repeat_interleave(torch.tensor([11, 2, 6, 5]))
    fed = tf.Federation(even.x, even.y, owner, classes=2)
    given = {"fed": fed, "rounds": 3, "steps": None, "epochs": 2}
    plain = fit(made, compile=False, engine="vmap", **given)
    called = []
    whole = CompiledDescent.step
    monkeypatch.setattr(CompiledDescent, "step", lambda *a: called.append(0) or whole(*a))
    fast = fit(made, compile=True, engine="vmap", **given)
    assert bool(called) is plain_descent
    assert_close(fast.x, plain.x, 1e-11)
    for a, b in zip(fast.history, plain.history, strict=True):
        for key in b.keys() - {"seconds"}:
            assert a[key] == pytest.approx(b[key], rel=1e-10, abs=1e-12), key


def fail(*args, **kwargs):
    raise AssertionError("a compiled engine is used")


@pytest.fixture
def plain(monkeypatch):
    """TUNEFREE_ENGINES=plain; whatever compiles or records fails."""
    monkeypatch.setenv("TUNEFREE_ENGINES", "plain")
    for module, name in (
        (torch, "compile"),
        (torch._inductor, "compile"),
        (batched, "trace_graph"),
        (batched, "CudaGraphFunction"),
        (batched, "BatchedOpsMode"),
        (batched, "CompiledDescent"),
        (batched, "CompiledSteps"),
    ):
        monkeypatch.setattr(module, name, fail)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plain_engines_neither_compile_nor_record(device, request, monkeypatch):
    p, given = problem(), batch()
    y = p.start + 0.1 * torch.arange(3)[:, None]
    expected = VmapEngine(p).value_and_grad(y, given)
    request.getfixturevalue("plain")
    monkeypatch.setattr(batched, "is_on_gpu", lambda problem: device == "cuda")
    engine = select_engine(p, given, "auto", compile=True, steps="descent")
    assert (engine.name, engine.wants_deferred, engine.descent(3)) == ("vmap", False, None)
    for _ in range(batched.TRACE_AFTER + 2):
        assert torch.equal(engine.value(y, given), expected[0])
        assert all(map(torch.equal, engine.value_and_grad(y, given), expected))


@pytest.mark.usefixtures("plain")
def test_a_run_on_plain_engines_ignores_compile():
    runs = [
        fit("fedavg", model=Branches((6,)).double(), compile=c, rounds=3) for c in (False, True)
    ]
    assert [run.settings["engine"] for run in runs] == ["vmap", "vmap"]
    assert [run.settings["chunk"] for run in runs] == [runs[0].settings["chunk"]] * 2


def test_unknown_engines_are_refused(monkeypatch):
    monkeypatch.setenv("TUNEFREE_ENGINES", "plane")
    with pytest.raises(ArgumentError, match=r"Unknown value of TUNEFREE_ENGINES 'plane'\. Did you"):
        select_engine(problem(), batch(), "auto", compile=False)


class Branches(nn.Module):
    """A sum of networks with dropout, one for each width."""

    def __init__(self, widths):
        super().__init__()
        self.each = nn.ModuleList(
            nn.Sequential(nn.Linear(3, n), nn.Tanh(), nn.Dropout(0.4), nn.Linear(n, 2))
            for n in widths
        )

    def forward(self, x):
        return sum(net(x) for net in self.each)


@pytest.mark.compiled_engines
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import of its compiler
@pytest.mark.parametrize("widths", [(6, 16), pytest.param((8, 64), marks=pytest.mark.slow)])
def test_compiled_equals_eager(monkeypatch, widths):
    """A run, then its engine alone: in one test, since it is compiling that takes the time.

    Half a minute, seconds where the compiler has cached it. A method with a map in its steps that
    is not compiled with them, so that gradients are by themselves, and values too; widths with and
    without a rest after full vector registers, in one module.
    """
    engines = []

    def chosen(*args):
        engines.append(select_engine(*args))
        return engines[-1]

    monkeypatch.setattr(engine_choice, "select_engine", chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Branches(widths).double()
    settings = {"rounds": 4, "cohort": 3, "steps": 3, "batch": 4}
    method = tf.methods.get("fedmid", penalty="group-lasso:1e-3")
    plain, fast = (fit(method, model=net, compile=c, **settings) for c in (False, True))
    assert (plain.settings["engine"], fast.settings["engine"]) == ("vmap", "vmap, compiled")
    assert_close(fast.x, plain.x, 1e-10)
    assert_close(fast.output, plain.output, 1e-10)
    for a, b in zip(fast.history, plain.history, strict=True):
        for name in b.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-10, abs=1e-10), name

    y = plain.x + 0.1 * torch.arange(3)[:, None]
    for key in (torch.tensor([1, 2, 3]), torch.tensor([-(2**63), 2**63 - 1, 0])):
        given = replace(batch(), key=key)
        (one, other) = ((e.value(y, given), *e.value_and_grad(y, given)) for e in engines)
        assert_close(one, other)
