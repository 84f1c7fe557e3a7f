"""A federation on this machine, as the demo starts it and with TLS and node keys."""

import subprocess

import pytest
import torch
from examples.federation.demo import train_federation, train_simulation
from examples.federation.loopback import Loopback

import tunefree as tf
from flower.real import MINUTES, finished
from tunefree.flower.apps import write_app

pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
pytestmark = pytest.mark.federation


def test_the_demo(tmp_path):
    real = train_federation(tmp_path, "fedavg", ("lr=0.1",), 2, 3)
    assert torch.equal(real.x, train_simulation(tmp_path, "fedavg", ("lr=0.1",), 2, 3).x)


def test_tls_and_registered_nodes(tmp_path):
    """Encrypted, with node keys; a node whose key nobody registered takes no part."""
    app, out = write_app(tmp_path / "app", "secure"), tmp_path / "run"
    with Loopback(tmp_path / "flower", 2, secure=True) as loop:
        key = loop.home / "key-9"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True, timeout=MINUTES
        )
        loop.start_node(9)
        config = {"method": "scaffold", "set": "lr=0.1", "rounds": 2, "clients": 2, "out": out}
        finished(loop.run(app, **config), 5 * MINUTES)
        stranger = (loop.home / "node-9.log").read_text(errors="replace")
    real = tf.Run.load(out)
    assert real.status == "finished"
    assert "Node" not in (out / "federation.log").read_text()  # it was never seen
    assert "Received successfully" not in stranger
    assert torch.equal(real.x, train_simulation(tmp_path, "scaffold", ("lr=0.1",), 2, 0, 2).x)
