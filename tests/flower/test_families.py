"""One method of each family over a real SuperLink gives the model of the simulation."""

import pytest
import torch
from examples.federation.demo import train_simulation
from examples.federation.loopback import Loopback

import tunefree as tf
from flower.real import CLIENTS, MINUTES, finished
from tunefree.flower.apps import write_app

pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
pytestmark = pytest.mark.federation

FAMILIES = {
    "server": ("fedexp", ("lr=0.1",)),
    "controls": ("scaffold", ("lr=0.1",)),
    "composite": ("fedcanon", ("lr=0.1", "penalty=l1:1e-4")),
    "self-setting": ("auto", ()),
    "compressed": ("comparfrefl", ()),
}


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """One method of each family, one after another over the same nodes; the first also masked."""
    place = tmp_path_factory.mktemp("federation")
    app = write_app(place / "app", "families")
    runs = {family: {"method": m, "set": " ".join(w)} for family, (m, w) in FAMILIES.items()}
    masked = runs["server"] | {"secure": True, "rounds": 1}
    with Loopback(place / "flower", CLIENTS) as loop:
        for name, config in (runs | {"masked": masked}).items():
            finished(loop.run(app, **{"rounds": 2} | config, out=place / name), 5 * MINUTES)
    return place


@pytest.mark.parametrize("family", FAMILIES)
def test_parity(family, families):
    method, words = FAMILIES[family]
    real, alone = tf.Run.load(families / family), train_simulation(families, method, words, 2, 0)
    assert real.status == "finished"
    assert torch.equal(real.x, alone.x)
    assert [r["train_loss"] for r in real.history] == [r["train_loss"] for r in alone.history]
    assert [r["bytes_up"] for r in real.history] == [r["bytes_up"] for r in alone.history]


def test_under_masks(families):
    """The server has seen a sum; it is that of the others' federation, up to the grid."""
    plain, masked = tf.Run.load(families / "server"), tf.Run.load(families / "masked")
    method, words = FAMILIES["server"]
    alone = train_simulation(families, method, words, 1, 0)
    assert masked.status == "finished"
    torch.testing.assert_close(masked.x, alone.x, rtol=0, atol=1e-6)
    assert masked.history[0]["train_loss"] == pytest.approx(plain.history[0]["train_loss"])
    sent = {k for k in masked.history[0] if k.startswith("bytes_up.")}
    assert sent == {f"bytes_up.{kind}" for kind in ("keys", "shares", "masked", "opened")}
    assert masked.history[0]["bytes_up.masked"] >= CLIENTS * 8 * masked.x.numel()
