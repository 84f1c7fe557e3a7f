"""Local steps that are compiled as a whole do what the local loop does."""

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree import clients
from tunefree.methods.fedhyper import ClientSideHyper, ServerSideHyper
from tunefree.methods.fedprodigy import Prodigy
from tunefree.models import batched, engine
from tunefree.models.compiled import steps
from tunefree.models.compiled.compiler import is_in_place_safe
from tunefree.models.compiled.rows import TensorRows

pytestmark = pytest.mark.compiled_engines


def one_of_each():
    """Return one method for each kind of step, local problem and records."""
    kinds = {}
    for name in tf.methods.names():
        method = tf.methods.get(name)
        if method.is_fusible and method.descent_lr(1.0) is None:
            key = (type(method.step), method.direction.sets, method.records)
            kinds.setdefault(key, name)
    return sorted(kinds.values())


def federation():
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([5, 9, 16, 12])
    x = torch.randn(int(sizes.sum()), 3, 6, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(4, (len(x),), generator=draw)
    return tf.Federation(x, y, torch.repeat_interleave(torch.arange(4), sizes), classes=4)


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))


def fit(method, **settings):
    given = {"rounds": 3, "epochs": 2, "steps": None, "batch": 4, "dtype": torch.float64}
    return tf.fit(net(), federation(), method, device="cpu", **given | settings)


@pytest.fixture
def fused(monkeypatch):
    """Whether each local phase ran in fused steps."""
    found, fuse = [], batched.VmapEngine.fuse

    def watched(*args):
        out = fuse(*args)
        found.append(out is not None)
        return out

    monkeypatch.setattr(batched.VmapEngine, "fuse", watched)
    return found


@pytest.fixture
def uncompiled(monkeypatch):
    """Trace whole steps but do not compile them, and compile nothing else, in any PyTorch."""
    monkeypatch.setattr(engine, "is_in_place_safe", lambda device: True)
    monkeypatch.setattr(steps, "compile_graph", lambda graph, device: graph)
    monkeypatch.setattr(batched, "compile_graph", lambda graph, device: graph)


def compare(method, fused, **settings):
    fused.clear()
    whole = fit(method, compile=True, **settings)
    assert fused
    assert all(fused)
    plain = fit(method, compile=False, **settings)
    torch.testing.assert_close(whole.x, plain.x, rtol=1e-9, atol=1e-12)
    for one, two in zip(whole.history, plain.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in two.items() if k != "seconds"}, rel=1e-9, nan_ok=True
        )
    return plain.x


@pytest.mark.parametrize("name", one_of_each())
def test_methods(name, fused, uncompiled):
    """Clients with fewer steps stop, and every record of a round is the same."""
    compare(name, fused, cohort=None if tf.methods.get(name).full else 3)


