"""Features of a frozen body, computed once: the same function, hence the same run."""

import pytest
import torch
from experiments import frozen
from torch import nn

import tunefree as tf
from tunefree.core.errors import ArgumentError


def federation():
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(40, 1, 4, 4, generator=g), torch.arange(40) % 3
    owner = ["b", "a", "b", "c", "c"] * 8
    test = (x[:9] + 0.1, y[:9])
    return tf.Federation(
        x, y, owner, test=test, held=(x[5:12], y[5:12]), test_owner=["c", "a", "b"] * 3, classes=3
    )


def convex():
    return tf.models.build("convex", shape=(1, 4, 4), classes=3, hidden=20, seed=1)


def test_the_same_outputs_and_the_same_owners(monkeypatch):
    monkeypatch.setattr(frozen, "ROWS", 7)
    model, fed = convex(), federation()
    head, seen = frozen.features(model, fed)
    for (x, y), (z, w) in [
        ((fed.x, fed.y), (seen.x, seen.y)),
        (fed.test, seen.test),
        (fed.held, seen.held),
    ]:
        assert z.shape == (len(y), 20)
        assert torch.equal(y, w)
        assert torch.allclose(model(x), head(z), rtol=1e-6, atol=1e-6)
    assert seen.names == fed.names == ("a", "b", "c")
    assert torch.equal(seen.sizes, fed.sizes)
    assert torch.equal(seen.test_owner, fed.test_owner)
    assert (seen.classes, seen.name) == (fed.classes, fed.name)
    assert head is not model.head
    assert sum(p.numel() for p in head.parameters()) == 63


def test_the_same_run():
    model, fed = convex().double(), federation().to(dtype=torch.float64)
    head, seen = frozen.features(model, fed)
    method = tf.methods.get("fedproxwlod", global_loss="server")
    work = {"rounds": 4, "steps": 5, "batch": 3, "dtype": torch.float64, "device": "cpu"}
    whole, tail = (tf.fit(m, f, method, **work) for m, f in ((model, fed), (head, seen)))
    assert torch.allclose(whole.output, tail.output, rtol=1e-10, atol=1e-12)
    for a, b in zip(whole.history, tail.history, strict=True):
        names = set(a) - {"seconds"}
        assert names == set(b) - {"seconds"}
        assert {n: a[n] for n in names} == pytest.approx({n: b[n] for n in names})


def test_the_smallest_part_and_dict_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4).requires_grad_(False)
            self.top = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))

        def forward(self, ids):
            return self.top(self.embed(ids).mean(1))

    model, ids = Named(), torch.arange(24).view(6, 4) % 5
    fed = tf.Federation({"ids": ids}, torch.arange(6) % 2, [0, 0, 0, 1, 1, 1])
    head, seen = frozen.features(model, fed)
    assert isinstance(head, nn.Linear)
    assert torch.allclose(head(seen.x), model(ids))


def after_the_head():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return 2 * self.head(x.flatten(1))

    return Scaled()


def twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 16)

        def forward(self, x):
            return self.head(self.head(x.flatten(1)))

    return Twice()


def dropped():
    body = nn.Linear(16, 8).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), body, nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: tf.models.build("mlp", shape=(1, 4, 4), classes=3), "in one child module"),
        (lambda: convex().requires_grad_(False), "in one child module"),
        (after_the_head, "changes what that returns"),
        (twice, "once, with one tensor; got 2"),
        (dropped, "has dropout in it, got '2'"),
    ],
)
def test_what_cannot_be_split_is_refused(model, words):
    with pytest.raises(ArgumentError, match=words):
        frozen.features(model(), federation())
