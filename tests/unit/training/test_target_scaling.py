"""Regression on tables: targets are standardised with the columns, and models return raw ones."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tunefree as tf
from helpers import CrashError, drop_seconds
from tunefree.models.scaling import fold_targets, restore_targets
from tunefree.training.bind import bind, estimate_cost
from tunefree.training.client_data import SimulatedClients
from tunefree.training.config import RunConfig

STANDARD = tf.Preprocess(scale="standard")
RAW = tf.Preprocess(scale=None)
OPTIONS = {"rounds": 4, "steps": 3, "batch": 8, "device": "cpu", "dtype": torch.float64}
UNITS, MIDDLE = torch.tensor([1.0, 1000.0, 0.01]), torch.tensor([0.0, 5000.0, 3.0])


def table(targets=(), rows=120, unit=80.0, middle=150.0):
    """A regression in units of its own, with clients that differ."""
    draw = torch.Generator().manual_seed(0)
    owner = torch.arange(rows) % 6
    z = torch.randn(rows, 3, generator=draw, dtype=torch.float64) + 0.3 * owner[:, None]
    slope = torch.randn(3, *targets, generator=draw, dtype=torch.float64)
    y = middle + unit * (z @ slope + 0.1 * torch.randn(rows, *targets, generator=draw))
    x, train = z * UNITS + MIDDLE, slice(0, rows - 24)
    return tf.Federation(x[train], y[train], owner[train], test=(x[-24:], y[-24:]))


def net(outputs=1, *last):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs), *last)


def by_hand(fed):
    """The federation with standardised columns and targets, and the targets' scales."""
    scales = []

    def standard(v, like):
        mean, deviation = like.mean(0), like.std(0, correction=0)
        if like is fed.y:
            deviation = deviation.square().mean().sqrt()
            scales.append((mean, deviation))
        return (v - mean) / deviation

    x, y = standard(fed.x, fed.x), standard(fed.y, fed.y)
    test = standard(fed.test[0], fed.x), standard(fed.test[1], fed.y)
    return tf.Federation(x, y, fed.owners(), test=test), *scales[0]


