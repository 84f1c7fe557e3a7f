"""A function of tensors, recorded as a CUDA graph and replayed: one launch instead of hundreds.

A graph reads and writes fixed places in memory. Small arguments are copied into places of its own.
The first argument, the clients' rows, is large and is read where it lies: the allocator hands out
the same few places again and again, and each of them gets a recording. What the function returns
lies in the graph's places and is overwritten by the next call: the caller copies what it keeps.
"""

import gc
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .problem import Problem

WARM = 3  # calls before recording, in which libraries choose their kernels
PLACES = 6  # recordings for so many places of the rows
OFTEN = 2  # with all of them taken, a place seen so often replaces the one unused for longest
MOST = 24  # recordings in all; beyond, rows at a new place are copied to one that has a recording


def on_gpu(problem: Problem) -> bool:
    """Return whether calls can be recorded."""
    return problem.device.type == "cuda"


class Captured:
    """A function recorded for one shape of its arguments.

    Args:
        function: f(rows, *rest) -> tensors, without reading any of them on the host.
        rows: The first argument, as it is now.
        rest: The other arguments; any nesting of tensors.
    """

    def __init__(self, function: Callable[..., Any], rows: Tensor, *rest: Any) -> None:
        self._function = function
        flat, self._form = tree_flatten(rest)
        self._rest = [torch.empty_like(t).copy_(t) for t in flat]
        self._pool = torch.cuda.graph_pool_handle()
        self._places: OrderedDict[int, tuple[Callable[[], None], Any]] = OrderedDict()
        self._missed: Counter[int] = Counter()
        self._made = 0
        self._own: Tensor | None = None
        warm(lambda: self._call(rows))
        self._record(rows)

    def _call(self, rows: Tensor) -> Any:
        return self._function(rows, *tree_unflatten(self._rest, self._form))

    def _record(self, rows: Tensor) -> None:
        while len(self._places) >= PLACES:
            self._places.popitem(last=False)
        self._places[rows.data_ptr()] = record(lambda: self._call(rows), self._pool)
        self._made += 1

    def _at(self, rows: Tensor) -> int:
        """Return the place of these rows, or of a copy, for which there is a recording."""
        at = rows.data_ptr()
        if at in self._places:
            return at
        self._missed[at] += 1
        often = self._missed[at] >= OFTEN and self._made < MOST
        if len(self._places) < PLACES or often:
            self._record(rows)
            return at
        self._own = rows.clone() if self._own is None else self._own.copy_(rows)
        if self._own.data_ptr() not in self._places:
            self._record(self._own)
        return self._own.data_ptr()

    def __call__(self, rows: Tensor, *rest: Any) -> Any:
        """Return what the function returns, valid until the next call."""
        for place, value in zip(self._rest, tree_flatten(rest)[0], strict=True):
            place.copy_(value)
        at = self._at(rows)
        self._places.move_to_end(at)
        replay, out = self._places[at]
        replay()
        return out


def warm(call: Callable[[], Any]) -> None:
    """Call a few times aside, as recording asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            call()
    torch.cuda.current_stream().wait_stream(stream)


def record(call: Callable[[], Any], pool: Any) -> tuple[Callable[[], None], Any]:
    """Return what does the call again, and where its results will lie."""
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # a graph of an earlier run that is freed meanwhile would spoil this one
    try:
        with torch.cuda.graph(graph, pool=pool):
            out = call()
    finally:
        if collecting:
            gc.enable()
    return graph.replay, out
