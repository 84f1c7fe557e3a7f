"""PyTorch's own attention and recurrent layers, with dropout, in every engine, without warnings."""

import warnings
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import tunefree as tf
from tunefree.models.dropout import CounterDropoutMode
from tunefree.models.recurrent import CELLS, quiet_weights, run_layers

WORDS, LENGTH, WIDTH = 9, 5, 8


class Net(nn.Module):
    """An embedding, a layer under test, and a head on the mean over tokens."""

    def __init__(self, body, width=WIDTH):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(WORDS, WIDTH), body, nn.Linear(width, 3)

    def forward(self, ids):
        return self.head(self.read(self.embed(ids), ids).mean(1))

    def read(self, x, ids):
        return self.body(x)


class Padded(Net):
    def read(self, x, ids):
        return self.body(x, src_key_padding_mask=ids == 0)


class Attention(Net):
    def read(self, x, ids):
        return self.body(x, x, x)[0]


class Causal(Net):
    def read(self, x, ids):
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return self.body(x, x, x, attn_mask=mask, need_weights=False)[0]


class Product(Net):
    dropout = 0.2

    def read(self, x, ids):
        q, k, v = self.body(x).chunk(3, -1)
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)


class Recurrent(Net):
    def read(self, x, ids):
        return self.body(x)[0]


class Both(Net):
    def read(self, x, ids):
        return self.body(x, x)


def encoder(**more):
    return nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.2, batch_first=True, **more)


def heads(**more):
    return nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True, **more)


def layers(kind, **more):
    return kind(WIDTH, 6, batch_first=True, **more)


DEEP = {"num_layers": 2, "dropout": 0.2}
NETS = {
    "encoder-layer": lambda: Net(encoder()),
    "encoder-norm-first": lambda: Net(encoder(norm_first=True, activation="gelu")),
    "encoder": lambda: Padded(nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)),
    "transformer": lambda: Both(nn.Transformer(WIDTH, 2, 1, 1, 12, 0.2, batch_first=True)),
    "attention": lambda: Attention(heads()),
    "attention-bias": lambda: Attention(heads(add_bias_kv=True, add_zero_attn=True)),
    "causal": lambda: Causal(heads()),
    "product": lambda: Product(nn.Linear(WIDTH, 3 * WIDTH)),
    "lstm": lambda: Recurrent(layers(nn.LSTM), 6),
    "lstm-deep": lambda: Recurrent(layers(nn.LSTM, **DEEP, bidirectional=True), 12),
    "lstm-projected": lambda: Recurrent(layers(nn.LSTM, proj_size=4), 4),
    "gru": lambda: Recurrent(layers(nn.GRU, bias=False), 6),
    "gru-deep": lambda: Recurrent(layers(nn.GRU, **DEEP), 6),
    "rnn": lambda: Recurrent(layers(nn.RNN, nonlinearity="relu"), 6),
}
DROPS = [n for n in NETS if n not in ("lstm", "lstm-projected", "gru", "rnn")]


def fit(name, drop=True, **given):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(WORDS, (36, LENGTH), generator=draw)
    ids[:, 0] = 1  # no sample is all padding
    y = torch.randint(3, (36,), generator=draw)
    fed = tf.Federation(ids, y, torch.arange(36) % 4, test=(ids, y))
    torch.manual_seed(0)
    model = NETS[name]()
    for part in model.modules():
        if not drop and isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        if not drop and isinstance(part, nn.Dropout):
            part.p = 0.0
    options = {"rounds": 2, "steps": 2, "batch": 4, "device": "cpu", "dtype": torch.float64}
    return tf.fit(model, fed, "fedavg", **options | given)


@pytest.mark.parametrize("name", [n for n in NETS if n != "lstm-projected"])
def test_batched_and_in_turn_agree(name, caplog):
    batched, turns = fit(name, engine="vmap"), fit(name, engine="loop")
    assert batched.settings["engine"] == "vmap"
    torch.testing.assert_close(batched.x, turns.x, rtol=1e-9, atol=1e-11)
    assert batched.history[-1]["test_loss"] == pytest.approx(turns.history[-1]["test_loss"])
    assert not caplog.records


def test_a_layer_without_a_plain_form_trains_in_turn():
    assert fit("lstm-projected", engine="loop").status == "finished"


@pytest.mark.parametrize("name", DROPS)
def test_dropout_is_active_and_repeats(name):
    one, other = fit(name, engine="loop"), fit(name, engine="loop")
    assert torch.equal(one.x, other.x)
    assert not torch.equal(one.x, fit(name, engine="loop", seed=1).x)
    still = fit(name, drop=False, engine="loop")
    assert (one.x - still.x).abs().max() > 1e-6


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.compiled_engines
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize("name", ["encoder", "causal", "lstm-deep", "gru"])
def test_compiled(name):
    fast = fit(name, compile=True)
    assert fast.settings["engine"] == "vmap, compiled"
    torch.testing.assert_close(fast.x, fit(name, engine="vmap").x, rtol=1e-9, atol=1e-11)


