"""`python -m benchmarks federation`, with runs that are not played."""

from types import SimpleNamespace

import pytest
import torch
from benchmarks import federation
from examples.federation import demo

from tunefree.core.errors import ArgumentError
from tunefree.flower import apps


@pytest.fixture
def ways(monkeypatch):
    """Say which run is asked for, and return one of three rounds."""
    asked = []

    def way(name, seconds, x):
        def play(home, method, words, rounds, seed, clients):
            asked.append((name, clients, rounds))
            rows = [{"seconds": s} for s in seconds]
            return SimpleNamespace(history=rows, x=torch.tensor(x))

        monkeypatch.setattr(demo, name, play)

    monkeypatch.setattr(apps, "import_flower", lambda part="app": None)
    monkeypatch.setattr(federation.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(federation, "_version", lambda name: "1.0")
    return way, asked


def test_the_first_round_is_not_counted(ways):
    way, asked = ways
    way("train_federation", [60.0, 5.0, 7.0], [1.0])
    way("train_simulation", [1.0, 0.002, 0.004], [1.0])
    way("train_flower_simulation", [9.0, 0.1, 0.1], [1.0])
    (row,) = federation.measure(federation.Nodes(nodes=(4,), rounds=3))
    assert asked == [
        (name, 4, 3) for name in ("train_federation", "train_simulation", "train_flower_simulation")
    ]
    assert (row["loopback_ms"], row["loopback_ms_range"]) == (6000.0, (5000.0, 7000.0))
    assert (row["simulation_ms"], row["runtime_ms"]) == (3.0, 100.0)
    assert row["same"]
    (line,) = federation.table([row])
    assert line["over the loopback, ms"] == "6,000 (5,000 to 7,000)"
    assert line["the same model"] == "bit for bit"
    assert line["answers missing"] == "0"


def test_another_model_is_noticed_and_ray_may_be_missing(ways, monkeypatch):
    way, asked = ways
    way("train_federation", [1.0, 1.0], [1.0])
    way("train_simulation", [1.0, 1.0], [2.0])
    monkeypatch.setattr(federation.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(federation, "_version", lambda name: None)
    rows = federation.measure(federation.Nodes(nodes=(2, 3), rounds=2))
    assert [clients for _, clients, _ in asked] == [2, 2, 3, 3]
    lines = federation.table(rows)
    assert {line["the same model"] for line in lines} == {"no"}
    assert {line["Flower's simulation, ms"] for line in lines} == {"no Ray"}


@pytest.mark.parametrize("bad", [{"nodes": ()}, {"nodes": (0,)}, {"rounds": 1}])
def test_bad_settings(bad):
    with pytest.raises(ArgumentError):
        federation.Nodes(**bad)
