"""The engine that evaluates one client after another, in plain PyTorch.

For modules that vmap cannot batch, and for large ones on a CPU, where it is faster. Plain gradient
descent changes each client's tensors in place (`InPlaceDescent`).

On a CPU, as many clients run at once as PyTorch has threads, each on one thread: that is faster
than all threads on one client. One thread computes a client's row from beginning to end, so its
bits depend neither on the number of threads nor on the order in which clients finish. If there are
at most half as many rows as threads (a deployed client is one row), the rows run one after another
on all threads.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ..core.types import Inputs, Rows, take_rows
from .losses import Batch, DeferredBatch, LocalUpdate, load_batch
from .problem import Problem

RowTask = Callable[[Problem, int], None]


class LoopEngine:
    """One client after another, with ordinary autograd."""

    name, wants_deferred = "loop", False

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: ThreadPoolExecutor | None = None  # its threads end with this object
        self._own = threading.local()  # .problem: a copy for each thread

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,)."""
        batch = load_batch(batch)
        out = y.new_zeros(y.shape[0])
        full = batch.mask.all(1).tolist()

        def task(problem: Problem, i: int) -> None:
            with torch.no_grad():
                out[i] = problem.value(problem.layout.split(y[i]), *_row(batch, i, full[i]))

        self._run(task, batch)
        return out

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, reuse_buffer: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        batch = load_batch(batch)
        values, grads = y.new_zeros(y.shape[0]), torch.empty_like(y)
        grads[~batch.mask.any(1)] = 0  # clients without samples; other rows are written below
        full = batch.mask.all(1).tolist()

        def task(problem: Problem, i: int) -> None:
            with torch.enable_grad():
                point = [p.detach().requires_grad_() for p in problem.layout.split(y[i])]
                loss = problem.value(point, *_row(batch, i, full[i]))
                parts = torch.autograd.grad(loss, point, materialize_grads=True)
            values[i] = loss.detach()
            torch.cat([g.reshape(-1) for g in parts], out=grads[i])

        self._run(task, batch)
        return values, grads

    def descent(self, m: int) -> "InPlaceDescent | None":
        """Return in-place descent; None on a GPU, where reading lr would synchronise."""
        return (
            InPlaceDescent(self._problem, self._run) if self._problem.device.type == "cpu" else None
        )

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

    def _run(self, task: RowTask, batch: Batch) -> None:
        """Run the task for every client that has samples in this batch."""
        todo = deque(batch.mask.any(1).nonzero().flatten().tolist())
        rows, threads = batch.mask.shape[0], torch.get_num_threads()
        if batch.mask.device.type != "cpu" or threads == 1 or 2 * rows <= threads:
            with self._problem.precision_context():
                for i in todo:
                    task(self._problem, i)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, "tunefree")
        running: list[Future[None]] = []
        try:
            for _ in range(min(threads, rows)):
                running.append(self._pool.submit(self._work, task, todo))
            for done in running:
                done.result()
        finally:
            todo.clear()  # after Ctrl-C no further client starts
            wait(running)
            torch.set_num_threads(threads)  # `_work` changed the default of new threads

    def _work(self, task: RowTask, todo: deque[int]) -> None:
        """Run clients from the queue until it is empty."""
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread only
        if not hasattr(self._own, "problem"):
            self._own.problem = copy.copy(self._problem)
            module = self._problem._module
            shared = {id(p): p for p in module.parameters()}  # only read, so not copied
            self._own.problem._module = copy.deepcopy(module, shared)
        while todo:
            try:
                i = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                task(self._own.problem, i)
            except BaseException:
                todo.clear()
                raise


class InPlaceDescent:
    """Gradient descent that changes each client's tensors in place.

    Args:
        problem: Model and loss.
        run: Runs a task for every client that has samples.
    """

    def __init__(self, problem: Problem, run: Callable[[RowTask, Batch], None]) -> None:
        self._problem, self._run = problem, run

    def begin(self, y: Rows) -> None:
        """Set the clients' iterates to y (m, d) and their loss sums to zero."""
        self._total, split = y.new_zeros(len(y)), self._problem.layout.split
        self._points = [[p.detach().clone().requires_grad_() for p in split(row)] for row in y]

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Step to y - lr grad; clients with lr 0 keep their iterate."""
        batch = load_batch(batch)
        full, rates = batch.mask.all(1).tolist(), lr.tolist()

        def task(problem: Problem, i: int) -> None:
            if rates[i] == 0:
                return
            point = self._points[i]
            with torch.enable_grad():
                loss = problem.value(point, *_row(batch, i, full[i]))
                parts = torch.autograd.grad(loss, point, materialize_grads=True)
            with torch.no_grad():
                torch._foreach_add_(point, parts, alpha=-rates[i])
            self._total[i] += loss.detach()

        self._run(task, batch)

    def end(self) -> tuple[Rows, Rows]:
        """Return the iterates (m, d) and each client's sum of losses (m,)."""
        y = self._total.new_empty(len(self._points), self._problem.layout.size)
        for row, point in zip(y, self._points, strict=True):
            torch.cat([p.detach().reshape(-1) for p in point], out=row)
        return y, self._total


def _row(batch: Batch, i: int, full: bool) -> tuple[Inputs, Tensor, Tensor, Tensor]:
    """Return client i's batch without padding; views where there is none."""
    if not full:
        return batch.row(i)
    return take_rows(batch.inputs, i), batch.target[i], batch.mask[i], batch.key[i]
