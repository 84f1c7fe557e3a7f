"""A hostile client among real SuperNodes: under masks and with noise."""

import pytest
import torch
from examples.federation.loopback import Loopback

import tunefree as tf
from flower.real import MINUTES, finished
from tunefree.flower.apps import write_app
from tunefree.models import nets

pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
pytestmark = pytest.mark.federation

CLIENTS, HOSTILE = 4, 2
CLIENT = """
from dataclasses import replace

import torch

from tunefree.flower import apps, client_app
from tunefree.flower.node import Node
from tunefree.flower.payload import encode_dense, wrap_bytes

from .task import load, model


class Hostile(Node):
    def reply(self, payload):
        answer = super().reply(payload)
        return answer if self.client != %d else self.change(payload, answer)

    def change(self, payload, answer):
        kind, t = payload.header["kind"], payload.header.get("round")
%s
        return answer


apps.Node = Hostile
app = client_app(model, load)
"""
# In round 0 one bit of each share that it opens, in round 1 all shares that it deals.
MASKED = """
        if (kind, t) in (("opened", 0), ("shares", 1)):
            data = bytearray(answer.arrays[kind].data)
            at = range(25 + 4 + 5, len(data), 71)
            if kind == "shares":
                at = range(25 + 96 + 4 + 4, len(data), 4 + 148 + 64)
            for place in at:
                data[place] ^= 1
            return replace(answer, arrays={kind: wrap_bytes(bytes(data))})
"""
# It claims 2^40 samples, and sends a vector of length 1000.
NOISY = """
        if kind == "hello":
            return replace(answer, header=answer.header | {"samples": 2**40})
        if kind == "train":
            delta = torch.ones(650) * (1000 / 650**0.5)
            return replace(answer, arrays=answer.arrays | {"delta": encode_dense(delta)})
"""
PRIVATE = """
from dataclasses import replace as _replace

from tunefree.privacy import Bounds, Privacy

_plain = settings


def settings(config):
    scalars = {"loss": (0.0, 4.0), "lr": (0.0, 1.0)}
    bounds = Bounds(vectors={"delta": 0.5}, scalars=scalars)
    private = Privacy(noise=1e-6, clients=4, cohort=4, bounds=bounds)
    return _replace(_plain(config), aggregate=private)


app = server_app(settings)
"""


def trained(tmp_path, change, server="", **more):
    app, out = write_app(tmp_path / "app", "hostile"), tmp_path / "run"
    (app / "federation/client.py").write_text(CLIENT % (HOSTILE, change))
    with (app / "federation/server.py").open("a") as file:
        file.write(server)
    config = {"method": "fedavg", "set": "lr=0.1", "clients": CLIENTS, "out": out} | more
    with Loopback(tmp_path / "flower", CLIENTS) as loop:
        finished(loop.run(app, **config), 8 * MINUTES)
    return tf.Run.load(out), (out / "federation.log").read_text()


def test_under_masks(tmp_path):
    """Its wrong shares are left out; the round that it spoils is lost; then it is not asked."""
    run, log = trained(tmp_path, MASKED, rounds=3, secure=True)
    assert run.status == "finished"
    assert [row.get("round_lost", 0) for row in run.history] == [0, 1, 0]
    assert [row["answered"] for row in run.history] == [CLIENTS, 0, CLIENTS - 1]
    assert f"shares that member {HOSTILE} dealt are wrong" in log
    assert f"Client {HOSTILE} is not asked for masked numbers any more" in log
    assert torch.isfinite(run.x).all()


def test_with_noise(tmp_path):
    """It moves the model by no more than its bound over the cohort's size, in each round."""
    run, log = trained(tmp_path, NOISY, PRIVATE, rounds=2)
    assert run.status == "finished"
    assert f"Client {HOSTILE} states {2**40} samples and counts for" in log
    model = nets.build("linear", shape=(1, 8, 8), classes=10, seed=0)
    moved = run.x - torch.cat([p.detach().flatten() for p in model.parameters()])
    along = torch.ones(650) / 650**0.5
    assert float(moved @ along) == pytest.approx(2 * 0.5 / CLIENTS, abs=0.05)
    assert float(moved.norm()) <= 2 * 0.5 * 1.01
