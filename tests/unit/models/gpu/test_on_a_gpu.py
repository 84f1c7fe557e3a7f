"""On a GPU: captures, kernels and precisions agree with plain PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree import attacks, robust
from tunefree.faults import Faults
from tunefree.models import batched
from tunefree.models.gpu import kernels
from tunefree.simulation import engine as chunk

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.compiled_engines,
]


def federation(clients=6, side=10):
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([5, 9, 16, 12, 20, 7])[:clients]
    rows = int(sizes.sum())
    x = torch.randn(rows, 3, side, side, generator=draw)
    y = torch.randint(4, (rows,), generator=draw)
    owner = torch.repeat_interleave(torch.arange(clients), sizes)
    return tf.Federation(x, y, owner, test=(x, y), classes=4)


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8),
            nn.Conv2d(8, 40, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
            nn.Linear(160, 4),
        )  # fmt: skip


def wide():
    """Images that are flattened, and a layer behind them that is large."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 40, 3, padding=1),
            nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(640, 32),
            nn.ReLU(), nn.Linear(32, 4),
        )  # fmt: skip


class Squares(nn.Module):
    def forward(self, x):
        return x + 0.0 * x.square()


def fit(device="cuda", method="fedavg", model=net, **settings):
    made = method
    if isinstance(method, str):
        made = tf.methods.get(method, **({"lr": 0.1} if method in ("fedavg", "scaffold") else {}))
    given = {"rounds": 6, "cohort": 4, "steps": 5, "batch": 6, "compile": False} | settings
    return tf.fit(model(), federation(), made, device=device, **given)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedexpsls", "auto"])
def test_recorded_steps_are_the_steps(method, monkeypatch):
    recorded = fit(method=method, dtype=torch.float64)
    monkeypatch.setattr(batched, "CAPTURE_AFTER", 10**9)
    launched = fit(method=method, dtype=torch.float64)
    torch.testing.assert_close(recorded.x, launched.x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "settings", [{"steps": None, "epochs": 2}, {"preprocess": tf.Preprocess(augment="crop-flip")}]
)
def test_a_gpu_does_what_a_cpu_does(settings):
    both = [fit(device=d, dtype=torch.float64, **settings).x.cpu() for d in ("cpu", "cuda")]
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    ("precision", "tolerance", "model"),
    [
        ("fp32", 1e-5, net),
        ("tf32", 8e-3, net),
        ("bf16", 1e-1, net),
        ("fp32", 1e-5, wide),
        ("tf32", 2e-2, wide),  # more layers
        ("bf16", 1e-1, wide),
    ],
)
def test_precisions(precision, tolerance, compile, model):
    once = {"rounds": 1, "steps": 1, "model": model}
    # of many steps, no rounding stays small: maxima change place
    exact = fit(device="cpu", dtype=torch.float64, **once)
    run = fit(engine=tf.Engine(precision=precision), compile=compile, **once)
    assert run.settings["precision"] == precision
    moved = exact.x - exact.problem.start
    error = (run.x.cpu().double() - exact.x).norm() / moved.norm()
    assert error < tolerance, f"{error:.1e}"


@pytest.mark.parametrize("settings", [{}, {"steps": None, "epochs": 2}, {"model": wide}])
def test_compiled_runs_are_the_runs(settings):
    """Steps in place: neither recording nor a client that has finished moves anything."""
    compiled = fit(dtype=torch.float64, compile=True, **settings)
    assert compiled.settings["engine"] == "vmap, compiled"
    exact = fit(device="cpu", dtype=torch.float64, **settings)
    torch.testing.assert_close(compiled.x.cpu(), exact.x, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_large_weights_move_while_their_gradients_are_formed(precision, monkeypatch):
    moved, descend = [], kernels.descend

    def watched(part, low, left, right, lr):
        moved.append((tuple(part.shape), low is not None, left.shape[2]))
        descend(part, low, left, right, lr)

    monkeypatch.setattr(kernels, "descend", watched)
    run = fit(model=wide, engine=tf.Engine(precision=precision), compile=True)
    assert run.settings["engine"] == "vmap, compiled"
    assert set(moved) == {((4, 32, 640), precision == "bf16", 6)}
    exact = fit(model=wide, device="cpu", dtype=torch.float64)
    losses = [[row["train_loss"] for row in each.history] for each in (run, exact)]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3 if precision == "tf32" else 5e-2)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproxlod"])
