"""Batched products in another form have the same results and gradients."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tunefree as tf
from tunefree.models import engine
from tunefree.models.compiled import compiler, embedding, matmul

pytestmark = pytest.mark.compiled_engines

LINEAR = (32, 784, 10)


def rows(m, p, k, q):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(m, p, k, generator=draw, dtype=torch.float64)
    return x, torch.randn(m, q, k, generator=draw, dtype=torch.float64)


def traced(function, *args):
    graph = make_fx(function, decomposition_table=compiler.make_table())(*args)
    shapes = [
        tuple(tuple(a.meta["val"].shape) for a in node.args)
        for node in graph.graph.nodes
        if node.target is torch.ops.aten.bmm.default
    ]
    return graph(*args), shapes


@pytest.mark.parametrize(
    ("p", "k", "q", "turned"),
    [(32, 784, 10, True), (32, 5, 1, True), (10, 784, 10, False), (32, 784, 16, False)],
)
def test_on_a_cpu_narrow_products_are_transposed(p, k, q, turned):
    x, w = rows(3, p, k, q)
    out, shapes = traced(lambda x, w: torch.bmm(x, w.mT), x, w)
    assert shapes == [((3, q, k), (3, k, p)) if turned else ((3, p, k), (3, k, q))]
    torch.testing.assert_close(out, torch.einsum("mpk,mqk->mpq", x, w))


def test_operands_in_another_memory_order_are_left_alone():
    x, w = rows(3, 32, 20, 10)
    _, shapes = traced(torch.bmm, x, w.mT.contiguous())
    assert shapes == [((3, 32, 20), (3, 20, 10))]


class Gpu(matmul.BatchedMatmul):
    """The GPU's products, on any device."""

    def __call__(self, a, b):
        return self._gpu(a, b)


def step(x, w, g):
    return torch.bmm(x, w.mT), torch.bmm(g.mT, x)  # the values, and the gradient of w


@pytest.mark.parametrize("q", [3, 8, 10, 63])
def test_on_a_gpu_long_sums_are_split(q):
    x, w = rows(4, 6, 2048, q)
    g = torch.randn(4, 6, q, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table = {torch.ops.aten.bmm.default: Gpu()}
    graph = make_fx(step, decomposition_table=table)(x, w, g)
    x, w, g = (t.flip(1) for t in (x, w, g))  # the graph is of the operations, not of the numbers
    for out, exact in zip(graph(x, w, g), step(x, w, g), strict=True):
        torch.testing.assert_close(out, exact)
    found = [n for n in graph.graph.nodes if n.target is torch.ops.aten.bmm.default]
    even = -(-q // matmul.GPU_ALIGNMENT) * matmul.GPU_ALIGNMENT
    assert [tuple(n.meta["val"].shape) for n in found] == [(16, 6, even), (16, even, 512)]
    assert found[0].args[0] is found[1].args[1], "x is laid out once for both"


@pytest.mark.parametrize(
    ("m", "k", "q"), [(4, 2000, 10), (4, 512, 10), (4, 2048, 64), (64, 2048, 10)]
)
def test_on_a_gpu_other_products_are_left_alone(m, k, q):
    x, w = rows(m, 6, k, q)
    assert Gpu()(x, w.mT) is NotImplemented


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_with_such_products(method, monkeypatch):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: graph)
    p, k, q = LINEAR
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, k, generator=draw), torch.randint(q, (200,), generator=draw)
    fed = tf.Federation(x, y, torch.arange(200) % 5, classes=q)
    words = {"rounds": 2, "steps": 3, "batch": p, "dtype": torch.float64, "device": "cpu"}
    made = tf.methods.get(method, lr=0.1)
    flat = torch.nn.Linear(k, q)
    one, two = (tf.fit(flat, fed, made, compile=c, **words) for c in (True, False))
    assert one.settings["engine"] == "vmap, compiled"
    torch.testing.assert_close(one.x, two.x, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("padding", "scale"), [(-1, False), (2, False), (-1, True), (0, True)])
def test_gradients_of_embeddings_stay_one_operation(padding, scale):
    draw = torch.Generator().manual_seed(0)
    ids, g = torch.randint(7, (4, 5), generator=draw), torch.randn(4, 5, 3, generator=draw)

    def gradient(g, ids):
        return torch.ops.aten.embedding_dense_backward(g, ids, 7, padding, scale)

    graph = make_fx(gradient, decomposition_table=compiler.make_table())(g, ids)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert "tunefree.embedding_gradient.default" in targets
    wanted = gradient(g, ids)
    torch.testing.assert_close(graph(g, ids), wanted)


def words_federation():
    draw = torch.Generator().manual_seed(0)
    ids, y = torch.randint(30, (60, 5), generator=draw), torch.randint(3, (60,), generator=draw)
    return tf.Federation(ids, y, torch.arange(60) % 4, classes=3)


class Words(torch.nn.Module):
    """A mean of embeddings; `twice` also reads the embedding's weights as a matrix."""

    def __init__(self, padding=None, scale=False, twice=False):
        super().__init__()
        self.embed = torch.nn.Embedding(30, 4, padding_idx=padding, scale_grad_by_freq=scale)
        self.head, self.twice = torch.nn.Linear(4, 3), twice

    def forward(self, ids):
        mean = self.embed(ids).mean(1)
        return self.head(mean @ self.embed.weight.T @ self.embed.weight if self.twice else mean)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize(
    ("method", "settings", "rows_only", "is_compiled"),
    [
        pytest.param("fedavg", {}, True, True, marks=pytest.mark.slow),
        ("fedavg", {}, True, False),
        ("fedavg", {"padding": 3}, False, False),
        ("fedavg", {"twice": True}, False, False),
        ("scaffold", {}, False, False),
    ],
)
def test_a_run_with_embeddings(method, settings, rows_only, is_compiled, monkeypatch):
    """Only rows of tokens in the batch move, unless more than the lookup has a gradient."""
    if not is_compiled:
        monkeypatch.setattr(engine, "is_in_place_safe", lambda device: True)
        monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: graph)
    changed, descend = [], embedding.descend
    monkeypatch.setattr(embedding, "descend", lambda *a: changed.append(a) or descend(*a))
    words = {"rounds": 2, "steps": 3, "batch": 4, "dtype": torch.float64, "device": "cpu"}
    method, data = tf.methods.get(method, lr=0.3), words_federation()
    torch.manual_seed(0)
    net = Words(**settings)
    one, two = (tf.fit(net, data, method, compile=c, **words) for c in (True, False))
    assert one.settings["engine"] == "vmap, compiled"
    assert bool(changed) == rows_only
    torch.testing.assert_close(one.x, two.x, rtol=1e-9, atol=1e-11)


def test_clients_of_different_sizes_have_one_compiled_step(monkeypatch):
    """Batches of rounds with other numbers of steps have the same strides."""
    compiled = []
    monkeypatch.setattr(
        torch._inductor, "compile", lambda graph, args: compiled.append(graph) or graph
    )
    owner = torch.repeat_interleave(torch.arange(6), torch.tensor([4, 9, 12, 20, 25, 30]))
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 7, generator=draw), torch.randint(3, (100,), generator=draw)
    data, net = tf.Federation(x, y, owner, classes=3), torch.nn.Linear(7, 3)
    words = {"rounds": 6, "cohort": 2, "epochs": 1, "batch": 4, "device": "cpu"}
    tf.fit(net, data, tf.methods.get("fedavg", lr=0.1), compile=True, **words)
    assert len(compiled) == 2  # the step, and the losses
