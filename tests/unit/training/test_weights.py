"""How clients count where it is not said: decided before round 0, and recorded."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import linear
from tunefree.core.errors import ArgumentError
from tunefree.training.config import RunConfig
from tunefree.training.decide import count_layers, decide_method

BY_SAMPLES = {"auto", "fedavg", "fedavgm", "fedprox", "fedadagrad", "fedadam", "fedyogi"}
NOISE = tf.privacy.Privacy(
    noise=0.1,
    clients=3,
    cohort=3,
    seed=1,
    bounds=tf.privacy.Bounds(
        vectors={"delta": 0.5},
        scalars={"loss": (0.0, 10.0), "lr": (0.0, 1.0)},
    ),
)
OTHERS = {"masks": tf.privacy.Secure(), "noise": NOISE, "robust": "median"}


def federation():
    draw = torch.Generator().manual_seed(0)
    sizes = (3, 5, 40)
    pairs = [(torch.randn(n, 3, generator=draw), torch.arange(n) % 2) for n in sizes]
    return tf.Federation(pairs)


def fit(method, **options):
    settings = {
        "rounds": 2,
        "steps": 2,
        "device": "cpu",
        "preprocess": tf.Preprocess(scale=None),
    } | options
    return tf.fit(linear(), federation(), method, **settings)


def weights(method, **options):
    return decide_method(RunConfig(method=method, **options)).weights


@pytest.mark.parametrize("name", tf.methods.names())
def test_every_method(name):
    assert weights(name) == ("samples" if name in BY_SAMPLES else "uniform")


@pytest.mark.parametrize("name", sorted(BY_SAMPLES - {"auto"}))
@pytest.mark.parametrize("how", OTHERS)
def test_clients_count_alike_where_samples_cannot_be_believed_or_shown(name, how):
    assert weights(name, aggregate=OTHERS[how]) == "uniform"


def test_what_is_given_holds():
    for given in ("uniform", "samples"):
        method = tf.methods.get("fedavg", weights=given)
        assert weights(method) == given
        assert weights(method, aggregate="median") == given
    assert weights(tf.Method()) == "uniform"
    assert weights(tf.Method(name="fedavg")) == "uniform"
    assert weights(tf.methods.get("scaffold", weights=None)) == "uniform"
    assert weights(tf.methods.get("fedavg", weights=None)) == "samples"


@pytest.mark.parametrize("name", ["auto", "fedavg"])
def test_it_is_recorded_and_decides_the_run(name, tmp_path):
    runs = {
        given: fit(tf.methods.get(name, weights=given), dtype=torch.float64)
        for given in ("uniform", "samples")
    }
    run = fit(name, dtype=torch.float64, out=tmp_path)
    assert run.settings["method"]["weights"] == "samples"
    assert torch.equal(run.x, runs["samples"].x)
    assert not torch.allclose(run.x, runs["uniform"].x)
    assert tf.Run.load(tmp_path).settings["method"]["weights"] == "samples"


@pytest.mark.parametrize("how", ["masks", "robust", "plain"])
def test_what_auto_is(how):
    """A race asks for losses, which sums do not show and robust rules do not believe."""
    given = {"aggregate": OTHERS[how]} if how in OTHERS else {}
    clipped, packed = (tf.methods.get("auto", **o) for o in ({"clip": 0.5}, {"wire": "qsgd:7"}))
    for one, layers in itertools.product((clipped, "auto", packed), (3, 4)):
        races = layers == 4 and one is not packed and not given
        expected = tf.methods.get("fedrace" if races else "feddowgdua")
        found = decide_method(RunConfig(method=one, **given), layers)
        assert (found.name, found.output) == ("auto", expected.output)
        assert (found.step, found.server) == (expected.step, expected.server)
        assert found.clip == (0.5 if one is clipped else None)
        assert (found.wire == packed.wire) == (one is packed)
    asked = decide_method(RunConfig(method="fedrace", **given), 4)
    assert asked == tf.methods.get("fedrace")  # and refused by name where it cannot be


@pytest.mark.parametrize(("hidden", "server"), [(2, "FedDuAdagrad"), (3, "Race")])
def test_what_auto_is_depends_on_the_depth_and_is_recorded(hidden, server, tmp_path):
    layers = [layer for _ in range(hidden) for layer in (nn.Linear(3, 3), nn.ReLU())]
    options = {"rounds": 2, "steps": 2, "device": "cpu", "out": tmp_path}
    run = tf.fit(nn.Sequential(*layers, nn.Linear(3, 2)), federation(), **options)
    assert run.settings["method"]["name"] == "auto"
    assert run.settings["method"]["server"]["part"] == server
    frozen = nn.Sequential(*layers, nn.Linear(3, 2))
    frozen[0].requires_grad_(False)
    options = {"rounds": 1, "steps": 2, "device": "cpu"}
    run = tf.fit(frozen, federation(), **options)
    assert run.settings["method"]["server"]["part"] == "FedDuAdagrad"


def test_networks_with_a_trained_embedding_race():
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    assert (count_layers(net), count_layers(net[2])) == (5, 1)
    net[0].requires_grad_(False)
    assert count_layers(net) == 1


def test_auto_under_a_robust_rule_is_recorded():
    run = fit("auto", aggregate="median")
    assert run.status == "finished"
    assert run.settings["method"]["weights"] == "uniform"


def test_auto_under_noise_is_refused_and_what_is_proposed_works():
    with pytest.raises(ArgumentError, match=r"auto asks clients more than once .*'deltasgd'"):
        fit("auto", aggregate=NOISE)
    assert fit("deltasgd", aggregate=replace(NOISE)).status == "finished"


def test_noise_needs_uniform_weights_before_round_0():
    with pytest.raises(ArgumentError, match="needs weights='uniform', got 'samples'"):
        decide_method(
            RunConfig(method=tf.methods.get("fedavg", weights="samples"), aggregate=NOISE)
        )


def test_noise_does_not_refuse_the_default():
    run = fit("fedavg", aggregate=NOISE)
    assert run.settings["method"]["weights"] == "uniform"
