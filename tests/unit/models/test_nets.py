"""Reference networks: exact sizes, shapes, and batched gradients equal to a loop over clients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from tunefree.core.errors import ArgumentError
from tunefree.core.types import map_inputs
from tunefree.models import nets
from tunefree.models.dropout import with_counter_dropout

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
VIT_CIFAR = {"width": 384, "layers": 7, "heads": 12, "hidden": 384, "variant": "vit-cifar"}


def count(module, trainable=False):
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "args", "expected"),
    [
        ("linear", GREY, 10, {}, 7_850),  # P4
        ("linear", (123,), 2, {}, 248),  # P4, A9A
        ("linear", GREY, 62, {}, 48_670),  # P3, FEMNIST
        ("regression", (1000,), 1, {}, 1_000),  # P1
        ("regression", (1000,), 1, {"bias": True}, 1_001),
        ("mlp", GREY, 10, {}, 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),  # P4
        ("mlp", (64,), 10, {"hidden": (32,)}, 64 * 32 + 32 + 32 * 10 + 10),
        ("cnn-p1", GREY, 62, {}, 320 + 18_496 + 1_179_776 + 7_998),
        ("cnn-p2", GREY, 10, {}, 21_840),
        ("cnn-p2", (28, 28), 10, {}, 21_840),
        ("cnn-p4", GREY, 10, {}, 268_362),
        ("cnn-p4", COLOUR, 10, {}, 268_650),
        ("cnn-pfl", COLOUR, 10, {}, 1_626_442),
        ("lstm", (80,), 80, {}, 80 * 256 + 1_052_672 + 256 * 80 + 80),
        ("lstm", (80,), 80, {"embedding": 8}, 819_920),
        ("gru", (80,), 80, {}, 80 * 256 + 2 * 3 * 256 * (512 + 2) + 256 * 80 + 80),
        ("resnet18", GREY, 10, {"stem": "imagenet"}, 11_175_370),  # P4
        ("resnet18", COLOUR, 10, {"stem": "imagenet"}, 11_181_642),  # P4
        ("resnet18", COLOUR, 10, {}, 11_173_962),
        ("vit", COLOUR, 10, {}, 810_890),
        ("vit", COLOUR, 10, VIT_CIFAR, 6_268_810),  # P1, printed as 6.3M by its repository
        ("vit", COLOUR, 100, VIT_CIFAR, 6_268_810 + 90 * 385),
        ("text", (50,), 2, {}, 10_000 * 64 + 64 * 2 + 2),
        (
            "bert",
            (50,),
            2,
            {"vocab": 1_000, "width": 128, "layers": 2, "heads": 2, "hidden": 512},
            (1_000 + 512 + 2 + 2) * 128 + 2 * 198_272 + 129 * 128 + 129 * 2,
        ),
        (
            "gpt",
            (50,),
            1_000,
            {"width": 128, "layers": 2, "heads": 2, "positions": 64},
            (1_000 + 64 + 2) * 128 + 2 * 198_272,
        ),
    ],
)
def test_parameter_count_and_output_shape(name, shape, classes, args, expected):
    net = nets.build(name, shape=shape, classes=classes, **args).eval()
    assert count(net) == expected
    is_text = name in ("lstm", "gru", "text", "bert", "gpt")
    x = torch.zeros(2, *shape, dtype=torch.int64 if is_text else torch.float32)
    with torch.no_grad():
        out = net(x, torch.ones_like(x)) if name in ("text", "bert") else net(x)
    assert out.shape == {"regression": (2,), "gpt": (2, *shape, classes)}.get(name, (2, classes))


def test_layers_that_the_papers_count():
    cnn = nets.build("cnn-p1", shape=GREY, classes=62)
    assert cnn.fc1.in_features == 9_216
    assert count(cnn.fc1) == 1_179_776
    assert count(nets.build("lstm", shape=(80,), classes=80).lstm) == 1_052_672


def test_initialisation_of_resnet():
    """A 3x3 convolution of 512 channels: |w|^2 is 2 x 512 by fan-out, 512 / 3 as in PyTorch."""
    squares = {}
    for init in ("kaiming", "torch"):
        net = nets.build("resnet18", shape=COLOUR, classes=10, init=init)
        squares[init] = float(net.blocks[-1].conv2.weight.detach().square().sum())
    assert squares["kaiming"] == pytest.approx(1024, rel=0.01)
    assert squares["torch"] == pytest.approx(512 / 3, rel=0.01)


def test_vit_of_p1_as_written_down():
    """One layer of the cited network, written out for one image and one head at a time."""
    net = nets.build("vit", shape=(3, 8, 8), classes=3, width=8, layers=1, heads=2, hidden=12,
                     variant="vit-cifar").double()  # fmt: skip
    wide = nets.build("vit", shape=COLOUR, classes=2, **VIT_CIFAR)
    assert float(wide.position.detach().std()) == pytest.approx(1, abs=0.05)
    x = torch.randn(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (layer,) = net.layers
    patches = [x[:, i : i + 4, j : j + 4].reshape(-1) for i in (0, 4) for j in (0, 4)]
    t = torch.stack([net.token[0], *(net.embed(p) for p in patches)]) + net.position
    q, k, v = layer.qkv(layer.norm1(t)).split(8, dim=1)
    heads = [
        (q[:, h] @ k[:, h].T / 8**0.5).softmax(dim=1) @ v[:, h] for h in (slice(0, 4), slice(4, 8))
    ]
    t = t + layer.out(torch.cat(heads, dim=1))
    first, _, second, _ = layer.mlp
    t = t + F.gelu(second(F.gelu(first(layer.norm2(t)))))
    torch.testing.assert_close(net(x[None])[0], net.head(net.norm(t)[0]))


def test_convex_trains_its_head_alone():
    net = nets.build("convex", shape=GREY, classes=10)
    assert count(net, trainable=True) == 81_930
    assert count(net) == 784 * 8192 + 8192 + 81_930
    assert [n for n, p in net.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


def test_convex_may_have_more_outputs_than_classes():
    net = nets.build("convex", shape=GREY, classes=10, outputs=100)
    assert count(net, trainable=True) == 8192 * 100 + 100
    assert net(torch.zeros(2, *GREY)).shape == (2, 100)
    with pytest.raises(ArgumentError, match=r"Convex\(outputs=...\) must be at least the 10 class"):
        nets.build("convex", shape=GREY, classes=10, outputs=9)


def test_bert_without_its_embeddings():
    args = {"vocab": 1_000, "width": 128, "layers": 2, "heads": 2, "hidden": 512}
    net = nets.build("bert", shape=(50,), classes=2, freeze_embeddings=True, **args)
    # The embeddings are words, positions, types, and a normalisation's weight and bias.
    assert count(net) - count(net, trainable=True) == (1_000 + 512 + 2 + 2) * 128


def test_cnn_p2_drops_channels_and_dense_units():
    args = {"shape": GREY, "classes": 10, "seed": 1}
    net, plain = nets.build("cnn-p2", dropout=0.5, **args), nets.build("cnn-p2", **args)
    x = torch.rand(4, *GREY, generator=torch.Generator().manual_seed(2))
    assert torch.equal(net.eval()(x), plain(x))
    seen = {}
    net.fc1.register_forward_pre_hook(lambda _, inputs: seen.update(fc1=inputs[0]))
    net.fc2.register_forward_pre_hook(lambda _, inputs: seen.update(fc2=inputs[0]))
    net(x)
    kept = seen["fc1"].view(4, 20, 16)
    torch.manual_seed(0)
    net.train()(x)
    found = seen["fc1"].view(4, 20, 16)
    dropped = (found == 0).all(2) & (kept != 0).any(2)
    assert torch.equal(found[~dropped], 2 * kept[~dropped])  # whole channels, the others doubled
    assert 20 < int(dropped.sum()) < 60  # of 80
    dense = torch.nn.functional.linear(seen["fc1"], net.fc1.weight, net.fc1.bias).relu()
    off = (seen["fc2"] == 0) & (dense > 0)
    assert torch.equal(seen["fc2"][~off], 2 * dense[~off])
    assert 0.3 < float(off.sum() / (dense > 0).sum()) < 0.7


# Every net once, small: shape, classes, arguments.
SMALL = {
    "linear": ((2, 3), 4, {}),
    "regression": ((6,), 1, {"bias": True}),
    "mlp": ((1, 4, 4), 3, {"hidden": (8, 5)}),
    "convex": ((6,), 3, {"hidden": 16}),
    "cnn-p1": ((1, 8, 8), 3, {}),
    "cnn-p2": ((1, 16, 16), 3, {}),
    "cnn-p4": ((2, 9, 7), 3, {}),
    "cnn-pfl": ((3, 8, 8), 3, {}),
    "lstm": ((5,), 7, {"embedding": 3, "hidden": 6}),
    "gru": ((5,), 7, {"embedding": 3, "hidden": 6}),
    "resnet18": ((1, 8, 8), 3, {"width": 4}),
    "vit": ((3, 8, 8), 3, {"width": 8, "layers": 2, "heads": 2, "hidden": 12}),
    "text": ((5,), 3, {"vocab": 11, "width": 4}),
    "bert": (
        (5,),
        3,
        {"vocab": 11, "width": 8, "layers": 2, "heads": 2, "hidden": 12, "positions": 6},
    ),
    "gpt": ((5,), 11, {"width": 8, "layers": 2, "heads": 2, "hidden": 12, "positions": 6}),
}


def small(name, **more):
    shape, classes, args = SMALL[name]
    return nets.build(name, shape=shape, classes=classes, **{**args, **more})


def batch(name, *lead):
    """Random inputs and targets with leading axes, e.g. (clients, samples)."""
    shape, classes, args = SMALL[name]
    g = torch.Generator().manual_seed(5)
    if name in ("lstm", "gru", "gpt"):
        x = torch.randint(classes, (*lead, *shape), generator=g)
    elif name in ("text", "bert"):
        ids = torch.randint(args["vocab"], (*lead, *shape), generator=g)
        x = {"ids": ids, "mask": (torch.rand(ids.shape, generator=g) < 0.7).double()}
    else:
        x = torch.randn(*lead, *shape, generator=g, dtype=torch.float64)
    if name == "regression":
        return x, torch.randn(*lead, generator=g, dtype=torch.float64)
    return x, torch.randint(classes, (*lead, *shape) if name == "gpt" else lead, generator=g)


def call(module, values, x):
    if isinstance(x, dict):
        return functional_call(module, values, (), x)
    return functional_call(module, values, (x,))


def test_every_net_is_listed_here():
    assert sorted(SMALL) == nets.names()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((n, {}) for n in SMALL),
        ("resnet18", {"stem": "imagenet"}),
        ("vit", {"variant": "vit-cifar"}),
    ],
)
def test_batched_gradients_equal_a_loop(name, more):
    clients, samples = 3, 2
    module, key_names = with_counter_dropout(small(name, **more).double().train())
    frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    g = torch.Generator().manual_seed(1)
    params = {
        n: p.detach() + 0.1 * torch.randn(clients, *p.shape, generator=g, dtype=torch.float64)
        for n, p in module.named_parameters()
        if p.requires_grad
    }
    keys = {n: torch.tensor([11, 12, 13]) for n in key_names}
    x, y = batch(name, clients, samples)

    def loss(params, keys, x, y):
        out = call(module, {**params, **frozen, **keys}, x)
        assert out.shape == (y.shape if name == "regression" else (*y.shape, SMALL[name][1]))
        if name == "regression":
            return F.mse_loss(out, y)
        return F.cross_entropy(out.flatten(0, -2), y.flatten())

    grads, values = vmap(grad_and_value(loss))(params, keys, x, y)
    for i in range(clients):
        mine = {n: p[i].clone().requires_grad_() for n, p in params.items()}
        value = loss(
            mine, {n: k[i] for n, k in keys.items()}, map_inputs(lambda t, i=i: t[i], x), y[i]
        )
        loop = torch.autograd.grad(value, list(mine.values()))
        assert values[i] == pytest.approx(value.item(), abs=1e-10)
        for n, one in zip(mine, loop, strict=True):
            torch.testing.assert_close(grads[n][i], one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_build_is_deterministic_and_leaves_the_generator_alone(name):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = small(name, seed=7).state_dict()
    torch.rand(5)
    second, other = small(name, seed=7).state_dict(), small(name, seed=8).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    if name != "regression":  # starts at zero
        assert any(not torch.equal(first[k], other[k]) for k in first)
    torch.set_rng_state(before)
    small(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("embedding", [3, 6])
@pytest.mark.parametrize(("name", "layer"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_recurrent_net_equals_torch(name, layer, embedding):
    net = nets.build(name, shape=(9,), classes=7, embedding=embedding, hidden=6).double()
    reference = layer(embedding, 6, num_layers=2, batch_first=True).double()
    reference.load_state_dict(getattr(net, name).state_dict())
    ids = torch.randint(7, (4, 9), generator=torch.Generator().manual_seed(0))
    expected = net.head(reference(net.embed(ids))[0][:, -1])
    torch.testing.assert_close(net(ids), expected, rtol=1e-12, atol=1e-12)


def test_vit_attention_equals_torch():
    net = small("vit").double()
    layer = net.layers[0]
    reference = nn.MultiheadAttention(8, 2, batch_first=True).double()
    reference.in_proj_weight.data = layer.qkv.weight.data
    reference.in_proj_bias.data = layer.qkv.bias.data
    reference.out_proj.load_state_dict(layer.out.state_dict())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(layer._attend(x), reference(x, x, x)[0], rtol=1e-12, atol=1e-12)


def test_text_ignores_padding():
    net = small("text")
    ids = torch.tensor([[1, 2, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    torch.testing.assert_close(net(ids, mask), net(ids[:, :3], mask[:, :3]))
    assert net(ids, 0 * mask).isfinite().all()


def test_cnn_p4_pads_on_all_sides():
    net = nets.build("cnn-p4", shape=(28, 28), classes=10)
    x = torch.randn(2, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x), net(x.reshape(2, 1, 28, 28)))
    big = nets.build("cnn-p4", shape=(32, 32), classes=10)
    torch.testing.assert_close(net(x), big(F.pad(x, (2, 2, 2, 2))))


def test_pfl_weights_are_xavier():
    net = nets.build("cnn-pfl", shape=COLOUR, classes=10)
    bound = (6 / (32 * 9 + 64 * 9)) ** 0.5
    assert net.conv2.weight.detach().abs().max() == pytest.approx(bound, rel=1e-2)


@pytest.mark.parametrize(
    ("shape", "classes", "integer", "data", "expected"),
    [
        ((1, 8, 8), 10, False, "digits", "mlp"),
        ((64,), 10, False, "digits", "mlp"),
        (GREY, 10, False, "fashion-mnist", "mlp"),
        ((28, 28), 10, False, "mnist", "mlp"),
        (COLOUR, 10, False, "cifar10", "cnn-p4"),
        ((123,), 2, False, "a9a", "linear"),
        ((80,), 80, True, "shakespeare", "lstm"),
        ({"ids": (50,), "mask": (50,)}, 2, True, "sst2", "text"),
        ((1000,), 1, False, "synthetic", "regression"),
        ((2,), 0, False, "toy", "regression"),
    ],
)
def test_default_for(shape, classes, integer, data, expected):
    assert nets.default_for(shape, classes, integer, data) == expected


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("mpl", {}, "Unknown model 'mpl'. Did you mean 'mlp'?"),
        ("mlp", {"hiden": 3}, "Unknown argument of model 'mlp' 'hiden'. Did you mean 'hidden'?"),
        ("linear", {"bias": 3}, "Model 'linear' takes no arguments of its own, got 'bias'."),
        ("mlp", {"seed": -1}, "build(seed=...) must be an int >= 0, got -1."),
        ("mlp", {"hidden": ()}, "Mlp(hidden=...) must name at least one width, got ()"),
        ("mlp", {"hidden": (0,)}, "Mlp(hidden=...) must be an int >= 1, got 0."),
        ("mlp", {"classes": 0}, "build(classes=...) must be an int >= 1, got 0"),
        ("linear", {"classes": 1}, "Linear(classes=...) must be an int >= 2, got 1"),
        ("linear", {"shape": ()}, "Linear(shape=...) must hold sizes >= 1, got ()."),
        ("regression", {"classes": 3}, "Regression(classes=...) must be 1"),
        ("convex", {"hidden": 0}, "Convex(hidden=...) must be an int >= 1, got 0."),
        ("cnn-p2", {"dropout": 1}, "CnnP2(dropout=...) must be a number in [0, 1)"),
        ("cnn-p2", {"shape": (784,)}, "CnnP2(shape=...) must be (channels, height, width) or"),
        ("cnn-p2", {"shape": (1, 8, 8)}, "height and width >= 16, got (1, 8, 8)."),
        ("cnn-p1", {"init": "he"}, "CnnDropout(init=...) must be 'torch' or 'xavier', got 'he'."),
        ("lstm", {"shape": (8, 8)}, "Lstm(shape=...) must be (length,), got (8, 8)."),
        ("resnet18", {"stem": "x"}, "ResNet18(stem=...) must be 'cifar' or 'imagenet', got 'x'."),
        ("resnet18", {"init": "x"}, "ResNet18(init=...) must be 'kaiming' or 'torch', got 'x'."),
        ("resnet18", {"groups": 3}, "ResNet18(groups=...) must divide the width 64, got 3."),
        ("vit", {"variant": "x"}, "ViT(variant=...) must be 'plain' or 'vit-cifar', got 'x'."),
        ("vit", {"heads": 3}, "ViT(heads=...) must divide the width 128, got 3."),
        ("vit", {"patch": 5}, "ViT(patch=...) must divide the image's sides 28 and 28, got 5."),
        ("bert", {"shape": (5,), "heads": 7}, "Bert(heads=...) must divide the width 768, got 7."),
        ("bert", {"shape": (9,), "positions": 8}, "must be at least the samples' length 9, got 8."),
        ("bert", {"shape": (5,), "dropout": 1}, "Bert(dropout=...) must be a number in [0, 1)"),
        ("gpt", {"shape": (5,), "heads": 7}, "Gpt(heads=...) must divide the width 768, got 7."),
        ("gpt", {"shape": (9,), "positions": 8}, "must be at least the samples' length 9, got 8."),
        ("gpt", {"shape": (5,), "hidden": 0}, "Gpt(hidden=...) must be an int >= 1, got 0."),
        ("text", {"shape": (5,), "vocab": 0}, "Text(vocab=...) must be an int >= 1, got 0"),
    ],
)
def test_bad_arguments_get_a_sentence(name, args, sentence):
    with pytest.raises(ArgumentError) as error:
        nets.build(name, **{"shape": (1, 28, 28), "classes": 10, **args})
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("name", "inputs", "sentence"),
    [
        ("mlp", (torch.ones(2, 15),), "Mlp takes batches of shape (B, 16), got (2, 15)."),
        ("mlp", (torch.ones(2, 16).long(),), "Mlp takes floating-point inputs, got torch.int64."),
        (
            "cnn-pfl",
            (torch.ones(2, 8, 8, 3),),
            "CnnDropout takes batches of shape (B, 3, 8, 8), got (2, 8, 8, 3).",
        ),
        ("lstm", (torch.ones(2, 5),), "Lstm takes int64 tokens, got torch.float32"),
        ("gpt", (torch.ones(2, 5),), "Gpt takes int64 tokens, got torch.float32"),
        ("lstm", (torch.ones(5).long(),), "Lstm takes batches of shape (B, length), got (5,)."),
        (
            "text",
            (torch.ones(2, 5).long(), torch.ones(2, 4)),
            "Text takes a mask of the ids' shape (2, 5), got (2, 4).",
        ),
    ],
)
def test_bad_batches_get_a_sentence(name, inputs, sentence):
    with pytest.raises(ArgumentError) as error:
        small(name)(*inputs)
    assert sentence in str(error.value)
