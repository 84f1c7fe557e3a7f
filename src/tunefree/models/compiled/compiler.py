"""Tracing of graphs, options of torch.compile, and the versions in which it is not safe."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_unflatten

from ..gpu.graphs import flatten_signature
from . import embedding, kept
from .matmul import BatchedMatmul

# On a CPU, PyTorch 2.11 may overwrite a tensor before all of its reads (pytorch/pytorch#177631):
# steps in place would then use weights that have already been updated.
IN_PLACE_SINCE = (2, 12)

MAX_FUSED_OPS = 60  # operations on an element before it is written; dropout's masks take half

GPU_OPTIONS: dict[str, Any] = {
    # By default, the compiler times several kernels and keeps the fastest; their sums round
    # differently, so that the same seed would give other bits in the next process.
    "deterministic": True,
    "shape_padding": False,
    # By default, it would write the 64 random bits of each unit of dropout to memory.
    "realize_opcount_threshold": MAX_FUSED_OPS,
}


def make_table() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table of one trace that is compiled."""
    aten = torch.ops.aten
    products = {aten.bmm.default: BatchedMatmul()}
    return products | {
        aten.embedding.default: embedding.decompose,
        aten.embedding_dense_backward.default: embedding.decompose_gradient,
    }


def trace_graph(function: Callable[..., Any], *args: Any, decompose: bool = False) -> GraphModule:
    """Return the operations of a call as a graph, with `make_table` where `decompose` is true.

    The context gives all values one fake mode; otherwise `make_fx` creates one for each value,
    which takes half of the time.
    """
    table = make_table() if decompose else None
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        graph: GraphModule = make_fx(function, decomposition_table=table)(*args)
    return graph


def compile_graph(graph: GraphModule, device: torch.device) -> Callable[..., Any]:
    """Return the graph compiled for the shapes of its first call; its signature may be changed."""
    if device.type != "cuda":
        return kept.watch_first_call(_compile_for_cpu(graph))
    fast = torch.compile(graph, dynamic=False, options=GPU_OPTIONS)
    return _ignore_softmax_warning(kept.watch_first_call(fast))


def _compile_for_cpu(graph: GraphModule) -> Callable[..., Any]:
    """Return the graph as a function that is compiled when it is called with new strides.

    `torch.compile` checks more in every call, which takes a good part of the time of a local step
    of a small network. Here the arguments' shapes and types are always the same.
    """
    nested = getattr(graph.graph._codegen, "pytree_info", None)
    flatten_signature(graph)
    compiled: dict[object, Callable[..., Any]] = {}

    def call(*args: Any) -> Any:
        flat = list(args) if nested is None else tree_leaves(args)
        strides = tuple(t.stride() for t in flat)
        if strides not in compiled:
            compiled[strides] = torch._inductor.compile(graph, flat)
        out = compiled[strides](*flat)
        return out if nested is None else tree_unflatten(out, nested.out_spec)

    return call


def _ignore_softmax_warning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Suppress a warning that PyTorch 2.11 gives for every network with fewer than 8 classes."""

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
            return function(*args)

    return call


def is_in_place_safe(device: torch.device) -> bool:
    """Return whether a compiled graph may overwrite its inputs."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return device.type != "cpu" or found >= IN_PLACE_SINCE
