"""Counter-based dropout: masks by key and position, the same batched and looped."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from tunefree.core.errors import ArgumentError
from tunefree.models.dropout import CounterDropout, draws_random_numbers, with_counter_dropout


def dropped(module, x, key):
    """The output of a module with one dropout key."""
    module, names = with_counter_dropout(module.train())
    return functional_call(module, dict.fromkeys(names, torch.tensor(key)), (x,))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_keep_rate_and_mean(p):
    out = dropped(nn.Dropout(p), torch.ones(200_000), 12345)
    kept = (out != 0).double().mean().item()
    sigma = (p * (1 - p) / 200_000) ** 0.5
    assert abs(kept - (1 - p)) < 4 * sigma
    assert out[out != 0].unique().item() == pytest.approx(1 / (1 - p))
    assert abs(out.double().mean().item() - 1) < 4 * sigma / (1 - p)


def test_mask_depends_on_key_and_position_only():
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    net = nn.Dropout(0.5)
    assert torch.equal(dropped(net, x, 1), dropped(net, x, 1))
    assert torch.equal(dropped(net, x, 1) != 0, dropped(net, x + 10, 1) != 0)
    assert torch.equal(dropped(net, x, 1)[:3], dropped(net, x[:3], 1))
    assert not torch.equal(dropped(net, x, 1), dropped(net, x, 2))


def test_masks_of_neighbouring_keys_and_layers_are_unrelated():
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = torch.ones(100_000)
    one, two = dropped(net[0], x, 1) != 0, dropped(net[0], x, 2) != 0
    assert abs((one & two).double().mean().item() - 0.25) < 0.01
    both = dropped(net, x, 1) != 0  # kept by both layers
    assert abs(both.double().mean().item() - 0.25) < 0.01


def test_a_layer_used_twice_draws_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x), self.drop(x)

    x = torch.ones(1000)
    first, second = dropped(Twice(), x, 4)
    assert not torch.equal(first, second)
    net, names = with_counter_dropout(Twice())
    assert names == ["drop.key"]
    again = [net(x) for _ in range(2)]  # every forward pass starts over
    assert torch.equal(again[0][1], again[1][1])


def test_vmap_equals_loop():
    net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.3), nn.Linear(6, 2), nn.Dropout(0.5))
    net, names = with_counter_dropout(net.double())
    g = torch.Generator().manual_seed(0)
    params = {
        n: torch.randn(3, *p.shape, generator=g, dtype=torch.float64)
        for n, p in net.named_parameters()
    }
    keys = {n: torch.tensor([5, -6, 2**62]) for n in names}
    x = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)

    def value(params, keys, x):
        return functional_call(net, {**params, **keys}, (x,)).square().sum()

    batched = vmap(grad(value))(params, keys, x)
    for i in range(3):
        one = grad(value)({n: p[i] for n, p in params.items()}, {n: keys[n][i] for n in keys}, x[i])
        for n in one:
            torch.testing.assert_close(batched[n][i], one[n], rtol=1e-12, atol=1e-12)


def test_evaluation_is_the_identity():
    x = torch.randn(4, 3)
    for layer in (nn.Dropout(0.9), nn.Dropout(1.0)):
        net, _ = with_counter_dropout(layer.eval())
        assert torch.equal(net(x), x)
        assert torch.equal(with_counter_dropout(layer.train())[0].eval()(x), x)


def test_ends_of_the_range():
    x = torch.ones(4, 3)
    assert torch.equal(dropped(nn.Dropout(1.0), x, 1), torch.zeros(4, 3))
    net, names = with_counter_dropout(nn.Dropout(0.0).train())
    assert names == []
    assert torch.equal(net(x), x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.5), (8, 20, 5)),
        (nn.Dropout2d(0.5), (8, 20, 3, 4)),
        (nn.Dropout3d(0.5), (8, 20, 2, 3, 2)),
    ],
)
def test_channels_fall_whole(layer, shape):
    kept = (dropped(layer, torch.ones(shape), 3) != 0).flatten(2)
    assert torch.equal(kept.all(-1), kept.any(-1))
    assert 0.3 < kept.double().mean() < 0.7


def test_copy_names_and_modes():
    net = nn.ModuleDict(
        {"fc": nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2)), "conv": nn.Dropout2d(0.1)}
    )
    net["fc"][1].eval()
    new, names = with_counter_dropout(net)
    assert names == ["fc.1.key", "conv.key"]
    assert isinstance(net["fc"][1], nn.Dropout)
    assert not new["fc"][1].training
    assert new["conv"].training
    assert [new["fc"][1].layer, new["conv"].layer] == [0, 1]
    assert list(new.state_dict()) == list(net.state_dict())  # keys are not saved
    assert set(names) <= dict(new.named_buffers()).keys()
    assert new.double()["conv"].key.dtype == torch.int64


def test_shared_layer_stays_shared():
    drop = nn.Dropout(0.5)
    new, names = with_counter_dropout(nn.Sequential(drop, nn.ReLU(), drop))
    assert names == ["0.key"]
    assert new[0] is new[2]


def test_dtype_is_kept():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert dropped(nn.Dropout(0.5), torch.ones(3, dtype=dtype), 1).dtype == dtype


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1)])
def test_alpha_dropout_is_refused(layer):
    with pytest.raises(ArgumentError) as error:
        with_counter_dropout(nn.Sequential(nn.ReLU(), layer))
    assert str(error.value) == (
        f"Cannot train this model: layer '1' is a {type(layer).__name__}, which has no "
        "counter-based form; use nn.Dropout."
    )


def test_bad_p_is_refused():
    with pytest.raises(ArgumentError, match=r"CounterDropout\(p=...\) must be between 0 and 1"):
        CounterDropout(1.5)


class Functional(nn.Module):
    def forward(self, x, mask=None):
        return F.dropout(x, 0.5, self.training)


def test_draws_random_numbers():
    x, linear, bare = torch.ones(2, 3), nn.Linear(3, 2), Functional().eval()
    before = torch.get_rng_state()
    assert draws_random_numbers(bare, x)
    assert draws_random_numbers(bare, (x, x))
    assert draws_random_numbers(bare, {"x": x})
    assert not bare.training
    assert not draws_random_numbers(linear, x)
    assert draws_random_numbers(nn.RReLU(), -x)
    assert not draws_random_numbers(with_counter_dropout(nn.Dropout(0.5))[0], x)
    assert torch.equal(torch.get_rng_state(), before)
