"""Every method works with gradients that the next call overwrites, where its step says so."""

import pytest
import torch

import tunefree as tf
from tunefree.models import batched
from tunefree.testing._problem import make_federation, make_net


def fit(method):
    return tf.fit(
        make_net(0), make_federation(), method, rounds=2, cohort=None if method.full else 4,
        steps=3, batch=4, seed=7, dtype=torch.float64, device="cpu", eval_every=2, engine="vmap",
        compile=False,
    )  # fmt: skip


def distinct():
    """One method for every pair of direction and step."""
    found = {}
    for name in tf.methods.names():
        method = tf.methods.get(name)
        found.setdefault((type(method.direction), type(method.step)), method)
    for step in (tf.clients.Adam(), tf.clients.Momentum(), tf.clients.Normalised()):
        found[type(step)] = tf.Method(step=step)
    return list(found.values())


@pytest.mark.parametrize("method", distinct(), ids=lambda m: f"{m.name}-{type(m.step).__name__}")
def test_no_gradient_is_kept(method, monkeypatch):
    expected, real = fit(method), batched.VmapEngine.value_and_grad
    lent, asked = [], set()

    def lending(self, y, batch, reuse_buffer=False):
        loss, g = real(self, y, batch)
        for old in lent:
            old.fill_(float("nan"))
        lent[:] = [g] if reuse_buffer else []
        asked.add(reuse_buffer)
        return loss, g

    monkeypatch.setattr(batched.VmapEngine, "value_and_grad", lending)
    assert torch.equal(fit(method).x, expected.x)
    if "ref" not in method.direction.sets and "grad_mean" not in method.records:
        assert (True in asked) == method.step.consumes_grad
