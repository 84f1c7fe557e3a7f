"""Tables with columns of unequal scale: standardised by one exchange of sums."""

import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tunefree as tf
from helpers import CrashError
from tunefree.core.errors import ArgumentError
from tunefree.data.moments import column_moments
from tunefree.models.scaling import fold_scaling, standardise
from tunefree.training.bind import bind, estimate_cost
from tunefree.training.client_data import SimulatedClients
from tunefree.training.command import CommandConfig, build_run
from tunefree.training.config import RunConfig
from tunefree.training.decide import _warn_of_spread

UNITS = torch.tensor([1.0, 1000.0, 1e-4, 20.0])
MIDDLE = torch.tensor([0.0, 5000.0, 3e-4, 2000.0])
STANDARD = tf.Preprocess(scale="standard")
RAW = tf.Preprocess(scale=None)
OPTIONS = {"rounds": 4, "steps": 3, "batch": 8, "device": "cpu", "eval_every": 2}


@pytest.fixture(autouse=True)
def _warn_again():
    _warn_of_spread.cache_clear()


def table(rows=120, clients=6, constant=True, dtype=torch.float32):
    """A classification with columns in units of their own, and clients that differ."""
    draw = torch.Generator().manual_seed(0)
    owner = torch.arange(rows) % clients
    z = torch.randn(rows, 4, generator=draw, dtype=dtype) + 0.5 * (owner % 6)[:, None]
    y = (z[:, :2].sum(1) > 1).long()
    x = z * UNITS.to(dtype) + MIDDLE.to(dtype)
    if constant:
        x = torch.cat([x, torch.full((rows, 1), 7.3, dtype=dtype)], 1)
    train, test = slice(0, rows - 24), slice(rows - 24, rows)
    return tf.Federation(x[train], y[train], owner[train], test=(x[test], y[test]))


