"""Passes over the graph of a step keep its results."""

import pytest
import torch
from torch import nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tunefree.models.compiled.mode import BatchedOpsMode
from tunefree.models.gpu import flatten, graphs, rewrite
from tunefree.models.problem import Problem

pytestmark = pytest.mark.compiled_engines

aten = torch.ops.aten
CLIENTS, SAMPLES = 3, 4


class Twice(nn.Module):
    """Flattened images that one weight reads, and another operation too."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = nn.Conv2d(2, 8, 3), nn.Linear(8 * 36, 64)

    def forward(self, x):
        flat = self.conv(x).relu().flatten(1)
        return self.dense(flat) + flat.mean(1, keepdim=True)


def network(dense=64):
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Dropout(0.25), nn.Flatten(), nn.Linear(8 * 36, dense),
        nn.ReLU(), nn.Linear(dense, 3),
    )  # fmt: skip


def traced(net, precision="auto"):
    """Return the graph of gradients, and what it is given."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(net() if isinstance(net, type) else network(net), precision=precision)
    both = vmap(
        grad_and_value(problem.value), in_dims=(0, 0, 0, 0, 0 if problem.has_dropout else None)
    )
    rows = problem.start + 0.1 * torch.randn(CLIENTS, problem.layout.size, generator=draw)
    parts = [p.clone() for p in problem.layout.split(rows)]
    low = [p.bfloat16() for p in parts] if precision == "bf16" else []
    x = torch.randn(CLIENTS, SAMPLES, 2, 8, 8, generator=draw)
    y = torch.randint(3, (CLIENTS, SAMPLES), generator=draw)
    batch = (x, y, torch.ones(CLIENTS, SAMPLES, dtype=torch.bool), torch.arange(CLIENTS))

    def slopes(parts, low, *batch):
        with BatchedOpsMode():
            grads, loss = both(tuple(parts), *batch)
        return [loss, *grads]

    graph = make_fx(slopes)(parts, low, *batch)
    graphs.flatten_signature(graph)
    rewrite.use_cast_inputs(graph, len(low))
    return graph, parts, low, batch


def targets(graph):
    return [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_equal_copies_are_merged(precision):
    graph, parts, low, batch = traced(64, precision)
    expected = graph(*parts, *low, *batch)
    before = len(targets(graph))
    rewrite.merge_copies(graph)
    assert len(targets(graph)) < before
    for a, b in zip(graph(*parts, *low, *batch), expected, strict=True):
        assert torch.equal(a, b)


def _two_clones(x):
    one, two = x.clone(), x.clone()
    one += 1
    two[:, 0] *= 3
    return one * two * x.flatten(1).reshape(x.shape)


def _before_and_after(x):
    y = 2 * x
    before = y.clone()
    y.diagonal(0, 0, 1).mul_(3)
    return before + y.clone().sin()


@pytest.mark.parametrize("change", [_two_clones, _before_and_after])
def test_copies_that_are_overwritten_are_not_merged(change):
    def loss(w, x):
        return (w * change(x)).sum()

    w, x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    graph = make_fx(vmap(grad_and_value(loss)))(w, x)
    expected = vmap(grad_and_value(loss))(w, x)
    rewrite.merge_copies(graph)
    for a, b in zip(graph(w, x), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_images_are_flattened_in_memory_order(precision):
    graph, parts, low, batch = traced(64, precision)
    expected = graph(*parts, *low, *batch)
    rewrite.merge_copies(graph)
    copied = targets(graph).count(aten.clone.default)
    columns = flatten.flatten_in_memory_order(graph, len(parts), len(parts) + len(low))
    assert columns == {2: flatten.ColumnOrder((8, 6, 6), (1, 2, 0))}
    assert targets(graph).count(aten.clone.default) < copied

    def reorder(weight):  # columns (h, w, c) in place of (c, h, w)
        return weight.reshape(*weight.shape[:2], 8, 6, 6).permute(0, 1, 3, 4, 2).flatten(2)

    for given in (parts, low):
        given[2:3] = [reorder(t) for t in given[2:3]]
    found = graph(*parts, *low, *batch)
    found[3] = columns[2].in_model_order(found[3]).flatten(2)
    tolerance = 1e-5 if precision == "auto" else 1e-2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_flattened_images_with_other_uses_are_left_alone():
    graph, parts, low, batch = traced(Twice)
    rewrite.merge_copies(graph)
    before = targets(graph)
    assert flatten.flatten_in_memory_order(graph, len(parts), len(parts)) == {}
    assert targets(graph) == before
    assert not low
    graph(*parts, *batch)


@pytest.mark.parametrize("precision", ["auto", "bf16"])
@pytest.mark.parametrize("reordered", [False, True])
def test_products_with_short_sums_are_returned_as_factors(precision, reordered):
    graph, parts, low, batch = traced(64, precision)
    rewrite.merge_copies(graph)
    if reordered:
        flatten.flatten_in_memory_order(graph, len(parts), len(parts) + len(low))
    expected = graph(*parts, *low, *batch)
    given = len(parts) + len(low)
    assert rewrite.return_factors(graph, given, SAMPLES - 1) == []
    assert rewrite.return_factors(graph, given, SAMPLES) == [2]  # others are small, or no products
    found = graph(*parts, *low, *batch)
    left, right = found[3]
    assert (left.shape[2], right.shape[1]) == (SAMPLES, SAMPLES)
    found[3] = torch.bmm(left.float(), right.float())
    tolerance = 1e-6 if precision == "auto" else 1e-2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))