def test_few_classes_and_many_features(method):
    """Sums that are cut into pieces are the sums."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(600, 2048, generator=draw) / 9, torch.randint(10, (600,), generator=draw)
    fed = tf.Federation(x, y, torch.arange(600) % 6, classes=10)
    made = tf.methods.get(method, **({} if method == "fedproxlod" else {"lr": 0.1}))
    words = {"rounds": 3, "steps": 4, "batch": 32, "dtype": torch.float64}
    flat = nn.Linear(2048, 10)
    compiled = tf.fit(flat, fed, made, device="cuda", compile=True, **words)
    exact = tf.fit(flat, fed, made, device="cpu", compile=False, **words)
    torch.testing.assert_close(compiled.x.cpu(), exact.x, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("compile", [False, True])
def test_a_broken_client_is_left_out(compile):
    fed = federation()
    x = fed.x.double()
    x[fed.owners() == 2] = 1e200  # whose square overflows
    fed = tf.Federation(x, fed.y, fed.owners(), classes=4)
    words = {"rounds": 4, "steps": 3, "batch": 6, "compile": compile, "dtype": torch.float64}
    brittle = nn.Sequential(Squares(), net())
    runs = [tf.fit(brittle, fed, "fedavg", device=d, **words) for d in ("cpu", "cuda")]
    for run in runs:
        assert run.status == "finished"
        assert all(row["refused"] == 1 for row in run.history)
    torch.testing.assert_close(runs[1].x.cpu(), runs[0].x, rtol=1e-8, atol=1e-10)


def test_clients_that_fail_and_lie():
    words = {"rounds": 8, "steps": 3, "batch": 6, "cohort": 5, "dtype": torch.float64}
    scenario = tf.Scenario(
        faults=Faults(before=0.1, after=0.1, slow=0.2, stale=0.2, delay=2),
        attack=attacks.SignFlip((1,), scale=4.0),
    )
    words |= {"scenario": scenario, "aggregate": robust.Median()}
    runs = [
        tf.fit(net(), federation(), "fedavg", device=d, compile=False, **words)
        for d in ("cpu", "cuda")
    ]
    counts = ("answered", "lost", "late", "stale", "bytes_up")
    one, two = ([[row[k] for k in counts] for row in run.history] for run in runs)
    assert one == two
    torch.testing.assert_close(runs[1].x.cpu(), runs[0].x, rtol=1e-8, atol=1e-10)


def test_the_same_bits_again():
    for precision in ("tf32", "bf16"):
        one, two = (fit(engine=tf.Engine(precision=precision)).x for _ in range(2))
        assert torch.equal(one, two)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_same_bits_in_another_process(precision, tmp_path):
    """Compiled anew, with nothing kept from the first time: no kernel is chosen by a clock."""
    own = Path(__file__)
    code = f"import sys; sys.path.insert(0, {str(own.parent)!r}); import {own.stem} as here; "
    code += f"run = here.fit(compile=True, engine=here.tf.Engine(precision={precision!r})); "
    code += "print(run.settings['engine'], run.x.double().sum().item().hex())"
    found = set()
    for name in "ab":
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)}
        words = [sys.executable, "-c", code]
        done = subprocess.run(
            words, env=env, check=True, capture_output=True, text=True, timeout=600
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().startswith("vmap, compiled")


def test_the_chunk_comes_from_free_memory(monkeypatch):
    assert fit().settings["chunk"] == 4
    monkeypatch.setattr(chunk, "free", lambda device: 0)
    small = fit(dtype=torch.float64)
    assert small.settings["chunk"] == 1
    torch.testing.assert_close(
        small.x, fit(dtype=torch.float64, engine=tf.Engine(chunk=4)).x, rtol=1e-9, atol=1e-11
    )


def test_precision_leaves_the_globals_alone():
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [p.allow_tf32 for p in places]
    fit(engine=tf.Engine(precision="tf32"))
    assert [p.allow_tf32 for p in places] == before
