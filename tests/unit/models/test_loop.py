"""The loop engine on several threads: the same bits, a module for each thread, no leftovers."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from helpers import join_thread, run_threads
from tunefree.models import loop
from tunefree.models.batched import VmapEngine
from tunefree.models.cpu import pool
from tunefree.models.loop import LoopEngine
from tunefree.models.losses import Batch
from tunefree.models.problem import Problem

SEEN = []
FIRST, WAITING, PRESSED = threading.Lock(), threading.Event(), threading.Event()
WAIT = 10  # seconds until a thread that should have come counts as missing


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def batch(m=7, width=6, shape=(2, 6, 6), dtype=torch.float32):
    """Return full rows, shorter ones, and one without samples."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.full((m,), width)
    sizes[1:4] = torch.tensor([2, 0, 5])
    return Batch(
        inputs=torch.randn(m, width, *shape, generator=draw).to(dtype),
        target=torch.randint(3, (m, width), generator=draw),
        mask=torch.arange(width) < sizes[:, None],
        key=torch.arange(m),
    )


def problem(dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(128, 3)
        )
    return Problem(net, "cross_entropy", dtype)


def rows(p, m=7):
    return p.start + 0.05 * torch.arange(m)[:, None]


def results(p, given):
    engine, y = LoopEngine(p), rows(p, len(given.key))
    return [engine.value(y, given), *engine.value_and_grad(y, given)]


def test_bits_do_not_depend_on_threads(threads):
    found = []
    for n in (1, 2, 3):
        threads(n)
        found += [results(problem(), batch()) for _ in range(3)]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def descend(p, given, lr):
    fused = LoopEngine(p).descent(len(given.key))
    fused.begin(rows(p, len(given.key)))
    for key in range(3):
        fused.step(replace(given, key=given.key + key), lr)
    return fused.end()


def test_in_place_descent_follows_the_gradient(threads):
    """As with gradients in rows, to rounding; who has no step left, or no samples, stays."""
    p, given = problem(torch.float64), batch(dtype=torch.float64)
    lr = torch.tensor([0.5, 0.3, 0.1, 0.0, 0.7, 0.0, 0.2]).double()
    y, total = rows(p), torch.zeros(7).double()
    for key in range(3):
        values, grads = LoopEngine(p).value_and_grad(y, replace(given, key=given.key + key))
        y, total = y - lr[:, None] * grads, total + (lr > 0) * values
    found = []
    for n in (1, 2, 3):
        threads(n)
        found.append(descend(p, given, lr))
        torch.testing.assert_close(found[-1], (y, total), rtol=1e-13, atol=1e-14)
        assert all(torch.equal(a, b) for a, b in zip(found[0], found[-1], strict=True))
    for i in (2, 3, 5):
        assert torch.equal(found[0][0][i], rows(p)[i])


def test_in_place_descent_keeps_clients_with_lr_0():
    p, given = problem(), batch()
    given.inputs[4] = torch.nan
    y, total = descend(p, given, torch.tensor([0.1, 0.1, 0.1, 0.1, 0.0, 0.1, 0.1]))
    assert bool(torch.isfinite(y).all())
    assert bool(torch.isfinite(total).all())


class Tied(nn.Module):
    """Reads tokens with one embedding, part of them with another, and scores with the first."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6, padding_idx=0)
        self.places = nn.Embedding(4, 6)
        self.head = nn.Linear(6, 3)
        self.score = nn.Linear(6, 50, bias=False)
        self.score.weight = self.words.weight
        self.drop = nn.Dropout(0.3)

    def forward(self, ids):
        read = self.words(ids) + self.places(torch.arange(4))
        mean = self.drop(read.mean(1))
        return self.head(mean) + self.score(mean)[:, :3]


class Words(Tied):
    """Without the second use of the words, so that their gradient is that of the tokens alone."""

    def forward(self, ids):
        return self.head(self.drop((self.words(ids) + self.places(torch.arange(4))).mean(1)))


@pytest.mark.parametrize("module", [Tied, Words])
def test_in_place_descent_with_embeddings(module, monkeypatch):
    """The gradient of the batch's tokens is the embedding's: repeated tokens, padding, dropout."""
    monkeypatch.setattr(loop, "LOOKED_UP", 100)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        p = Problem(module(), "cross_entropy", torch.float64)
    draw = torch.Generator().manual_seed(1)
    given = batch(dtype=torch.float64)
    given = replace(given, inputs=torch.randint(8, (7, 6, 4), generator=draw))
    y, lr = rows(p), torch.full((7,), 0.3).double()
    for key in range(3):
        grads = LoopEngine(p).value_and_grad(y, replace(given, key=given.key + key))[1]
        y = y - lr[:, None] * grads
    torch.testing.assert_close(descend(p, given, lr)[0], y, rtol=1e-13, atol=1e-14)
    assert not any(m.sparse for m in p._module.modules() if isinstance(m, nn.Embedding))


def test_batches_that_wait(threads, monkeypatch):
    """Whether steps are taken one by one or many at a time, the bits are the same."""
    p, given, lr = problem(), batch(), torch.full((7,), 0.1)
    one = descend(p, given, lr)
    monkeypatch.setattr(loop, "WAITING", 0)
    for n in (1, 2):
        threads(n)
        assert all(map(torch.equal, one, descend(p, given, lr)))


class Counts(nn.Module):
    """Fails for one client; the other waits for that in its first step and counts its steps."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        if float(x.min()) < 0:
            PRESSED.set()
            raise ZeroDivisionError("no such client")
        assert PRESSED.wait(WAIT)
        time.sleep(0.05)
        SEEN.append(x)
        return x * self.w


