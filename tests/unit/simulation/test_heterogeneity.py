"""How much clients' gradients differ, against gradients taken by hand."""

import math

import pytest
import torch

import tunefree as tf
from tunefree.testing._problem import make_federation, make_net


def by_hand(module, data, weights):
    grads = []
    for start, size in zip(data.starts.tolist(), data.sizes.tolist(), strict=True):
        module.zero_grad()
        x, y = data.x[start : start + size], data.y[start : start + size]
        torch.nn.functional.cross_entropy(module(x), y).backward()
        grads.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    g, w = torch.stack(grads), torch.tensor(weights, dtype=torch.float64)
    w = w / w.sum()
    mean = w @ g
    zeta = math.sqrt(float(w @ (g - mean).square().sum(1)))
    return zeta, float((w @ g.square().sum(1)) / mean.square().sum())


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_against_gradients_by_hand(weights, chunk):
    data = make_federation()
    run = tf.fit(
        make_net(0),
        data,
        tf.methods.get("fedavg", lr=0.1, weights=weights),
        rounds=2,
        steps=2,
        batch=4,
        dtype=torch.float64,
        device="cpu",
        evaluate=tf.Evaluate(heterogeneity=True),
        engine=tf.Engine(chunk=chunk),
    )
    plain = [1.0] * data.clients if weights == "uniform" else data.sizes.tolist()
    zeta, ratio = by_hand(run.model, data, plain)
    assert run.history[-1]["zeta"] == pytest.approx(zeta, rel=1e-9)
    assert run.history[-1]["dissimilarity"] == pytest.approx(ratio, rel=1e-9)
    assert run.history[-1]["gradients"] == 2 * data.clients  # a measurement is not work


def test_only_when_asked():
    run = tf.fit(
        make_net(0), make_federation(), rounds=1, steps=1, dtype=torch.float64, device="cpu"
    )
    assert "zeta" not in run.history[-1]
