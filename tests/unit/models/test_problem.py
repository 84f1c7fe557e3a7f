import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tunefree as tf
from tunefree.core.errors import ArgumentError
from tunefree.core.layout import Layout
from tunefree.models import Problem

X = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
Y = torch.tensor([0, 1])
MASK, KEY = torch.tensor([True, True]), torch.tensor(5)


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def problem(module, loss="cross_entropy"):
    return Problem(module, loss, torch.float64)


def value(p, inputs, target, mask=MASK, x=None):
    return p.value(p.layout.split(p.start if x is None else x), inputs, target, mask, KEY)


def test_layout_by_hand():
    layout = Layout(("a", "b", "c"), ((2, 2), (), (3,)))
    assert (layout.sizes, layout.size) == ([4, 1, 3], 8)
    a, b, c = layout.split(torch.arange(8.0))
    assert a.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert (b.tolist(), c.tolist()) == (4.0, [5.0, 6.0, 7.0])
    assert torch.equal(layout.join([a, b, c]), torch.arange(8.0))
    rows = torch.arange(24.0).reshape(3, 8)
    assert layout.split(rows)[0].shape == (3, 2, 2)
    assert torch.equal(layout.join(layout.split(rows), lead=1), rows)


def test_the_vector_is_the_parameters_in_order():
    module = net()
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    p = problem(module)
    assert torch.equal(p.start, flat)
    assert p.layout.size == 3 * 4 + 4 + 4 * 2 + 2
    expected = F.cross_entropy(module(X), Y)
    torch.testing.assert_close(value(p, X, Y), expected.detach())


def test_masked_samples_do_not_count():
    p = problem(net())
    one = value(p, X, Y, torch.tensor([True, False]))
    torch.testing.assert_close(one, value(p, X[:1], Y[:1], torch.tensor([True])))


def test_frozen_parameters_are_constants():
    module = net()
    module[0].weight.requires_grad_(False)
    p = problem(module)
    assert p.layout.names == ("0.bias", "2.weight", "2.bias")
    back = p.module_at(torch.zeros(p.layout.size, dtype=torch.float64))
    assert torch.equal(back[0].weight, module[0].weight)
    assert not back[0].weight.requires_grad
    assert not back[2].weight.any()


def test_buffers_are_constants():
    module = net()
    module.register_buffer("scale", torch.tensor(3.0))
    assert problem(module).layout.size == 26


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2).double()

    def forward(self, left, right):
        return self.head(left) - self.head(right)


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_batches_of_several_tensors(form):
    module = Pair()
    inputs = (X, X + 1) if form == "tuple" else {"right": X + 1, "left": X}
    p = problem(module)
    p.check(inputs, Y, 1)
    expected = F.cross_entropy(module(X, X + 1), Y).detach()
    torch.testing.assert_close(value(p, inputs, Y), expected)
    torch.testing.assert_close(p.outputs(p.start, inputs), module(X, X + 1).detach())


@pytest.mark.parametrize("form", ["tuple", "dict"])
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_several_tensors_through_fit(form, engine):
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(12, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    inputs = (left, right) if form == "tuple" else {"left": left, "right": right}
    y = (left.sum(1) > right.sum(1)).long()
    owner = [0] * 3 + [1] * 4 + [2] * 5
    fed = tf.Federation(inputs, y, owner, test=(inputs, y))
    run = tf.fit(Pair(), fed, "fedavg", rounds=20, steps=3, batch=2, device="cpu", engine=engine)
    assert run.summary["test_accuracy"] > 0.8
    assert run.predict(inputs, raw=True).shape == (12, 2)


def test_module_at_and_back():
    p = problem(net())
    x = torch.randn(p.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    module = p.module_at(x)
    assert not module.training
    assert torch.equal(Problem(module, dtype=x.dtype).start, x)
    torch.testing.assert_close(module(X).detach(), p.outputs(x, X))
    assert [type(layer) for layer in module] == [nn.Linear, nn.Tanh, nn.Linear]


def test_module_at_keeps_the_users_dropout():
    p = problem(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)))
    assert isinstance(p.module_at(p.start)[1], nn.Dropout)


def test_the_module_is_unchanged():
    module = net().train()
    before = copy.deepcopy(module.state_dict())
    p = Problem(module, "cross_entropy", torch.float32)
    p.module_at(p.start + 1)
    p.outputs(p.start + 1, X.float())
    assert all(torch.equal(module.state_dict()[k], v) for k, v in before.items())
    assert module[0].weight.dtype == torch.float64
    assert module.training


def test_tied_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    p = problem(Tied())
    assert p.layout.size == 9 + 3 + 3
    back = p.module_at(p.start * 2)
    assert back.a.weight is back.b.weight
    torch.testing.assert_close(p.outputs(p.start * 2, X), back(X).detach())