@pytest.mark.compiled_engines
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize(
    "engine", ["vmap", "loop", "traced", pytest.param("compiled", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("targets", [(), (1,), (2,)])
def test_trains_on_standardised_targets(engine, targets, monkeypatch):
    """Traced: the steps that are compiled, without the compiler, which takes its time."""
    if engine == "traced":
        monkeypatch.setattr(torch, "compile", lambda graph, **options: graph)
    compiled = engine in ("traced", "compiled")
    options = OPTIONS | ({"compile": True} if compiled else {"engine": engine})
    fed = table(targets)
    scaled, mean, deviation = by_hand(fed)
    model = net(fed.y[:1].numel())
    run = tf.fit(model, fed, "feddog", preprocess=STANDARD, **options)
    wanted = tf.fit(model, scaled, "feddog", preprocess=RAW, **options)
    assert ("compiled" in run.settings["engine"]) == compiled
    torch.testing.assert_close(run.target_scaling[0], mean.reshape(-1))
    torch.testing.assert_close(run.target_scaling[1], deviation.expand(fed.y[:1].numel()))
    torch.testing.assert_close(run.x, wanted.x, rtol=1e-9, atol=1e-9)
    unit = float(deviation) ** 2
    for a, b in zip(run.history, wanted.history, strict=True):
        assert a["train_loss"] == pytest.approx(unit * b["train_loss"], rel=1e-8)
        assert a["test_loss"] == pytest.approx(unit * b["test_loss"], rel=1e-8)
    raw = wanted.predict(scaled.test[0]) * deviation.numpy() + mean.numpy()
    torch.testing.assert_close(torch.tensor(run.predict(fed.test[0])), torch.tensor(raw))


class Flat(nn.Module):
    """A network that returns one number per row, without an axis."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x).squeeze(1)


@pytest.mark.parametrize("make", [net, Flat, lambda: nn.Linear(3, 1)])
def test_the_exported_model_is_of_the_same_form_and_in_raw_units(make, tmp_path):
    fed = table()
    run = tf.fit(make(), fed, **OPTIONS)
    assert run.target_scaling is not None
    run.export(tmp_path / "model.safetensors")
    plain = make().double()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    found = plain(fed.test[0]).detach().reshape(-1)
    torch.testing.assert_close(found, torch.tensor(run.predict(fed.test[0])), rtol=1e-6, atol=1e-5)
    loss = float((found - fed.test[1]).square().mean())
    assert run.history[-1]["test_loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (net(1, nn.Softplus()), {}),  # what it returns is not a linear layer's
        (nn.Linear(3, 1, bias=False), {}),
        (net(), {"preprocess": RAW}),
        (net(), {"method": "fedavg"}),
        (net(), {"loss": lambda output, target: (output[:, 0] - target).abs()}),
    ],
    ids=["ends otherwise", "no bias", "scale=None", "named", "own loss"],
)
def test_targets_are_left_alone(model, given):
    run = tf.fit(model, table(unit=1.0, middle=2.0), **OPTIONS | given)
    assert run.target_scaling is None


def test_classes_are_left_alone():
    fed = table()
    labels = (fed.y > fed.y.mean()).long()
    run = tf.fit(net(2), tf.Federation(fed.x, labels, fed.owners()), **OPTIONS)
    assert run.scaling is not None
    assert run.target_scaling is None


def test_layers_that_cannot_absorb_a_scale():
    scaling = torch.tensor([[1.0], [2.0]])
    twice = nn.Linear(3, 3)
    for module in (nn.Sequential(twice, twice), net(2), net(1, nn.ReLU())):
        assert fold_targets(module, scaling, 3) is None
    square = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    assert fold_targets(nn.Sequential(twice, twice), square, 3) is None
    x, model = torch.randn(5, 3), net()
    wanted = restore_targets(model(x), scaling)
    torch.testing.assert_close(fold_targets(model, scaling, 3)(x), wanted)


def test_the_exchange_is_counted():
    run = tf.fit(net(), table(), **OPTIONS)
    assert run.history[0]["bytes_up.moments"] == 6 * (1 + 2 * 4) * 8
    costs = estimate_cost(bind(RunConfig(**OPTIONS), net(), SimulatedClients(table())))
    assert costs["total_bytes_up"] == run.summary["bytes_up"]


@pytest.mark.parametrize("aggregate", [tf.privacy.Secure(), "median"], ids=["masks", "robust"])
def test_under_other_means(aggregate):
    if aggregate != "median":
        pytest.importorskip("cryptography")
    run = tf.fit(net(), table(), aggregate=aggregate, **OPTIONS)
    plain = tf.fit(net(), table(), **OPTIONS)
    tolerance = 1e-9 if aggregate != "median" else 0.5
    torch.testing.assert_close(run.target_scaling, plain.target_scaling, rtol=tolerance, atol=1e-9)


def test_resume_load_and_start(tmp_path):
    def crash(event):
        if event.round == 2:
            raise CrashError

    given = OPTIONS | {"out": tmp_path}
    with pytest.raises(CrashError):
        tf.fit(net(), table(), callbacks=[crash], checkpoint_every=1, **given)
    run, whole = tf.fit(net(), table(), **given), tf.fit(net(), table(), **OPTIONS)
    assert torch.equal(run.output, whole.output)
    assert drop_seconds(run.history) == drop_seconds(whole.history)
    x = table().test[0]
    loaded = tf.Run.load(tmp_path, net())
    assert torch.equal(loaded.target_scaling, run.target_scaling)
    assert (loaded.predict(x) == run.predict(x)).all()
    more = tf.fit(loaded, table(unit=40.0), **OPTIONS)
    assert torch.equal(more.target_scaling, run.target_scaling)
    assert "bytes_up.moments" not in more.history[0]
    with pytest.raises(tf.TunefreeError, match="must end in a linear layer with a bias"):
        _ = tf.Run.load(tmp_path, net(1, nn.Tanh())).model


def test_diabetes_is_learned():
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_diabetes(return_X_y=True)
    fed = tf.Federation(x[:330], y[:330], torch.arange(330) % 5, test=(x[330:], y[330:]))
    run = tf.fit(nn.Linear(10, 1), fed, rounds=30, device="cpu")
    assert 1 - run.summary["test_loss"] / y[330:].var() > 0.4
