"""Functions of tensors, captured as CUDA graphs and replayed: one launch instead of hundreds.

A CUDA graph reads and writes fixed addresses. Small arguments are copied into buffers of the graph.
The first argument, the clients' rows, is large. The allocator reuses a few addresses for it: where
one comes often, the function is captured for it and reads the rows there; rows at other addresses
are copied. The results lie in the graph's memory, and the next call overwrites them: the caller
copies what it needs longer.
"""

import gc
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

WARMUP_CALLS = 3  # before a capture, in which libraries choose their kernels
MAX_ADDRESSES = 6  # of the rows, for which captures are held at once
CAPTURE_AT_MISS = 20  # misses of an address before it is captured; a capture costs many copies
MAX_CAPTURES = 24  # in all; afterwards, rows at a new address are always copied to a captured one


class OnDevice(Protocol):
    """What has a device, such as a `Problem`."""

    device: torch.device


def is_on_gpu(problem: OnDevice) -> bool:
    """Return whether the problem's calls can be captured."""
    return problem.device.type == "cuda"


class CudaGraphFunction:
    """A function captured for one shape of its arguments.

    Args:
        function: f(rows, *rest) -> tensors; it must not read any of them on the host.
        rows: The first argument of the first call.
        rest: The other arguments of that call; any nesting of tensors.
    """

    def __init__(self, function: Callable[..., Any], rows: Tensor, *rest: Any) -> None:
        self._function = function
        flat, self._structure = tree_flatten(rest)
        self._rest = [torch.empty_like(t).copy_(t) for t in flat]
        self._pool = torch.cuda.graph_pool_handle()
        self._captures: OrderedDict[int, tuple[Callable[[], None], Any]] = OrderedDict()
        self._misses: Counter[int] = Counter()
        self._count = 0
        self._copy: Tensor | None = None
        warm_up(lambda: self._call(rows))
        self._capture(rows)

    def _call(self, rows: Tensor) -> Any:
        return self._function(rows, *tree_unflatten(self._rest, self._structure))

    def _capture(self, rows: Tensor) -> None:
        while len(self._captures) >= MAX_ADDRESSES:
            self._captures.popitem(last=False)
        self._captures[rows.data_ptr()] = capture(lambda: self._call(rows), self._pool)
        self._count += 1

    def _captured_address(self, rows: Tensor) -> int:
        """Return the address of these rows, or of a copy of them, for which there is a capture."""
        address = rows.data_ptr()
        if address in self._captures:
            return address
        self._misses[address] += 1
        if self._misses[address] >= CAPTURE_AT_MISS and self._count < MAX_CAPTURES:
            self._capture(rows)
            return address
        self._copy = rows.clone() if self._copy is None else self._copy.copy_(rows)
        if self._copy.data_ptr() not in self._captures:
            self._capture(self._copy)
        return self._copy.data_ptr()

    def __call__(self, rows: Tensor, *rest: Any) -> Any:
        """Return the function's results, valid until the next call."""
        for buffer, value in zip(self._rest, tree_flatten(rest)[0], strict=True):
            buffer.copy_(value)
        address = self._captured_address(rows)
        self._captures.move_to_end(address)
        replay, out = self._captures[address]
        replay()
        return out


def warm_up(call: Callable[[], Any]) -> None:
    """Call a few times on a side stream, which CUDA graphs need before a capture."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)


def capture(call: Callable[[], Any], pool: Any) -> tuple[Callable[[], None], Any]:
    """Return a function that replays the call, and the tensors that hold its results."""
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # freeing a graph of an earlier run during the capture would invalidate this one
    try:
        with torch.cuda.graph(graph, pool=pool):
            out = call()
    finally:
        if collecting:
            gc.enable()
    return graph.replay, out
