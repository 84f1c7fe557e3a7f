"""A federation in one process has the model and history of the simulation, for every method."""

import copy

import pytest
import torch

import tunefree as tf
from every.cases import METHODS
from flower.local import CLIENTS, LocalTransport, arguments, train
from tunefree.testing._problem import federation, net

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
        net(),
        federation(),
        copied,
        engine=tf.Engine(backend="loop", chunk=1),
        device="cpu",
        **words,
    )


@pytest.mark.parametrize("name", [*tf.methods.names(), *COMPOSED])
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
