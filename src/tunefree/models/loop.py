"""The engine that evaluates one client after another, in plain PyTorch.

For modules that vmap cannot batch, and for large ones on a CPU, where it is faster. Plain gradient
descent changes each client's tensors in place, all steps of a client in a row (`InPlaceDescent`).

On a CPU, as many clients run at once as PyTorch has threads, each on one thread: that is faster
than all threads on one client. One thread computes a client's row from beginning to end, so its
bits depend neither on the number of threads nor on the order in which clients finish. If there are
at most half as many rows as threads (a deployed client is one row), the rows run one after another
on all threads.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..core.types import Inputs, Rows, list_tensors, take_rows
from .cpu.pool import MaxPoolMode
from .enabled import are_engines_enabled
from .losses import Batch, DeferredBatch, LocalUpdate, load_batch
from .problem import Problem

Row = tuple[Inputs, Tensor, Tensor, Tensor]
RowTask = Callable[[Problem, int], Iterable[None]]
"""Computes the row of a client in parts, between which it may be stopped."""

WAITING = 1 << 26  # bytes of batches that wait until their steps are taken
# Numbers of an embedding from which on its gradient is written for the batch's tokens only.
LOOKED_UP = 1 << 16


class LoopEngine:
    """One client after another, with ordinary autograd."""

    name, wants_deferred = "loop", False

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: ThreadPoolExecutor | None = None  # its threads end with this object
        self._own = threading.local()  # .problem: a copy for each thread
        self._pools = are_engines_enabled() and problem.device.type == "cpu"  # whether to replace

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,)."""
        batch = load_batch(batch)
        out = y.new_zeros(y.shape[0])
        full = batch.mask.all(1).tolist()

        def task(problem: Problem, i: int) -> Sequence[None]:
            with torch.no_grad():
                out[i] = problem.value(problem.layout.split(y[i]), *_row(batch, i, full[i]))
            return ()

        self.run(task, _present(batch), len(y))
        return out

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        batch = load_batch(batch)
        values, grads = y.new_zeros(y.shape[0]), torch.empty_like(y)
        grads[~batch.mask.any(1)] = 0  # clients without samples; other rows are written below
        full = batch.mask.all(1).tolist()

        def task(problem: Problem, i: int) -> Sequence[None]:
            with torch.enable_grad():
                point = [p.detach().requires_grad_() for p in problem.layout.split(y[i])]
                loss = self.loss(problem, point, _row(batch, i, full[i]))
                parts = torch.autograd.grad(loss, point, materialize_grads=True)
            values[i] = loss.detach()
            torch.cat([g.reshape(-1) for g in parts], out=grads[i])
            return ()

        self.run(task, _present(batch), len(y))
        return values, grads

    def descent(self, m: int) -> "InPlaceDescent | None":
        """Return in-place descent; None on a GPU, where reading lr would synchronise."""
        return InPlaceDescent(self) if self._problem.device.type == "cpu" else None

    def fuse(
        self,
        updates: tuple[LocalUpdate, ...],
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        batch: Batch | DeferredBatch,
    ) -> None:
        """Return None: nothing is compiled here."""

    def release(self) -> None:
        """Do nothing: only threads and their modules are held between calls."""

    def loss(self, problem: Problem, point: Sequence[Tensor], row: Row) -> Tensor:
        """Return a client's loss, which will be differentiated."""
        if not self._pools:
            return problem.value(point, *row)
        with MaxPoolMode() as mode:
            loss = problem.value(point, *row)
        self._pools = mode.used
        return loss

    def run(self, task: RowTask, clients: Iterable[int], rows: int) -> None:
        """Run the task for these clients, which have `rows` rows in all."""
        todo, threads = deque(clients), torch.get_num_threads()
        if self._problem.device.type != "cpu" or threads == 1 or 2 * rows <= threads:
            with self._problem.precision_context():
                for i in todo:
                    deque(task(self._problem, i), maxlen=0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, "tunefree")
        running: list[Future[None]] = []
        stop = threading.Event()
        try:
            for _ in range(min(threads, rows)):
                running.append(self._pool.submit(self._work, task, todo, stop))
            for done in running:
                done.result()
        finally:
            stop.set()  # after Ctrl-C nothing further starts
            wait(running)
            torch.set_num_threads(threads)  # `_work` changed the default of new threads

    def _work(self, task: RowTask, todo: deque[int], stop: threading.Event) -> None:
        """Run clients from the queue until it is empty."""
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread only
        if not hasattr(self._own, "problem"):
            self._own.problem = copy.copy(self._problem)
            module = self._problem._module
            shared = {id(p): p for p in module.parameters()}  # only read, so not copied
            self._own.problem._module = copy.deepcopy(module, shared)
        while todo and not stop.is_set():
            try:
                i = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                for _ in task(self._own.problem, i):
                    if stop.is_set():
                        return
            except BaseException:
                stop.set()
                raise


