"""Every client by itself, for modules that cannot be batched, and where that is faster.

Where a local step is plain descent, each client's tensors are changed in place (`InPlaceDescent`).

On a CPU as many clients run at once as PyTorch has threads, each of them on one thread: less is
lost than with all threads on one client. A row is then one thread's work from beginning to end, so
its bits depend neither on the number of threads nor on who finishes first. No more rows than half
the threads (a real client is one row) run one after another, on all threads.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ..core.types import Inputs, Rows, map_inputs
from .losses import Batch, DeferredBatch, gathered
from .problem import Problem

Task = Callable[[Problem, int], None]


class Looped:
    """Every client by itself, through ordinary autograd."""

    name, gathers = "loop", False

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: ThreadPoolExecutor | None = None  # its threads end when this object does
        self._own = threading.local()  # .problem, with a module that no other thread touches

    def value(self, y: Rows, batch: Batch | DeferredBatch) -> Rows:
        """Return the losses (m,)."""
        batch = gathered(batch)
        out = y.new_zeros(y.shape[0])
        full = batch.mask.all(1).tolist()

        def task(problem: Problem, i: int) -> None:
            with torch.no_grad():
                out[i] = problem.value(problem.layout.split(y[i]), *_row(batch, i, full[i]))

        self._run(task, batch)
        return out

    def value_and_grad(
        self, y: Rows, batch: Batch | DeferredBatch, brief: bool = False
    ) -> tuple[Rows, Rows]:
        """Return the losses (m,) and gradients (m, d)."""
        batch = gathered(batch)
        values, grads = y.new_zeros(y.shape[0]), torch.empty_like(y)
        grads[~batch.mask.any(1)] = 0  # clients that are through; others' rows are written whole
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
        """Return whole steps of m clients; not on a GPU, where they would wait for numbers."""
        return (
            InPlaceDescent(self._problem, self._run) if self._problem.device.type == "cpu" else None
        )

    def release(self) -> None:
        """Nothing is held between calls but threads and their modules."""

    def _run(self, task: Task, batch: Batch) -> None:
        """Do the task for the clients that have samples; others are through with theirs."""
        todo = deque(batch.mask.any(1).nonzero().flatten().tolist())
        rows, threads = batch.mask.shape[0], torch.get_num_threads()
        if batch.mask.device.type != "cpu" or threads == 1 or 2 * rows <= threads:
            with self._problem.arithmetic():
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
            todo.clear()  # after Ctrl-C nobody begins another client
            wait(running)
            torch.set_num_threads(threads)  # `_work` changed what threads to come begin with

    def _work(self, task: Task, todo: deque[int]) -> None:
        """Take one client after another until none is left."""
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread alone
        if not hasattr(self._own, "problem"):
            self._own.problem = copy.copy(self._problem)
            self._own.problem._module = copy.deepcopy(self._problem._module)
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
    """Whole steps of gradient descent, each client's in place.

    Args:
        problem: What is descended.
        run: Does a task for every client that has samples.
    """

    def __init__(self, problem: Problem, run: Callable[[Task, Batch], None]) -> None:
        self._problem, self._run = problem, run

    def begin(self, y: Rows) -> None:
        """Let the clients stand at y (m, d)."""
        self._total, split = y.new_zeros(len(y)), self._problem.layout.split
        self._points = [[p.detach().clone().requires_grad_() for p in split(row)] for row in y]

    def step(self, batch: Batch | DeferredBatch, lr: Rows) -> None:
        """Move on; clients with lr 0 stay, whatever their gradients."""
        batch = gathered(batch)
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
        """Return where the clients stand, and each one's losses on the way, added up."""
        y = self._total.new_empty(len(self._points), self._problem.layout.size)
        for row, point in zip(y, self._points, strict=True):
            torch.cat([p.detach().reshape(-1) for p in point], out=row)
        return y, self._total


def _row(batch: Batch, i: int, full: bool) -> tuple[Inputs, Tensor, Tensor, Tensor]:
    """Return client i's own batch, padding cut off; without a copy where there is none."""
    if not full:
        return batch.row(i)
    return map_inputs(lambda t: t[i], batch.inputs), batch.target[i], batch.mask[i], batch.key[i]