def net(columns=5, dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(columns, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


class Skip(nn.Module):
    """A network whose inputs do not only go to a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(x + torch.tanh(self.inner(x)))


def by_hand(fed):
    """The federation with columns standardised as scikit-learn would, in float64."""
    x = fed.x.double()
    deviation = x.std(0, correction=0)
    deviation[deviation < 1e-6 * x.mean(0).abs()] = 1.0
    scaling = torch.stack([x.mean(0), deviation])
    inputs, test = (standardise(v.double(), scaling).to(fed.x.dtype) for v in (fed.x, fed.test[0]))
    scaled = tf.Federation(inputs, fed.y, fed.owners(), test=(test, fed.test[1]))
    return scaled, scaling


@pytest.mark.compiled_engines
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize(
    "engine", ["vmap", "loop", "traced", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_auto_trains_on_standardised_columns(engine, monkeypatch):
    """Traced: the steps that are compiled, without the compiler, which takes its time."""
    if engine == "traced":
        monkeypatch.setattr(torch, "compile", lambda graph, **options: graph)
    compiled = engine in ("traced", "compiled")
    options = OPTIONS | ({"compile": True} if compiled else {"engine": engine})
    fed = table()
    scaled, scaling = by_hand(fed)
    # As auto has for 96 rows of a table.
    method = tf.methods.get("auto", weights=None, weight_decay=1 / 96, schedule="linear:0")
    run, wanted = tf.fit(net(), fed, **options), tf.fit(net(), scaled, method, **options)
    torch.testing.assert_close(run.scaling.double(), scaling, rtol=1e-6, atol=1e-6)
    assert run.scaling[1, -1] == 1.0  # the constant column
    torch.testing.assert_close(run.x, wanted.x, rtol=1e-4, atol=1e-5)
    for a, b in zip(run.history, wanted.history, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        if "test_loss" in b:
            assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-4)
    assert run.settings["scale"] == "standard"
    assert ("compiled" in run.settings["engine"]) == compiled


def test_columns_far_from_zero_are_asked_for_twice():
    x = torch.arange(40.0, dtype=torch.float64).reshape(20, 2)
    x = torch.stack([1.7e9 + 1e-3 * x[:, 0], x[:, 1]], 1)
    fed = tf.Federation(x, torch.randn(20), [0, 1] * 10)
    options = OPTIONS | {"dtype": torch.float64, "rounds": 1}
    run = tf.fit(nn.Linear(2, 1), fed, **options)
    near = x - torch.tensor([1.7e9, 0.0])
    torch.testing.assert_close(run.scaling[1], near.std(0, correction=0), rtol=1e-9, atol=0)
    torch.testing.assert_close(run.scaling[0], x.mean(0), rtol=1e-14, atol=0)
    once = tf.fit(nn.Linear(2, 1), tf.Federation(x - x.mean(0), fed.y, [0, 1] * 10), **options)
    asked = [r.history[0]["bytes_up.moments"] for r in (run, once)]
    assert asked == [2 * 2 * 7 * 8, 2 * 7 * 8]  # two columns and the targets


def test_the_exchange_is_counted_once_and_in_a_dry_run():
    run = tf.fit(net(4), table(constant=False), cohort=2, **OPTIONS)
    first, later = run.history[:2]
    alone = tf.fit(net(4), table(constant=False), cohort=2, preprocess=RAW, **OPTIONS).history[0]
    assert first["bytes_up.moments"] == 6 * (1 + 2 * 4) * 8
    assert first["bytes_down.scale"] == 6 * 2 * 4 * 4
    assert "bytes_up.moments" not in later
    assert first["bytes_up"] - alone["bytes_up"] == first["bytes_up.moments"]
    bound = bind(RunConfig(cohort=2, **OPTIONS), net(4), SimulatedClients(table(constant=False)))
    costs = estimate_cost(bound)
    for way in ("bytes_up", "bytes_down"):
        assert costs[f"total_{way}"] == run.summary[way]


def outputs(run, x):
    return run.problem.outputs(run.output, x)


def test_the_exported_model_takes_raw_inputs(tmp_path):
    fed = table()
    run = tf.fit(net(), fed, out=tmp_path / "run", **OPTIONS)
    x = fed.test[0]
    plain = net()
    plain.load_state_dict(load_file(run.export(tmp_path / "model.safetensors")))
    with torch.no_grad():
        torch.testing.assert_close(plain(x), outputs(run, x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(run.model(x), outputs(run, x), rtol=1e-4, atol=1e-4)
        plain.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
        torch.testing.assert_close(plain(x), outputs(run, x), rtol=1e-4, atol=1e-4)
    again = tf.Run.load(tmp_path / "run", net())
    assert torch.equal(outputs(again, x), outputs(run, x))
    assert torch.equal(again.scaling, run.scaling)


def test_a_network_that_cannot_absorb_the_scales_gets_a_layer_in_front(tmp_path):
    fed = table()
    run = tf.fit(Skip(), fed, **OPTIONS)
    plain = nn.Sequential(nn.BatchNorm1d(5, eps=1e-30, affine=False), Skip()).eval()
    plain.load_state_dict(torch.load(run.export(tmp_path / "model.pt"), weights_only=True))
    with torch.no_grad():
        got = plain(fed.test[0])
    torch.testing.assert_close(got, outputs(run, fed.test[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2, bias=False),
        nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)),
    ],
)
def test_folding(module):
    scaling = torch.tensor([[5.0, -100.0, 0.0], [1.0, 50.0, 1e-3]])
    x = scaling[0] + scaling[1] * torch.randn(6, 3)
    with torch.no_grad():
        wanted = module.eval()(standardise(x, scaling))
        torch.testing.assert_close(fold_scaling(module, scaling)(x), wanted, rtol=1e-3, atol=1e-4)


def test_resume_keeps_the_scales(tmp_path):
    def crash(event):
        if event.round == 2:
            raise CrashError

    options = OPTIONS | {"out": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(CrashError):
        tf.fit(net(), table(), callbacks=[crash], **options)
    run, whole = tf.fit(net(), table(), **options), tf.fit(net(), table(), **OPTIONS)
    assert torch.equal(run.x, whole.x)
    assert torch.equal(run.scaling, whole.scaling)
    assert [r["bytes_up"] for r in run.history] == [r["bytes_up"] for r in whole.history]


def test_named_methods_are_left_alone_with_one_warning(caplog):
    run = tf.fit(net(), table(), "fedavg", **OPTIONS)
    assert run.scaling is None
    assert "bytes_up.moments" not in run.history[0]
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "fit(preprocess=tf.Preprocess(scale='standard')) standardises them" in said
    caplog.clear()
    assert tf.fit(net(), table(), "fedavg", preprocess=STANDARD, **OPTIONS).scaling is not None
    assert tf.fit(net(), table(), preprocess=RAW, **OPTIONS).scaling is None
    assert tf.fit(net(), table(), tf.methods.get("auto"), preprocess=RAW, **OPTIONS).scaling is None
    assert not caplog.records


def test_images_and_tokens_are_left_alone():
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(12, 1, 2, 2, generator=draw) * 1000
    tokens = torch.randint(9, (12, 5), generator=draw)
    text = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(10, 2))
    for x, model in ((images, nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), (tokens, text)):
        fed = tf.Federation(x, [0, 1] * 6, [0, 1] * 6)
        assert tf.fit(model, fed, **OPTIONS).scaling is None
        with pytest.raises(ArgumentError, match=r"scale=.standard.. needs a table"):
            tf.fit(model, fed, preprocess=STANDARD, **OPTIONS)


def test_unknown_scales_are_refused():
    with pytest.raises(
        ArgumentError, match=r"Preprocess\(scale=...\) must be 'auto', 'standard' or None"
    ):
        tf.fit(net(), table(), preprocess=tf.Preprocess(scale="minmax"), **OPTIONS)


def test_under_masks():
    pytest.importorskip("cryptography")
    secure = tf.privacy.Secure(bound=64.0)
    run, plain = (tf.fit(net(), table(), aggregate=a, **OPTIONS) for a in (secure, "mean"))
    torch.testing.assert_close(run.scaling, plain.scaling, rtol=1e-7, atol=0)
    torch.testing.assert_close(run.x, plain.x, rtol=1e-3, atol=1e-4)
    assert run.history[0]["bytes_up.moments"] == 6 * plain.history[0]["bytes_up.moments"]


def private(clients, noise, **more):
    scalars = {"loss": (0.0, 3.0), "lr": (0.0, 1.0), "delta_sq": (0.0, 1.0)}
    bounds = tf.privacy.Bounds(vectors={"delta": 0.5}, scalars=scalars)
    given = {"noise": noise, "clients": clients, "cohort": clients, "bounds": bounds, "seed": 1}
    return tf.privacy.Privacy(**given | more)


def test_under_a_privacy_budget_bounded_moments_are_released_once():
    fed, method = table(rows=1824, clients=600), tf.methods.get("fedavg", lr=0.1)
    options = OPTIONS | {"rounds": 1, "preprocess": STANDARD}
    plain = tf.fit(net(), fed, method, **options).scaling
    run = tf.fit(net(), fed, method, aggregate=private(600, 0.2), **options)
    ratio, year = (run.scaling[1] / plain[1])[:3], run.scaling[1, 3]
    assert ((ratio > 0.4) & (ratio < 2.5)).all()
    assert float(year) == pytest.approx(0.2 * 2000, rel=0.2)  # a fifth of the root mean square
    away = (run.scaling[0] - plain[0])[:3].abs() / plain[1, :3]
    assert (away < 0.6).all()
    assert not torch.equal(run.scaling, plain)
    other = tf.fit(net(), fed, method, aggregate=private(600, 0.2, seed=2), **options)
    assert not torch.equal(run.scaling, other.scaling)  # it is noise
    assert run.history[0]["bytes_up.moments"] == 600 * 2 * 5 * 8


def test_the_release_is_in_the_epsilon():
    pytest.importorskip("dp_accounting")
    method = tf.methods.get("fedavg", lr=0.1)
    budget = private(600, 0.2, delta=1e-5)
    fed, options = table(rows=1824, clients=600), OPTIONS | {"rounds": 2}
    runs = [
        tf.fit(
            net(),
            fed,
            method,
            aggregate=private(600, 0.2, delta=1e-5),
            preprocess=tf.Preprocess(scale=s),
            **options,
        )
        for s in ("standard", None)
    ]
    found = [run.history[-1]["epsilon"] for run in runs]
    assert found == [budget.cost(3)["epsilon"], budget.cost(2)["epsilon"]]


def test_noise_that_is_too_large_leaves_columns_as_they_are(caplog):
    method = tf.methods.get("fedavg", lr=0.1)
    assert tf.fit(net(), table(), method, aggregate=private(6, 0.1), **OPTIONS).scaling is None
    assert "the budget's noise is too large to learn them, so divide by public" in caplog.text
    with pytest.raises(ArgumentError, match=r"Cannot use .*scale='standard'.* with .*Privacy"):
        tf.fit(
            net(), table(), method, aggregate=private(6, 0.1), **OPTIONS | {"preprocess": STANDARD}
        )


def test_a_robust_rule_keeps_hostile_moments_out():
    honest = tf.fit(net(), table(), **OPTIONS).scaling
    scenario = tf.Scenario(attack="gaussian:0.2")
    options = OPTIONS | {"scenario": scenario, "rounds": 1}
    robust = tf.fit(net(), table(), aggregate="median", **options).scaling
    torch.testing.assert_close(robust[1, :4], honest[1, :4], rtol=0.6, atol=0)
    assert (tf.fit(net(), table(), **options).scaling[1, :4] > 3 * honest[1, :4]).any()


def test_clients_that_fail_send_their_moments_before_round_0():
    scenario = tf.Scenario(faults="before=0.5")
    run = tf.fit(net(), table(), scenario=scenario, **OPTIONS)
    assert torch.equal(run.scaling, tf.fit(net(), table(), **OPTIONS).scaling)


def test_a_run_that_starts_from_another_has_its_scales():
    fed, other = table(), table(rows=72)
    first = tf.fit(net(), fed, **OPTIONS)
    run = tf.fit(first, other, "fedavg", **OPTIONS)
    assert torch.equal(run.scaling, first.scaling)
    assert "bytes_up.moments" not in run.history[0]
    with pytest.raises(ArgumentError, match=r"inputs are standardised.*leave scale out"):
        tf.fit(first, other, preprocess=RAW, **OPTIONS)
    raw = tf.fit(net(), fed, preprocess=RAW, **OPTIONS)
    assert tf.fit(raw, other, **OPTIONS).scaling is None
    with pytest.raises(ArgumentError, match=r"not standardised.*Preprocess\(scale='standard'\)"):
        tf.fit(raw, other, preprocess=STANDARD, **OPTIONS)


def test_comparisons_give_every_method_the_same_inputs(tmp_path):
    study = tf.compare(net(), table(), ["auto", "fedavg:lr=0.1"], seeds=1, **OPTIONS)
    assert all(run.scaling is None for runs in study.runs.values() for run in runs)


@pytest.mark.parametrize(
    ("command", "scaled"),
    [
        ({}, True),
        ({"scale": "none"}, False),
        ({"method": "fedavg"}, False),
        ({"method": "fedavg", "scale": "standard"}, True),
    ],
)
def test_on_the_command_line(command, scaled):
    options = {"rounds": 1, "steps": 1, "cohort": 2, "device": "cpu"} | command
    config, model, fed = build_run(CommandConfig(data="synthetic", clients=4, options=options))
    assert bind(config, model, SimulatedClients(fed)).asks_moments == scaled


def test_rows_count_as_their_weights_say():
    x, ids = torch.tensor([[1.0], [2.0], [5.0], [9.0]]), torch.arange(2)
    owner, weight = [0, 0, 1, 1], torch.tensor([1.0, 3.0, 0.0, 2.0])
    fed = tf.Federation((x, weight), [0] * 4, owner)
    zero = torch.zeros(1, dtype=torch.float64)
    wanted = torch.tensor([[4.0, 7.0, 13.0], [2.0, 18.0, 162.0]], dtype=torch.float64)
    assert torch.equal(column_moments(fed, ids, zero), wanted)
