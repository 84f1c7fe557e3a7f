"""Every named method, some compositions, and one small problem to run them on."""

import torch
from torch import nn

import tunefree as tf
from tunefree.clients import Adam, Armijo, Constant, DoG, Momentum, Proximal, Scaffold, Sum
from tunefree.server import Averaged, FedDuAdagrad, FedDuAdam, FedExP

COMPOSITIONS = {
    "fedduadam-scaffold-armijo": tf.Method(
        direction=Scaffold(), step=Armijo(), server=FedDuAdam(eps_g=1e-3)
    ),
    "scaffold+prox-momentum-fedexp": tf.Method(
        direction=Sum(Scaffold(), Proximal(0.1)), step=Momentum(0.05), server=FedExP()
    ),
    "scaffold-I-adam": tf.Method(direction=Scaffold("I"), step=Adam(0.01)),
    "dog-fedduadagrad-averaged": tf.Method(step=DoG(), server=FedDuAdagrad(), output=Averaged()),
    "scaffold-live-dog-fedduadam-moved": tf.Method(
        direction=Scaffold(), step=DoG(live=True), server=FedDuAdam(max_move=0.5)
    ),
    "clip-decay-schedule": tf.Method(
        step=Constant(0.2),
        schedule="cosine+warmup:2",
        weight_decay=1e-2,
        clip=0.5,
        weights="samples",
    ),
}
METHODS = {name: tf.methods.get(name) for name in tf.methods.names()} | COMPOSITIONS

SIZES = (3, 9, 5, 12, 4, 7)
FEATURES, CLASSES = 5, 3
WORK = {"steps": {"steps": 3}, "epochs": {"epochs": 2}}


def federation(order=None, spread=1.5):
    """Six clients of unequal size; client i is called order[i], which decides its id."""
    draw = torch.Generator().manual_seed(3)
    names = range(len(SIZES)) if order is None else order
    x = torch.randn(sum(SIZES), FEATURES, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (sum(SIZES),), generator=draw)
    centre = spread * torch.randn(len(SIZES), FEATURES, generator=draw, dtype=torch.float64)
    ids = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    test = (x[::3].clone(), y[::3].clone())
    owner = torch.tensor(list(names))[ids]
    return tf.Federation(x + centre[ids], y, owner, test=test, classes=CLASSES)


def net(dropout=0.3, seed=0):
    """A perceptron with one hidden layer of six, float64; 57 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, CLASSES)
        ).double()


def fit(method, fed=None, model=None, **settings):
    """Run with small defaults: 4 rounds, 4 of 6 clients, minibatches of 4, dropout, float64."""
    given = {"rounds": 4, "cohort": 4, "batch": 4, "seed": 7, "engine": "vmap"} | settings
    if "epochs" not in given:
        given.setdefault("steps", 3)
    fed = federation() if fed is None else fed
    model = net() if model is None else model
    return tf.fit(model, fed, method, device="cpu", dtype=torch.float64, **given)


def timeless(history):
    """The history without what depends on the clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(a, b):
    """Same bits: last iterate, shipped model, history, and how it ended."""
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.output, b.output)
    assert timeless(a.history) == timeless(b.history)
    assert a.status == b.status
