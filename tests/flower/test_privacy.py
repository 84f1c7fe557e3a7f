"""Over a federation: noise as in a simulation, and sums under masks with clients that vanish."""

import importlib.util

import pytest
import torch

import tunefree as tf
from flower.local import CLIENTS, LocalTransport, train
from flower.test_parity import simulated
from tunefree.core.errors import ArgumentError
from tunefree.flower.exchange import TooFewError
from tunefree.privacy import Bounds, Privacy, Secure

METHODS = {  # of each family, and those that ask clients in the middle of a round
    "fedavg": {"lr": 0.1},
    "scaffold": {"lr": 0.1, "weights": "samples"},
    "fedexp": {"lr": 0.1},
    "fedadam": {},
    "parfrefl": {},
    "fedcanon": {"lr": 0.1, "penalty": "l1:0.01"},
    "auto": {},
    "fedlin": {},
    "fedproxlod": {},
    "comparfrefl": {},
}


def method(name):
    return tf.methods.get(name, **METHODS[name])


def test_noise_is_that_of_the_simulation(tmp_path):
    made = method("fedexp")
    scalars = {"delta_sq": (0.0, 3.0), "loss": (0.0, 3.0), "lr": (0.0, 1.0)}
    bounds = Bounds(vectors={"delta": 0.5}, scalars=scalars)
    given = {"noise": 0.1, "clients": CLIENTS, "cohort": 4, "bounds": bounds, "seed": 1}
    if importlib.util.find_spec("dp_accounting") is not None:
        given["delta"] = 1e-3
    alone = simulated(made, aggregate=Privacy(**given))
    spread = train(made, LocalTransport(tmp_path, made), aggregate=Privacy(**given))
    assert torch.equal(alone.x, spread.x)
    for a, b in zip(alone.history, spread.history, strict=True):
        assert a["train_loss"] == b["train_loss"]
        assert a.get("epsilon") == b.get("epsilon")
        assert ("epsilon" in b) == ("delta" in given)


class Vanishing(LocalTransport):
    """Client 3 is not heard any more from a message of round 1 on, until round 2."""

    kind = "none"

    def after(self, i, payload, answer):
        kinds = ["keys", "shares", "train", "opened"]
        kind = payload.header.get("kind")
        gone = kind in kinds and kinds.index(kind) >= kinds.index(self.kind)
        return None if i == 3 and payload.header.get("round") == 1 and gone else answer


@pytest.mark.parametrize("name", METHODS)
def test_under_masks_a_federation_is_the_plain_one(name, tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method(name)
    transport = LocalTransport(tmp_path / "masked", made)
    plain = train(made, LocalTransport(tmp_path / "plain", made))
    masked = train(made, transport, secure=Secure())
    torch.testing.assert_close(plain.x, masked.x, rtol=0, atol=1e-10)
    assert masked.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"])
    for _, asked, said in transport.log:
        if asked.header["kind"] in ("train", "probe"):
            assert set(said.arrays) == {"masked"}
            assert not said.scalars
            assert set(said.metrics) <= {"tally", "passes"}
    assert masked.history[0]["bytes_up.masked"] > 0


@pytest.mark.parametrize("kind", ["keys", "shares", "train", "opened"])
def test_a_client_that_vanishes(kind, tmp_path):
    """Before its numbers arrive the mean is without it, after that it counts."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("scaffold")
    transport = Vanishing(tmp_path / "masked", made)
    transport.kind = kind
    masked = train(made, transport, secure=Secure(threshold=4), cohort=None, rounds=3)
    other = Vanishing(tmp_path / "plain", made)
    other.kind = "train" if kind != "opened" else "opened"
    plain = train(made, other, cohort=None, rounds=3)
    torch.testing.assert_close(plain.x, masked.x, rtol=0, atol=1e-10)
    assert masked.history[1]["answered"] == CLIENTS - (kind != "opened")


def test_too_few_to_unmask_keeps_the_state(tmp_path):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedavg")
    transport = Vanishing(tmp_path, made)
    transport.kind = "opened"
    with pytest.raises(TooFewError, match="Round 1"):
        train(made, transport, secure=Secure(threshold=6), cohort=None)


def test_a_wire_that_saves_nothing_is_said(tmp_path, caplog):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("comparfrefl")
    row = train(made, LocalTransport(tmp_path, made), secure=Secure(bits=32), rounds=1).history[0]
    assert "but sends whole vectors" in caplog.text
    assert row["bytes_up.masked"] > 4 * 4 * 57  # whole vectors of everybody in the cohort
    assert row["counted_up"] == row["bytes_up.masked"]


def test_bounds_by_name(tmp_path):
    """Each channel has its own, points that of what is measured there."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedlin")
    names = dict.fromkeys((*made.vectors, *made.scalars, "loss", "lr"), 64.0)
    train(made, LocalTransport(tmp_path / "all", made), secure=Secure(bound=names | {"grad": 64.0}))
    with pytest.raises(ArgumentError, match="none for the channel 'grad'"):
        train(made, LocalTransport(tmp_path / "few", made), secure=Secure(bound=names))


def test_what_masks_cannot_hide_is_refused(tmp_path):
    for name, given, said in (
        ("fedavg", {"aggregate": Secure()}, "aggregate or secure"),
        ("parfrefl", {"lost": "renew"}, "prepare alone"),
    ):
        made = method(name)
        with pytest.raises(ArgumentError, match=said):
            train(made, LocalTransport(tmp_path, made), secure=Secure(), **given)


class Shy(LocalTransport):
    """Client 3 hides among at least five."""

    def node(self, i):
        node = super().node(i)
        node._config |= {"least": 5} if i == 3 else {}
        return node


def test_a_node_insists_on_masks_and_on_company(tmp_path, caplog):
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method("fedavg")
    for kind, given, said in (
        ("clear", {}, "only under secure aggregation"),
        ("few", {"secure": Secure(), "cohort": 4, "rounds": 3}, "hides among 5"),
    ):
        caplog.clear()
        transport = Shy(tmp_path / kind, made)
        run = train(made, transport, **{"cohort": None, "rounds": 1} | given)
        assert said in caplog.text
        assert min(row["answered"] for row in run.history) == (CLIENTS if not given else 4) - 1
        sent = {
            n for i, _, a in transport.log if i == 3 and not isinstance(a, str) for n in a.arrays
        }
        assert not sent & {"delta", "masked"}
    crowd = train(made, Shy(tmp_path / "many", made), secure=Secure(), cohort=None, rounds=1)
    assert crowd.history[0]["answered"] == CLIENTS
