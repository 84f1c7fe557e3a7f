"""The default method: no learning rate, and never far below its own best round."""

import os
from pathlib import Path

import pytest
import torch

import tunefree as tf

SHARED = Path(__file__).parents[3] / "shared" / "data"
FOLDER = os.environ.get("TUNEFREE_DATA") or (SHARED if SHARED.is_dir() else None)


@pytest.mark.parametrize("alpha", [0.1, pytest.param(0.3, marks=pytest.mark.slow), 1.0])
def test_digits(alpha):
    fed = tf.load("digits").split(tf.Dirichlet(alpha), clients=20, seed=1)
    model = tf.models.build("mlp", shape=(1, 8, 8), classes=10, seed=1)
    run = tf.fit(model, fed, rounds=50, cohort=10, seed=1)
    accuracy = [row["test_accuracy"] for row in run.history]
    assert run.settings["method"]["name"] == "auto"
    assert accuracy[-1] >= 0.90
    assert accuracy[-1] >= max(accuracy) - 0.02


@pytest.mark.skipif(
    FOLDER is None, reason="needs Fashion-MNIST in $TUNEFREE_DATA or ../shared/data"
)
def test_fashion_mnist_passes_fedavg():
    fed = tf.load("fashion-mnist", FOLDER).split(tf.Dirichlet(0.1), clients=100, seed=0)
    model = tf.models.build("mlp", shape=(1, 28, 28), classes=10, seed=0)
    settings = {"rounds": 40, "cohort": 10, "steps": 20, "batch": 50, "eval_every": 40}
    settings["dtype"] = torch.float64  # rounding in float32 moves the result by three points
    auto = tf.fit(model, fed, **settings)
    fedavg = tf.fit(model, fed, tf.methods.get("fedavg", lr=0.1, output="averaged"), **settings)
    assert auto.summary["test_accuracy"] >= 0.75
    assert auto.summary["test_accuracy"] > fedavg.summary["test_accuracy"]