def test_a_recurrent_layer_is_one_operation_for_the_compiler():
    """Each direction of a layer, however long sequences are: each step would take minutes."""
    layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    params = {n: p.detach() for n, p in layer.named_parameters()}

    def loss(params, x):
        with CounterDropoutMode(torch.zeros((), dtype=torch.int64)):
            return functional_call(layer, params, (x,))[0].square().sum()

    def count(length):
        graph = make_fx(vmap(grad(loss), in_dims=(None, 0)))(params, torch.randn(2, length, 5, 3))
        return Counter(str(node.target) for node in graph.graph.nodes)

    assert count(30) == count(7)
    assert count(7)["tunefree.recurrence.default"] == 4
    assert count(7)["tunefree.recurrence_backward.default"] == 4


def test_small_recurrent_networks_are_compiled_in_long_runs(monkeypatch):
    monkeypatch.setattr("tunefree.simulation.engine.COMPILE_STEPS", 1)
    seen = []
    monkeypatch.setattr(
        "tunefree.simulation.engine.select_engine", lambda *args: seen.append(args[3]) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        fit("gru")
    assert seen == [True]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_plain_operations_are_those_of_the_layer(kind, both, bias):
    torch.manual_seed(0)
    layer = kind(3, 4, num_layers=2, bidirectional=both, bias=bias).double()
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    function = {nn.LSTM: torch.lstm, nn.GRU: torch.gru, nn.RNN: torch.rnn_tanh}[kind]
    start = torch.randn(4 if both else 2, 2, 4, dtype=torch.float64)
    hidden = (start, start.flip(0)) if kind is nn.LSTM else start
    weights = [p for group in layer.all_weights for p in group]
    got = run_layers(CELLS[function], None, x, hidden, weights, bias, 2, 0.0, True, both, False)
    out, last = layer(x, hidden)
    torch.testing.assert_close(got, (out, *(last if kind is nn.LSTM else (last,))))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "batch_first": True},
        {"num_layers": 3, "batch_first": True},
    ],
    ids=["bidirectional", "no bias", "three layers"],
)
def test_batched_gradients_are_those_of_the_layer(kind, length, options):
    """Three clients, each with weights and first states of its own, by all results."""
    torch.manual_seed(0)
    layer = kind(3, 4, **options).double()
    params = {n: torch.randn(3, *p.shape).double() for n, p in layer.named_parameters()}
    batch, count = 2, options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shape = (batch, length) if "batch_first" in options else (length, batch)
    x, start = torch.randn(3, *shape, 3).double(), torch.randn(2, 3, count, batch, 4).double()

    def loss(params, x, h, c):
        state = (h, c) if kind is nn.LSTM else h
        out, last = functional_call(layer, params, (x, state))
        ends = last if kind is nn.LSTM else (last,)
        weigh = (torch.arange(t.numel()).reshape(t.shape).sin() for t in (out, *ends))
        return sum((a * b).sum() for a, b in zip(weigh, (out, *ends), strict=True))

    with CounterDropoutMode(torch.zeros((), dtype=torch.int64)):
        got, values = vmap(grad_and_value(loss, argnums=(0, 1, 2, 3)))(params, x, *start)
    for i in range(3):
        leaves = [p[i].clone().requires_grad_() for p in (*params.values(), x, *start)]
        own = dict(zip(params, leaves, strict=False))
        value = loss(own, *leaves[len(own) :])
        wanted = torch.autograd.grad(value, leaves, materialize_grads=True)
        torch.testing.assert_close(values[i], value.detach(), rtol=1e-12, atol=1e-12)
        for one, other in zip((*got[0].values(), *got[1:]), wanted, strict=True):
            torch.testing.assert_close(one[i], other, rtol=1e-10, atol=1e-11)


def test_packed_sequences_are_left_to_pytorch():
    layer = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), [5, 3])
    with CounterDropoutMode(torch.zeros((), dtype=torch.int64)) as mode:
        out, _ = layer(packed)
    torch.testing.assert_close(out.data, layer(packed)[0].data)
    assert not mode.used


def test_what_cudnn_says_of_weights_is_not_passed_on():
    said = "RNN module weights are not part of single contiguous chunk of memory. This means ..."
    with quiet_weights(torch.device("cuda")):
        warnings.warn(said, stacklevel=1)
    with pytest.warns(UserWarning, match="single"), quiet_weights(torch.device("cpu")):
        warnings.warn(said, stacklevel=1)