class InPlaceDescent:
    """Gradient descent that changes each client's tensors in place.

    Batches are gathered first; then every client takes its steps in a row, while its tensors are in
    the cache. The gradient of a large embedding has only the rows of the batch's tokens.

    Args:
        engine: Computes losses and runs clients.
    """

    def __init__(self, engine: LoopEngine) -> None:
        self._engine = engine

    def begin(self, y: Rows) -> None:
        """Set the clients' iterates to y (m, d) and their loss sums to zero."""
        self._total, self._start = y.new_zeros(len(y)), y
        self._y = torch.empty(y.shape, dtype=y.dtype, device=y.device)
        self._begun = [False] * len(y)
        self._waiting: list[tuple[Batch, list[bool], list[float]]] = []

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Step to y - lr grad; clients with lr 0 keep their iterate."""
        batch = load_batch(batch)
        rates = torch.where(batch.mask.any(1), lr, 0.0)
        self._waiting.append((batch, batch.mask.all(1).tolist(), rates.tolist()))
        held = sum(t.nbytes for t in (*list_tensors(batch.inputs), batch.target, batch.mask))
        if held * len(self._waiting) > WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Take the steps that wait."""

        def task(problem: Problem, i: int) -> Iterator[None]:
            first = self._y[i] if self._begun[i] else self._start[i]
            self._begun[i] = True
            # tensors of their own: aligned, so that bits do not depend on the place in the cohort
            point = [p.detach().clone().requires_grad_() for p in problem.layout.split(first)]
            with problem.fixed(point), _sparse_gradients(problem._module):
                for batch, full, rates in self._waiting:
                    if rates[i]:
                        row = _row(batch, i, full[i])
                        self._total[i] += self._descend(problem, point, row, rates[i])
                        yield
            torch.cat([p.detach().reshape(-1) for p in point], out=self._y[i])

        self._engine.run(task, range(len(self._y)), len(self._y))
        self._waiting = []

    def _descend(self, problem: Problem, point: list[Tensor], row: Row, lr: float) -> Tensor:
        """Move a client's tensors by a step, in place, and return its loss before."""
        with torch.enable_grad():
            loss = self._engine.loss(problem, point, row)
            grads = torch.autograd.grad(loss, point, materialize_grads=True)
        with torch.no_grad():
            dense = [k for k, g in enumerate(grads) if not g.is_sparse]
            torch._foreach_add_([point[k] for k in dense], [grads[k] for k in dense], alpha=-lr)
            for p, g in zip(point, grads, strict=True):
                if g.is_sparse:
                    p.add_(g, alpha=-lr)
        return loss.detach()

    def end(self) -> tuple[Rows, Rows]:
        """Return the iterates (m, d) and each client's sum of losses (m,)."""
        self._catch_up()
        return self._y, self._total


@contextmanager
def _sparse_gradients(module: nn.Module) -> Iterator[None]:
    """Return the gradients of large embeddings as rows and tokens."""
    found = [
        part
        for part in module.modules()
        if isinstance(part, nn.Embedding)
        and part.weight.numel() > LOOKED_UP
        and not (part.sparse or part.scale_grad_by_freq)
    ]
    for part in found:
        part.sparse = True
    try:
        yield
    finally:
        for part in found:
            part.sparse = False


def _present(batch: Batch) -> list[int]:
    """Return the clients that have samples in this batch."""
    found: list[int] = batch.mask.any(1).nonzero().flatten().tolist()
    return found


def _row(batch: Batch, i: int, full: bool) -> Row:
    """Return client i's batch without padding; views where there is none."""
    if not full:
        return batch.row(i)
    return take_rows(batch.inputs, i), batch.target[i], batch.mask[i], batch.key[i]