def test_a_client_stops_between_its_steps(threads):
    threads(2)
    SEEN.clear()
    PRESSED.clear()
    bad = given(2)
    bad.inputs[1] = -1
    fused = LoopEngine(Problem(Counts())).descent(2)
    fused.begin(torch.ones(2, 3))
    for _ in range(50):
        fused.step(bad, torch.ones(2))
    with pytest.raises(ZeroDivisionError, match="no such client"):
        fused.end()
    assert 1 <= len(SEEN) < 25


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 9, 7)])
def test_max_pools_are_those_of_pytorch(shape, monkeypatch):
    """Bit by bit, with ties, in modules and functions; others are left alone."""
    monkeypatch.setattr(pool, "LARGE", 1)
    called, fast = [], pool.max_pool
    monkeypatch.setattr(pool, "max_pool", lambda x: called.append(x) or fast(x))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw).relu().round(decimals=1).requires_grad_()
    same = [
        nn.MaxPool2d(2),
        lambda x: nn.functional.max_pool2d(x, (2, 2), stride=2),
        lambda x: torch.max_pool2d(x, [2], [2, 2]),
    ]
    other = [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
    ]
    for k, function in enumerate((*same, *other)):
        found = []
        for mode in (nullcontext(), pool.MaxPoolMode()):
            with mode:
                out = function(x)
            weight = torch.randn(out.shape, generator=draw.manual_seed(k))
            found.append((out, *torch.autograd.grad((out * weight).sum(), [x])))
        assert all(map(torch.equal, *found))
        assert mode.used
    assert len(called) == len(same)


def test_pools_are_looked_for_once(monkeypatch):
    engine, p, given = LoopEngine(problem()), problem(), batch()
    assert engine._pools
    engine.value_and_grad(rows(p), given)
    assert not engine._pools
    monkeypatch.setenv("TUNEFREE_ENGINES", "plain")
    assert not LoopEngine(p)._pools


def test_the_rows_are_right():
    p, given = problem(torch.float64), batch(dtype=torch.float64)
    value, again, grad = results(p, given)
    assert torch.equal(value, again)
    one = VmapEngine(p)
    full = [i for i in range(7) if i != 2]
    values, grads = one.value_and_grad(
        rows(p), replace(given, mask=given.mask | (given.key == 2)[:, None])
    )
    torch.testing.assert_close(value[full], values[full], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad[full], grads[full], rtol=1e-12, atol=1e-12)
    assert not value[2]
    assert not grad[2].any()


MEET = threading.Barrier(2)


class Meets(nn.Module):
    """Waits for another client in the midst of its forward pass."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        before = self.w
        MEET.wait(WAIT)
        assert self.w is before
        return x * self.w


def test_two_clients_at_once_have_a_module_each():
    MEET.reset()
    p = Problem(Meets())
    y = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    x, target = torch.eye(3)[None].repeat(2, 1, 1), torch.arange(3).repeat(2, 1)
    given = Batch(x, target, torch.ones(2, 3, dtype=torch.bool), torch.arange(2))
    values = LoopEngine(p).value(y, given)
    expected = [nn.functional.cross_entropy(x[0] * row, target[0]) for row in y]
    torch.testing.assert_close(values, torch.stack(expected))
    assert torch.equal(p.start, torch.ones(3))


class Watched(nn.Module):
    """Notes who runs it, with how many threads, forwards and backwards."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self._note()
        out = x * self.w
        if out.requires_grad:
            out.register_hook(lambda grad: self._note())
        return out

    @staticmethod
    def _note():
        SEEN.append((threading.current_thread(), torch.get_num_threads()))