STEPS = [
    clients.Constant(0.05, balanced=True),
    clients.Momentum(0.05),
    clients.Adam(0.01),
    clients.AdaAlter(0.1),
    clients.Normalised(),
    clients.Polyak(),
    clients.DoG(live=True),
    Prodigy(),
    ServerSideHyper(),
    ClientSideHyper(),
    clients.Armijo(),
    clients.Armijo(c=0.9, max_backtracks=3, reset="keep"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
def test_steps_with_everything_else(step, fused, uncompiled):
    """Two directions, weight decay, clipping and a schedule: factor and index change."""
    both = clients.Sum(clients.Scaffold(), clients.Proximal(0.3))
    options = {} if step.sets_lr else {"schedule": "cosine+warmup:2"}
    if not step.exact:
        options["clip"] = 0.5
    compare(tf.Method(direction=both, step=step, weight_decay=0.01, **options), fused)


PENALTIES = ["l1:3e-2", "l2:0.1", "elastic-net:3e-2:0.1", "mcp:3e-2", "scad:3e-2", "0.03*scad:1"]
PENALTIES += ["box:-0.1:0.1", "l2-ball:0.5"]


@pytest.mark.parametrize("name", ["fedmid", "fedda", "fastfedda", "za1"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_maps(name, penalty, fused, uncompiled):
    """Steps of the maps grow with k and from round to round, or follow the schedule."""
    schedule = {"schedule": "cosine+warmup:2"} if name == "fedmid" else {}
    method = tf.methods.get(name, penalty=penalty, lr=0.05, weight_decay=0.01, **schedule)
    found = compare(method, fused)
    assert bool((found != fit(tf.methods.get(name, lr=0.05), compile=False).x).any())


def test_maps_beside_another_direction(fused, uncompiled):
    """A control variate, and steps that differ between clients."""
    both = clients.Sum(clients.FedMiD(tf.penalties.get("mcp:3e-2"), 0.05), clients.Scaffold())
    compare(tf.Method(direction=both, step=clients.Constant(0.05, balanced=True)), fused)


@pytest.mark.parametrize("penalty", ["group-lasso:1e-2", "l1-ball:2", "nuclear:1e-2"])
def test_maps_that_cannot_be_fused(penalty, fused, uncompiled, caplog):
    """Then gradients are compiled by themselves, without a word."""
    method = tf.methods.get("fedmid", penalty=penalty, lr=0.05)
    assert not method.is_fusible
    whole, plain = (fit(method, compile=c) for c in (True, False))
    assert not any(fused)
    assert "as a whole" not in caplog.text
    torch.testing.assert_close(whole.x, plain.x, rtol=1e-9, atol=1e-12)


class Halved(clients.Direction):
    """An own direction with an own map, which depends on the round and on k."""

    sets = ("project",)

    def local_problem(self, x, down, own, t):
        return clients.LocalProblem(project=lambda y, k: y / (1 + k + t.index))


class Undeclared(Halved):
    sets = ()


class Own(clients.FedMiD):
    """Inherits the promise of its maps, but has a map that is not one of those."""

    def local_problem(self, x, down, own, t):
        return clients.LocalProblem(project=lambda y, k: y / (1 + k + t.index))


class Whole(Halved):
    """The same as a `StepMap`."""

    has_fusible_maps = True

    def local_problem(self, x, down, own, t):
        return clients.LocalProblem(project=clients.StepMap(self.shrink, t.plan, (t.index,)))

    def shrink(self, y, k, plan, index):
        return y / (1 + k + index)


@pytest.mark.parametrize("direction", [Halved(), Undeclared(), Own(lr=0.1), Whole()])
def test_own_maps(direction, fused, uncompiled):
    method = tf.Method(direction=direction, step=clients.Constant(0.1))
    whole, plain = (fit(method, compile=c) for c in (True, False))
    assert any(fused) is isinstance(direction, Whole)
    torch.testing.assert_close(whole.x, plain.x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reset", ["grow", "reset"])
def test_line_searches(reset, fused, uncompiled):
    """Clients search for different numbers of trials, and some reach the last one."""
    step = clients.Armijo(c=0.7, backtrack=0.5, max_lr=8.0, max_backtracks=4, reset=reset)
    compare(tf.Method(step=step), fused)
    compare(tf.Method(step=clients.Armijo(max_lr=0.1, max_backtracks=0, reset=reset)), fused)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize(
    ("step", "schedule"),
    [
        (clients.Adam(0.01), "cosine"),
        pytest.param(clients.Armijo(c=0.7), "constant", marks=pytest.mark.slow),
    ],
)
def test_compiled(step, schedule, fused):
    """The compiler loses no write, such as that of the index, and moves none before a read."""
    if not is_in_place_safe(torch.device("cpu")):
        pytest.skip("this version of PyTorch compiles no steps in place on a CPU")
    both = clients.Sum(clients.Scaffold(), clients.Proximal(0.3))
    compare(tf.Method(direction=both, step=step, weight_decay=0.01, schedule=schedule), fused)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize(
    ("name", "penalty"),
    [
        ("fastfedda", "mcp:3e-2"),
        *(
            pytest.param(name, penalty, marks=pytest.mark.slow)
            for name, penalty in (("fedda", "scad:3e-2"), ("za1", "l1:3e-2"), ("fedmid", "box"))
        ),
    ],
)
def test_compiled_maps(name, penalty, fused):
    if not is_in_place_safe(torch.device("cpu")):
        pytest.skip("this version of PyTorch compiles no steps in place on a CPU")
    compare(tf.methods.get(name, penalty=penalty, lr=0.05), fused)


class Early(clients.Constant):
    """A step whose branch depends on its index; it inherits `fusible` but not the promise."""

    def take(self, y, d, context, scratch):
        return super().take(y, d if context.index < 2 else 0 * d, context, scratch)


class Sorted(clients.Constant):
    """A step that promises to be fusible but uses another operation."""

    fusible = True

    def take(self, y, d, context, scratch):
        lengths = d.abs().sort(dim=1).values[:, -1]
        return super().take(y, d / lengths[:, None], context, scratch)


def test_an_own_step_runs_in_the_local_loop(fused, uncompiled):
    method = tf.Method(direction=clients.Scaffold(), step=Early(0.1))
    assert not method.is_fusible
    whole, plain = (fit(method, compile=c) for c in (True, False))
    assert not fused
    torch.testing.assert_close(whole.x, plain.x, rtol=1e-9, atol=1e-12)


def test_a_wrong_promise_is_noticed(fused, uncompiled, caplog):
    method = tf.Method(direction=clients.Scaffold(), step=Sorted(0.1))
    whole = fit(method, compile=True)
    assert not any(fused)
    assert "cannot be compiled as a whole" in caplog.text
    torch.testing.assert_close(whole.x, fit(method, compile=False).x, rtol=1e-9, atol=1e-12)


def test_rows():
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, *s, generator=draw) for s in ((2, 2), (5,), ())]
    shared = [torch.randn(1, *s, generator=draw) for s in ((2, 2), (5,), ())]

    def flat(parts):
        return torch.cat([p.reshape(len(p), -1) for p in parts], 1)

    rows, row, each = TensorRows(parts), TensorRows(shared, vector=True), torch.rand(3)
    plain, vector = flat(parts), flat(shared)[0]
    assert rows.shape == plain.shape
    assert row.shape == vector.shape

    def use(y, v):
        y = torch.where((each > 0.5)[:, None], y.sqrt().nan_to_num(1.0), torch.zeros_like(y) + v)
        return torch.addcmul(y, v, each[:, None], value=-2) / (v.square() + 1)

    found, expected = use(rows, row), use(plain, vector)
    torch.testing.assert_close(flat(found.parts), expected)
    torch.testing.assert_close(found.sum(-1), expected.sum(-1))
    torch.testing.assert_close(torch.linalg.vecdot(found, found), expected.square().sum(-1))
    with pytest.raises(NotImplementedError, match="beside TensorRows"):
        rows + each
    with pytest.raises(NotImplementedError, match="not defined"):
        rows.cumsum(1)
