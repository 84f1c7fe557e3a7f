"""A federation in one process has the model and history of the simulation, for every method."""

import copy

import pytest
import torch
from torch import nn

import tunefree as tf
from every.cases import METHODS, representatives, with_the_rest_slow
from flower.local import CLIENTS, LocalTransport, arguments, train
from tunefree.flower.serve import serve
from tunefree.flower.settings import Settings
from tunefree.testing._problem import make_federation, make_net
from tunefree.training.decide import decide_method

COMPOSED = (  # weights, schedules and every kind of wire
    "clip-decay-schedule",
    "fedduadam-prox-topk",
    "scaffold-randk-fedexp",
    "adam-over-sign",
    "fedcanon-qsgd-mcp",
    "feddr-l1-lowrank",
    "fedpd-skips",
    "lod-on-the-server",
    "comparfrefl-choose",
)


def simulated(method, **given):
    words = arguments(method, **given)
    copied = copy.deepcopy(method)
    return tf.fit(
        make_net(),
        make_federation(),
        copied,
        engine=tf.Engine(backend="loop", chunk=1),
        device="cpu",
        **words,
    )


@pytest.mark.parametrize("name", [*with_the_rest_slow(representatives()), *COMPOSED])
def test_every_method(name, tmp_path):
    method = METHODS[name]
    alone = simulated(method, rounds=2)
    spread = train(method, LocalTransport(tmp_path, method), rounds=2)
    assert torch.equal(alone.x, spread.x)
    assert torch.equal(alone.output, spread.output)
    for a, b in zip(alone.history, spread.history, strict=True):
        known = {k: v for k, v in b.items() if k in a and not k.startswith(("bytes_down", "sec"))}
        assert known == {k: a[k] for k in known}
        unmeasured = {"seconds", "stationarity", "bytes_down"}
        assert not {k for k in a.keys() - b.keys() if not k.startswith("bytes_down")} - unmeasured
        assert b["bytes_down"] >= a["bytes_down"]
        assert b["answered"] == (CLIENTS if method.full else 4)
        assert not {"absent", "behind", "refused", "lost", "renewed"} & b.keys()


@pytest.mark.parametrize("given", ["auto", "fedavg"])
def test_how_clients_count(given, tmp_path):
    """Nodes make the method by its name; the server decides the weights, as a simulation does."""
    words = {"rounds": 5, "cohort": 4, "batch": 4, "epochs": 1, "seed": 7, "dtype": torch.float64}
    words["preprocess"] = tf.Preprocess(scale=None)  # so that auto's steps decay in the last round
    one = tf.Engine(backend="loop", chunk=1)
    alone = tf.fit(make_net(), make_federation(), given, engine=one, device="cpu", **words)
    own = {"model": make_net(), "clients": CLIENTS, "test": make_federation().test, "wait": 0.0}
    spread = serve(Settings(method=given, **own, **words), LocalTransport(tmp_path))
    assert spread.settings["method"] == alone.settings["method"]
    assert spread.settings["method"]["weights"] == "samples"
    assert torch.equal(alone.x, spread.x)
    masked = Settings(method=given, secure=tf.privacy.Secure(), **own, **words)
    assert decide_method(masked).weights == "uniform"


def deep_net():
    torch.manual_seed(3)
    width = make_federation().x.shape[1]
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(width, 3)).double()


@pytest.mark.parametrize("as_object", [False, True])
def test_auto_races_where_the_network_is_deep(as_object, tmp_path):
    """Nodes know auto in both forms; the server decides which one it is."""
    words = {"rounds": 9, "cohort": 4, "batch": 4, "epochs": 1, "seed": 7, "dtype": torch.float64}
    method = tf.methods.get("auto") if as_object else "auto"
    one, whole = tf.Engine(backend="loop", chunk=1), tf.Evaluate(validation=0)
    settings = {
        "engine": one,
        "evaluate": whole,
        "device": "cpu",
        "preprocess": tf.Preprocess(scale=None),
    }
    alone = tf.fit(deep_net(), make_federation(), method, **settings, **words)
    own = {"model": deep_net(), "clients": CLIENTS, "test": make_federation().test, "wait": 0.0}
    nodes = LocalTransport(tmp_path, method if as_object else None, model=deep_net)
    spread = serve(
        Settings(method=method, preprocess=tf.Preprocess(scale=None), **own, **words), nodes
    )
    assert {row.get("arm") for row in spread.history} >= {0, 1, None}
    assert spread.settings["method"]["server"]["part"] == "Race"
    assert torch.equal(alone.x, spread.x)