def given(m, value=1.0):
    x = torch.full((m, 2, 3), value)
    return Batch(x, torch.zeros(m, 2).long(), torch.ones(m, 2, dtype=torch.bool), torch.arange(m))


def use(engine, m):
    SEEN.clear()
    engine.value_and_grad(torch.ones(m, 3), given(m))
    return {thread for thread, _ in SEEN}, {n for _, n in SEEN}


def test_a_client_has_one_thread_and_ours_are_as_before():
    engine, here = LoopEngine(Problem(Watched())), threading.current_thread()
    used, counts = use(engine, 5)
    assert here not in used
    assert counts == {1}
    assert torch.get_num_threads() == 2
    fresh = []
    run_threads(lambda: fresh.append(torch.get_num_threads()))
    assert fresh == [2]


@pytest.mark.parametrize(("n", "m"), [(1, 5), (2, 1), (4, 2)])
def test_a_single_thread_and_few_rows_stay_here(threads, n, m):
    threads(n)
    assert use(LoopEngine(Problem(Watched())), m) == ({threading.current_thread()}, {n})


def test_threads_end_with_their_engine():
    before = set(threading.enumerate())
    engine = LoopEngine(Problem(Watched()))
    for _ in range(3):
        use(engine, 6)
    mine = set(threading.enumerate()) - before
    assert 1 <= len(mine) <= 2
    SEEN.clear()
    del engine
    gc.collect()
    for thread in mine:
        join_thread(thread, WAIT)


class Fails(nn.Module):
    """Refuses clients whose samples are negative."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        SEEN.append(x)
        if float(x.min()) < 0:
            raise ZeroDivisionError("no such client")
        return x * self.w


def test_an_error_comes_through_and_ends_the_call():
    engine, m = LoopEngine(Problem(Fails())), 1000
    bad = given(m)
    bad.inputs[1] = -1
    SEEN.clear()
    with pytest.raises(ZeroDivisionError, match="no such client"):
        engine.value_and_grad(torch.ones(m, 3), bad)
    assert 2 <= len(SEEN) < m
    assert torch.get_num_threads() == 2
    values, grads = engine.value_and_grad(torch.ones(m, 3), given(m))
    assert bool(values.all())
    assert bool(grads.any(1).all())


class Interrupted(nn.Module):
    """Presses Ctrl-C once the main thread waits; all go on when it has arrived there."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        SEEN.append("begun")
        if FIRST.acquire(blocking=False):
            assert WAITING.wait(WAIT)
            for _ in range(10 * WAIT):  # one that comes just before the wait is not seen at once
                os.kill(os.getpid(), signal.SIGINT)
                if PRESSED.wait(0.1):
                    break
        assert PRESSED.wait(WAIT)
        SEEN.append("done")
        return x * self.w


@pytest.mark.skipif(os.name == "nt", reason="os.kill means another thing there")
def test_ctrl_c(monkeypatch):
    result = Future.result

    def waits(self):
        WAITING.set()
        return result(self)

    def pressed(*_):
        if not PRESSED.is_set():
            PRESSED.set()
            raise KeyboardInterrupt

    before, m = signal.signal(signal.SIGINT, pressed), 1000
    try:
        SEEN.clear()
        WAITING.clear()
        PRESSED.clear()
        monkeypatch.setattr(Future, "result", waits)
        with pytest.raises(KeyboardInterrupt):
            LoopEngine(Problem(Interrupted())).value(torch.ones(m, 3), given(m))
    finally:
        signal.signal(signal.SIGINT, before)
        FIRST.release()
    assert SEEN.count("begun") == SEEN.count("done") < m
    assert torch.get_num_threads() == 2


def test_inside_other_threads():
    """Two callers at once, each with threads of its own."""
    expected, found = results(problem(), batch()), []

    def call(own):
        found.append(results(own, batch()))

    run_threads(*(partial(call, problem()) for _ in range(2)))
    assert len(found) == 2
    for other in found:
        assert all(torch.equal(a, b) for a, b in zip(expected, other, strict=True))


@pytest.mark.parametrize("n", [1, 2])
def test_where_gradients_are_off(threads, n):
    expected = results(problem(), batch())
    threads(n)
    with torch.no_grad():
        found = results(problem(), batch())
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
