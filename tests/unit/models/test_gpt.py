"""GPT-2 as a reference network, and clients that train adapters on one frozen base."""

import collections
import math
import os
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tunefree as tf
from tunefree.core.types import map_inputs
from tunefree.models import Problem
from tunefree.models.batched import VmapEngine
from tunefree.models.compiled import gradient
from tunefree.models.losses import Batch
from tunefree.models.nets import Gpt

TINY = {"width": 8, "layers": 2, "heads": 2, "hidden": 12, "positions": 10}
VOCAB, LENGTH = 23, 7
LR = tf.methods.get("fedavg", lr=0.3)


def tiny(**more):
    return tf.models.build("gpt", shape=(LENGTH,), classes=VOCAB, **{**TINY, **more})


def shaken(net):
    """Return the network with all parameters moved, so that none is zero or one."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return net


def tokens(*lead, seed=0):
    return torch.randint(VOCAB, (*lead, LENGTH), generator=torch.Generator().manual_seed(seed))


def numpy_gpt(w, ids, heads, layers):
    """GPT-2's logits for one sequence, token by token, from its published description."""
    w = {n.removeprefix("transformer."): v.numpy() for n, v in w.items()}

    def norm(x, name):
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    xs = [w["wte.weight"][i] + w["wpe.weight"][t] for t, i in enumerate(ids)]
    for n in range(layers):
        qkv = [np.split(dense(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3) for x in xs]
        size = len(xs[0]) // heads
        for t, x in enumerate(list(xs)):
            mixed = []
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = [qkv[t][0][part] @ qkv[s][1][part] / math.sqrt(size) for s in range(t + 1)]
                share = np.exp(np.array(scores) - max(scores))
                share /= share.sum()
                mixed.append(sum(share[s] * qkv[s][2][part] for s in range(t + 1)))
            xs[t] = x + dense(np.concatenate(mixed), f"h.{n}.attn.c_proj")
        for t, x in enumerate(list(xs)):
            inner = gelu(dense(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc"))
            xs[t] = x + dense(inner, f"h.{n}.mlp.c_proj")
    return np.stack([norm(x, "ln_f") @ w["wte.weight"].T for x in xs])


def test_gpt_equals_numpy():
    net, ids = shaken(tiny().double()).eval(), tokens(3)
    ours = net(ids).detach().numpy()
    for row, given in zip(ours, ids.tolist(), strict=True):
        expected = numpy_gpt(net.state_dict(), given, heads=2, layers=2)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-12)


def test_gpt_small_has_its_published_size_and_names():
    with torch.device("meta"):
        net = Gpt((256,), 50_257)
    assert sum(p.numel() for p in net.parameters()) == 124_439_808
    layer = {
        "ln_1.weight": (768,),
        "ln_1.bias": (768,),
        "attn.c_attn.weight": (768, 2304),
        "attn.c_attn.bias": (2304,),
        "attn.c_proj.weight": (768, 768),
        "attn.c_proj.bias": (768,),
        "ln_2.weight": (768,),
        "ln_2.bias": (768,),
        "mlp.c_fc.weight": (768, 3072),
        "mlp.c_fc.bias": (3072,),
        "mlp.c_proj.weight": (3072, 768),
        "mlp.c_proj.bias": (768,),
    }
    expected = {"wte.weight": (50_257, 768), "wpe.weight": (1024, 768)}
    expected |= {f"h.{n}.{name}": shape for n in range(12) for name, shape in layer.items()}
    expected |= {"ln_f.weight": (768,), "ln_f.bias": (768,)}
    expected = {f"transformer.{name}": shape for name, shape in expected.items()}
    expected["lm_head.weight"] = (50_257, 768)
    assert {n: tuple(v.shape) for n, v in net.state_dict().items()} == expected


@pytest.mark.parametrize("form", ["file", "model"])
def test_published_weights_load(form):
    """The published file has no prefix and no head, but causal masks."""
    source, net = shaken(tiny(seed=1)), tiny(seed=2)
    values = source.state_dict()
    if form == "file":
        del values["lm_head.weight"]
        values = {n.removeprefix("transformer."): v for n, v in values.items()}
        for n in range(2):
            values[f"h.{n}.attn.bias"] = torch.ones(1, 1, 10, 10).tril()
            values[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
    net.load_state_dict(values)
    assert net.lm_head.weight is net.transformer.wte.weight
    assert all(torch.equal(v, source.state_dict()[n]) for n, v in net.state_dict().items())
    del values["wpe.weight" if form == "file" else "transformer.wpe.weight"]
    with pytest.raises(RuntimeError, match=r"transformer.wpe.weight"):
        net.load_state_dict(values)


def test_tied_weights_are_trained_as_one():
    ids = tokens(12)
    fed = tf.Federation(ids[:, :-1], ids[:, 1:], torch.arange(12) % 3)
    given = {"rounds": 1, "steps": 2, "batch": 2, "dtype": torch.float64, "compile": False}
    net = tiny()
    loop, batched = (tf.fit(net, fed, LR, engine=e, **given) for e in ("loop", "vmap"))
    torch.testing.assert_close(batched.x, loop.x, rtol=1e-10, atol=1e-12)
    assert loop.x.numel() == sum(p.numel() for p in net.parameters())
    model = loop.model
    assert model.lm_head.weight is model.transformer.wte.weight
    assert Problem(tiny(seed=1)).frozen_digest() == Problem(tiny(seed=2)).frozen_digest()


def adapted(name, **more):
    if name == "gpt":
        return tf.models.lora(shaken(tiny(**more)), rank=2, targets=("c_attn",), head=())
    sizes = {"vocab": VOCAB, **TINY, **more}
    net = tf.models.build("bert", shape=(LENGTH,), classes=2, **sizes)
    return tf.models.lora(shaken(net), rank=2, targets=("query", "value"))


def samples(name, *lead):
    ids = tokens(*lead)
    if name == "gpt":
        return ids, tokens(*lead, seed=1)
    mask = torch.arange(LENGTH) < 3 + ids[..., :1] % 5
    return {"ids": ids, "mask": mask.long()}, ids[..., 0] % 2


def problem(model, x, y, **more):
    found = Problem(model, **more)
    found.check(map_inputs(lambda t: t[0], x), y[0], int(y.max()))
    return found


def batch(x, y):
    m, b = y.shape[:2]
    return Batch(x, y, torch.ones(m, b, dtype=torch.bool), torch.arange(m))


def spread(start, m):
    g = torch.Generator().manual_seed(7)
    return start + 0.1 * torch.randn(m, len(start), generator=g, dtype=start.dtype)


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_adapters_batched_equal_client_by_client(name):
    x, y = samples(name, 3, 2)
    found = problem(adapted(name), x, y, dtype=torch.float64)
    rows = spread(found.start, 3)
    losses, grads = VmapEngine(found).value_and_grad(rows, batch(x, y))
    for i in range(3):
        point = [p.clone().requires_grad_() for p in found.layout.split(rows[i])]
        loss = found.value(point, *batch(x, y).row(i))
        parts = torch.autograd.grad(loss, point)
        torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-12, atol=1e-12)
        one = torch.cat([g.flatten() for g in parts])
        assert one.abs().max() > 1e-4
        torch.testing.assert_close(grads[i], one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_only_adapters_are_trained_and_sent(name):
    x, y = samples(name, 24)
    model = adapted(name)
    fed = tf.Federation(x, y, torch.arange(24) % 4)
    run = tf.fit(model, fed, LR, rounds=2, cohort=3, steps=3, batch=2, engine="vmap", compile=False)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    sizes = {"gpt": 2 * 2 * (8 + 24), "bert": 2 * 2 * 2 * (8 + 8) + 8 * 2 + 2}
    assert run.x.numel() == sizes[name]
    assert run.history[-1]["bytes_up"] == 3 * 4 * sizes[name]
    after = run.model.state_dict()
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, after[n])}
    assert changed == trained


class PeakBytes(TorchDispatchMode):
    """Adds up the storages that operations make, and subtracts those that are freed."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.held = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, torch.Tensor):
                self.see(t, 0)  # was there before
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.see(t, t.untyped_storage().nbytes())
        return out

    def see(self, t, size):
        storage = t.untyped_storage()
        if storage._cdata not in self.held:
            self.held[storage._cdata] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, storage._cdata)

    def forget(self, key):
        self.now -= self.held.pop(key)


class Products(TorchDispatchMode):
    """Counts products by the shapes of their operands."""

    def __init__(self):
        super().__init__()
        self.found = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.found[str(func).split(".")[1], *shapes] += 1
        return func(*args, **(kwargs or {}))


def test_clients_share_the_products_of_the_base():
    m, b = 5, 3
    x, y = samples("gpt", m, b)
    found = problem(adapted("gpt"), x, y)
    with Products() as count:
        VmapEngine(found).value_and_grad(spread(found.start, m), batch(x, y))
    rows, products = m * b * LENGTH, collections.Counter()
    for (kind, left, right), times in count.found.items():
        if kind == "mm":
            assert left[0] == rows  # all clients in one product
            products[right] += times
        else:  # attention, or adapters: clients first
            assert left[0] in (m * b * 2, m)
            assert left[0] != m or 2 in left + right  # one side is the rank
    forward = {(8, 24): 2, (8, 8): 2, (8, 12): 2, (12, 8): 2, (8, VOCAB): 1}
    backward = {(24, 8): 1, (8, 8): 2, (12, 8): 2, (8, 12): 2, (VOCAB, 8): 1}  # first c_attn: none
    assert products == collections.Counter(forward) + collections.Counter(backward)


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_memory_is_that_of_the_clients_without_the_base(name):
    m, b = 6, 2
    x, y = samples(name, m, b)
    found = problem(adapted(name, width=32, hidden=64, dropout=0.0), x, y)
    rows, given = spread(found.start, m), batch(x, y)
    engine = VmapEngine(found)

    def one():
        point = [p.clone().requires_grad_() for p in found.layout.split(rows[0])]
        torch.autograd.grad(found.value(point, *given.row(0)), point)

    alone = peak_bytes(one)
    together = peak_bytes(lambda: engine.value_and_grad(rows, given))
    assert together < m * (alone + rows[0].nbytes)
    base = sum(p.nbytes for p in found._module.parameters() if not p.requires_grad)
    assert together - m * alone < base  # not even one copy


def peak_bytes(function):
    """Return the most bytes of tensors that a call makes and holds at one time."""
    with PeakBytes() as mode:
        function()
    return mode.peak


@pytest.mark.parametrize("name", ["gpt", "bert"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_for_a_gpu_read_the_base_itself(name, precision, monkeypatch):
    """The graph that is compiled for a GPU, run here: equal gradients, no copy of a weight."""
    x, y = samples(name, 3, 2)
    found = problem(adapted(name), x, y, precision=precision)
    monkeypatch.setattr(gradient, "is_on_gpu", lambda problem: True)
    graph = gradient.TensorGradient(found, VmapEngine(found)._both, batch(x, y), factors=True)
    rows = spread(found.start, 3)
    graph.load(graph.parts, rows)
    for low, part in zip(graph.low, graph.parts, strict=False):
        low.copy_(part)
    losses, *grads = graph.graph(*graph.parts, *graph.low, *tree_leaves(batch(x, y).parts))
    expected = VmapEngine(found).value_and_grad(rows, batch(x, y))
    torch.testing.assert_close((losses, graph.join(grads)), expected)
    held = {p.data_ptr() for p in found._module.parameters()}
    constants = [n.target for n in graph.graph.graph.nodes if n.op == "get_attr"]
    assert len(constants) > 20
    assert all(getattr(graph.graph, name).data_ptr() in held for name in constants)


def test_activations_do_not_count_the_base():
    x, y = samples("gpt", 1, 2)
    small, large = (problem(adapted("gpt", positions=n), x, y) for n in (10, 5000))
    sizes = [p.activation_bytes(*batch(x, y).row(0)) for p in (small, large)]
    assert sizes[0] == sizes[1] > 0
    head = VOCAB * 8 * 4
    assert sizes[0] < 2 * LENGTH * 4 * 2 * 40 * 8 + head


# Layer names.


def test_lora_takes_patterns():
    found = tf.models.lora(tiny(), rank=1, targets=("attn.c_proj", "h.1.mlp.*"), head=("ln_f",))
    names = {n.removeprefix("transformer.") for n, p in found.named_parameters() if p.requires_grad}
    layers = {n.rpartition(".")[0] for n in names}
    assert layers == {
        "h.0.attn.c_proj",
        "h.1.attn.c_proj",
        "h.1.mlp.c_fc",
        "h.1.mlp.c_proj",
        "ln_f",
    }


def test_lora_of_a_conv1d_by_hand():
    net = tf.models.lora(shaken(tiny()), rank=1, targets=("c_fc",), head=(), scale=3.0)
    layer = net.transformer.h[0].mlp.c_fc
    assert (tuple(layer.down.shape), tuple(layer.up.shape)) == ((1, 8), (12, 1))
    with torch.no_grad():
        layer.up.fill_(2.0)
    x = torch.arange(8.0)
    small = (layer.down.detach() @ x).item()
    expected = x @ layer.base.weight + layer.base.bias + 3 * 2 * small
    torch.testing.assert_close(layer(x[None])[0], expected)


# Beside transformers.


@pytest.fixture(scope="module")
def transformers():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def theirs(transformers, dropout=0.1, **more):
    sizes = {"vocab_size": VOCAB, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_inner": 12}
    sizes |= {"n_positions": 10, "bos_token_id": 1, "eos_token_id": 1}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.GPT2Config(**sizes, **drops, **more)
        return shaken(transformers.GPT2LMHeadModel(config))


def test_gpt_equals_transformers(transformers):
    their, ids = theirs(transformers).double().eval(), tokens(3)
    ours = tiny().double().eval()
    ours.load_state_dict(their.state_dict())
    torch.testing.assert_close(ours(ids), their(ids).logits, rtol=1e-10, atol=1e-12)


def test_their_adapters_equal_ours(transformers):
    """Adapters of either GPT-2, batched over clients, have the same gradients."""
    x, y = samples("gpt", 3, 2)
    their, ours = theirs(transformers, dropout=0.0), tiny(dropout=0.0)
    ours.load_state_dict(their.state_dict())
    given = {"rank": 2, "targets": ("c_attn",), "head": ()}
    own = problem(tf.models.lora(ours, **given), x, y, dtype=torch.float64)
    other = problem(tf.models.lora(their, **given), {"input_ids": x}, y, dtype=torch.float64)
    rows = spread(own.start, 3)
    a = VmapEngine(own).value_and_grad(rows, batch(x, y))
    with Products() as count:
        b = VmapEngine(other).value_and_grad(rows, batch({"input_ids": x}, y))
    torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12)
    assert all(left[0] == 3 * 2 * LENGTH for kind, left, _ in count.found if kind == "mm")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_their_gpt_with_a_mask_is_batched(transformers, attention, padded, caplog):
    ids = tokens(24)
    lengths = 3 + torch.arange(24) % 4 if padded else torch.full((24,), LENGTH)
    mask = torch.arange(LENGTH - 1) < lengths[:, None]
    x = {"input_ids": ids[:, :-1], "attention_mask": mask.long()}
    fed = tf.Federation(x, ids[:, 1:].where(mask, -100), torch.arange(24) % 4)
    model = tf.models.lora(
        theirs(transformers, attn_implementation=attention), rank=2, targets=("c_attn",), head=()
    )
    given = {"rounds": 2, "steps": 3, "batch": 2, "dtype": torch.float64, "compile": False}
    batched, turns = (tf.fit(model, fed, LR, engine=e, **given) for e in ("auto", "loop"))
    assert (batched.settings["engine"], turns.settings["engine"]) == ("vmap", "loop")
    assert not caplog.messages
    torch.testing.assert_close(batched.x, turns.x, rtol=1e-8, atol=1e-10)
    assert (batched.x - Problem(model, dtype=torch.float64).start).norm() > 1e-3