def test_outputs_are_in_evaluation_mode():
    p = problem(nn.Sequential(nn.Linear(3, 2).double(), nn.Dropout(0.9)))
    assert torch.equal(p.outputs(p.start, X), p.outputs(p.start, X))
    assert bool(p.outputs(p.start, X).all())
    assert p.has_dropout
    assert not problem(net()).has_dropout


def refused(words, module, loss="cross_entropy", inputs=X, target=Y, highest=1):
    with pytest.raises(ArgumentError) as error:
        problem(module, loss).check(inputs, target, highest)
    text = str(error.value)
    for word in words:
        assert word in text
    assert "\n" not in text


def test_batchnorm_is_refused_with_the_converter():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    refused(["layer '1'", "BatchNorm1d", "tf.models.groupnorm(model)"], module)
    converted = tf.models.groupnorm(module).double()
    problem(converted).check(X, Y, 1)


def test_random_numbers_that_are_not_ours_are_refused():
    class Noise(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x) + torch.randn(2)

    refused(["Noise", "draws random numbers", "nn.Dropout"], Noise())


def test_a_loss_that_reduces_is_refused():
    refused(["fit(loss=...)", "one loss per sample", "reduction='none'"], net(), F.cross_entropy)
    refused(["one loss per sample", "float"], net(), lambda output, target: 0.5)


class Sums(nn.Module):
    """One number per sample, without an axis for classes."""

    def forward(self, x):
        return x.sum(1)


def test_shapes_and_labels():
    refused(["Sequential", "does not accept samples of shape (2,)"], net(), inputs=X[:, :2])
    refused(
        [
            "The model returns outputs of shape (2,) per sample, but labels go up to 7; "
            "give the last layer 8 outputs."
        ],
        net(),
        highest=7,
    )
    refused(["labels go up to 2; give the last layer 3 outputs."], net(), highest=2)
    refused(["labels go up to 0; give the last layer 1 outputs."], nn.Sequential(net(), Sums()),
            highest=0)  # fmt: skip
    refused(
        ["whole-number labels", "torch.float64", "loss='mse'"],
        net(),
        target=X[:, 0],
        highest=None,
    )
    refused(["one tensor with a row per sample"], nn.Sequential(net(), nn.Flatten(0)))


def test_targets_of_another_shape_than_the_outputs():
    """Two outputs, one target per sample: with two samples broadcasting would hide it."""
    targets = torch.tensor([1.0, 2.0], dtype=torch.float64)
    words = (
        "fit(loss='mse') compares numbers one by one, but the model returns (2,) per sample and "
        "the targets have (); give the last layer as many outputs as targets."
    )
    refused([words], net(), "mse", target=targets, highest=None)


def test_one_output_column_fits_a_target_without():
    p = problem(nn.Linear(3, 1).double(), "mse")
    target = torch.tensor([1.0, 2.0], dtype=torch.float64)
    p.check(X, target, None)
    expected = (p.outputs(p.start, X)[:, 0] - target).square().mean()
    torch.testing.assert_close(value(p, X, target), expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Problem("mlp"),
            "fit(model=...) must be a torch.nn.Module or a tf.Run, got 'mlp'.",
        ),
        (lambda: Problem(nn.Tanh()), "no parameter with requires_grad"),
        (lambda: Problem(net(), dtype=torch.float16), "torch.float32 or torch.float64"),
        (lambda: Problem(net(), "mes"), "Unknown loss 'mes'. Did you mean 'mse'?"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ArgumentError) as error:
        make()
    assert words in str(error.value)


def test_parameters_that_are_not_finite():
    module = net()
    with torch.no_grad():
        module[0].weight[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match="finite parameters"):
        problem(module)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_bf16_is_close_and_its_vectors_are_float32(engine):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 1, 8, 8, generator=draw), torch.randint(3, (24,), generator=draw)
    data = tf.Federation(x, y, torch.arange(24) // 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))
    settings = {"rounds": 3, "steps": 4, "batch": 4, "device": "cpu"}
    method = tf.methods.get("fedavg", lr=0.1)
    exact, low = (
        tf.fit(net, data, method, engine=e, compile=False, **settings)
        for e in (tf.Engine(backend=engine, precision=p) for p in ("fp32", "bf16"))
    )
    assert low.settings["precision"] == "bf16"
    assert low.x.dtype == torch.float32
    moved = (exact.x - exact.problem.start).norm()
    error = (low.x - exact.x).norm() / moved
    assert 1e-4 < error < 5e-2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": "bf15"}, r"Unknown precision 'bf15'\. Did you mean 'bf16'\?"),
        ({"precision": "bf16", "dtype": torch.float64}, r"lower precision goes with torch.float32"),
        ({"precision": "tf32"}, r"Engine\(precision='tf32'\) needs a GPU, got the device 'cpu'"),
    ],
)
def test_precisions_that_cannot_be(settings, said):
    with pytest.raises(ArgumentError, match=said):
        Problem(nn.Linear(2, 2), **settings)
