"""Helpers that tests in several folders share: comparisons, small problems, runs and processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tunefree as tf
from tunefree.training.bind import bind
from tunefree.training.client_data import SimulatedClients
from tunefree.training.config import GROUP_OF, GROUPS, RunConfig

# Processes.


@contextmanager
def start_process(words, limit=120.0, **options):
    """Start a process with text pipes; kill it after `limit` seconds, and at the end in any case.

    Reading its pipes therefore never blocks for longer than `limit`. Ctrl-C can be sent to it with
    `send_signal(signal.SIGINT)`: `conftest.py` makes sure that children do not ignore it.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **(pipes | options)) as process:
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def wait_for_child(pid, limit=120.0):
    """Wait for a forked child and return its status; kill it and fail after `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child has not ended after {limit:g} s")


def run_threads(*targets, limit=60.0):
    """Run functions in a thread each; fail if one has not ended after `limit` seconds."""
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        join_thread(thread, limit)


def join_thread(thread, limit=60.0):
    """Wait for a thread; fail if it has not ended after `limit` seconds."""
    thread.join(limit)
    assert not thread.is_alive(), "the thread has not ended"


# Work, counted instead of timed.


def count_calls(function):
    """Return how many Python and C functions a call makes in this thread."""
    calls = 0

    def note(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


class RecordedOps(TorchDispatchMode):
    """Records the names of the torch operations within a block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation."""
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# Comparisons.


def assert_close(a, b, tolerance=1e-12, atol=None):
    """Compare tensors with one relative and absolute tolerance, unless `atol` is another one."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance if atol is None else atol)


def drop_seconds(history):
    """Return the rows of a history without their wall-clock time."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


def read_history(folder):
    """Return the rows of a run folder's history."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


# Tensors.


def tensor(*values):
    """Return values as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    """Return standard normal numbers of a seed, in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Runs.


def grouped(**options):
    """Return keyword arguments of `fit` in which options of a group are in their group."""
    inside = {}
    for name in [name for name in options if name in GROUP_OF]:
        inside.setdefault(GROUP_OF[name], {})[name] = options.pop(name)
    if "engine" in inside and isinstance(options.get("engine"), str):
        inside["engine"]["backend"] = options.pop("engine")
    return options | {group: GROUPS[group](**found) for group, found in inside.items()}


def bound(model, federation, method="auto", **options):
    """Return a run that is bound but has not begun."""
    return bind(RunConfig(method=method, **grouped(**options)), model, SimulatedClients(federation))


# Problems.


def labelled(clients=4, rows=6, features=3, classes=2, seed=0):
    """Return clients of one size, with labels that a linear model can learn."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * rows, features, generator=draw, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long() * (classes - 1)
    owner = torch.arange(clients).repeat_interleave(rows)
    return tf.Federation(x, y, owner, test=(x.clone(), y.clone()), classes=classes)


def linear(features=3, classes=2, seed=0):
    """Return a linear model in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(features, classes).double()


def fit(method="fedavg", fed=None, model=None, **settings):
    """Train for three short rounds on the CPU in float64, by default `linear()` on `labelled()`."""
    given = {"rounds": 3, "steps": 2, "batch": 4, "device": "cpu", "dtype": torch.float64}
    fed = labelled() if fed is None else fed
    return tf.fit(linear() if model is None else model, fed, method, **(given | settings))


class CrashError(Exception):
    """Raised by tests in the middle of a run."""


class Bowls:
    """Losses f_i(y) = (a_i / 2) |y|^2 of a local loop; after a client's last step they are NaN."""

    name = "bowls"

    def __init__(self, curvature, steps):
        self.a, self.steps = tensor(*curvature), torch.tensor(steps)

    def fuse(self, *args):
        pass

    def descent(self, steps):
        pass

    def value(self, y, k):
        real = torch.where(k < self.steps, 1.0, float("nan"))
        return real * self.a / 2 * y.square().sum(1)

    def value_and_grad(self, y, k, reuse_buffer=False):
        real = torch.where(k < self.steps, 1.0, float("nan"))
        return self.value(y, k), real[:, None] * self.a[:, None] * y


class Quadratics:
    """Least squares of several clients, with their minima and smoothness in closed form."""

    def __init__(self, clients=3, rows=8, d=2, seed=0, spread=2.0):
        draw = torch.Generator().manual_seed(seed)
        self.a = torch.randn(clients, rows, d, generator=draw, dtype=torch.float64)
        self.a *= 0.5 + torch.rand(clients, 1, d, generator=draw, dtype=torch.float64)
        own = spread * torch.randn(clients, d, 1, generator=draw, dtype=torch.float64)
        self.y = (self.a @ own)[:, :, 0]
        self.y += 0.1 * torch.randn(clients, rows, generator=draw, dtype=torch.float64)
        self.hessians = 2 * self.a.mT @ self.a / rows  # (N, d, d)
        slopes = 2 * self.a.mT @ self.y[:, :, None] / rows  # gradient = H x - slope
        self.minima = torch.linalg.solve(self.hessians, slopes)[:, :, 0]
        self.optimum = torch.linalg.solve(self.hessians.mean(0), slopes.mean(0))[:, 0]
        self.smoothness = float(torch.linalg.eigvalsh(self.hessians).max())

    def federation(self, shift=None):
        """The same functions; with `shift` s, f_i(x - s) instead of f_i(x)."""
        n, rows, d = self.a.shape
        y = self.y if shift is None else self.y + self.a @ shift
        owner = torch.arange(n).repeat_interleave(rows)
        return tf.Federation(self.a.reshape(-1, d), y.reshape(-1), owner)

    def model(self, start):
        net = nn.Linear(len(start), 1, bias=False).double()
        with torch.no_grad():
            net.weight.copy_(torch.as_tensor(start, dtype=torch.float64)[None])
        return net

    def fit(self, method, start=None, shift=None, **settings):
        given = {"rounds": 4, "steps": 4, "batch": None, "device": "cpu", "dtype": torch.float64}
        start = torch.zeros(self.a.shape[2]) if start is None else start
        return tf.fit(self.model(start), self.federation(shift), method, **(given | settings))
