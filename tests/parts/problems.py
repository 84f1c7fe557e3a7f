"""Small federations for tests of `fit`: labels, and least squares with known answers."""

import torch
from torch import nn

import tunefree as tf


def labelled(clients=4, rows=6, features=3, classes=2, seed=0):
    """Equal clients, labels that a linear model can learn."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * rows, features, generator=draw, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long() * (classes - 1)
    owner = torch.arange(clients).repeat_interleave(rows)
    return tf.Federation(x, y, owner, test=(x.clone(), y.clone()), classes=classes)


def linear(features=3, classes=2, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(features, classes).double()


def fit(method="fedavg", fed=None, model=None, **settings):
    given = {"rounds": 3, "steps": 2, "batch": 4, "device": "cpu", "dtype": torch.float64}
    fed = labelled() if fed is None else fed
    return tf.fit(linear() if model is None else model, fed, method, **(given | settings))


class Quadratics:
    """Least squares of several clients, with what is known about them in closed form."""

    def __init__(self, clients=3, rows=8, d=2, seed=0, spread=2.0):
        draw = torch.Generator().manual_seed(seed)
        self.a = torch.randn(clients, rows, d, generator=draw, dtype=torch.float64)
        self.a *= 0.5 + torch.rand(clients, 1, d, generator=draw, dtype=torch.float64)
        own = spread * torch.randn(clients, d, 1, generator=draw, dtype=torch.float64)
        self.y = (self.a @ own)[:, :, 0]
        self.y += 0.1 * torch.randn(clients, rows, generator=draw, dtype=torch.float64)
        self.hessians = 2 * self.a.mT @ self.a / rows  # (N, d, d)
        slopes = 2 * self.a.mT @ self.y[:, :, None] / rows  # gradient = H x - slope
        self.minima = torch.linalg.solve(self.hessians, slopes)[:, :, 0]
        self.optimum = torch.linalg.solve(self.hessians.mean(0), slopes.mean(0))[:, 0]
        self.smoothness = float(torch.linalg.eigvalsh(self.hessians).max())

    def federation(self, shift=None):
        """The same functions; with `shift` s, f_i(x - s) instead of f_i(x)."""
        n, rows, d = self.a.shape
        y = self.y if shift is None else self.y + self.a @ shift
        owner = torch.arange(n).repeat_interleave(rows)
        return tf.Federation(self.a.reshape(-1, d), y.reshape(-1), owner)

    def model(self, start):
        net = nn.Linear(len(start), 1, bias=False).double()
        with torch.no_grad():
            net.weight.copy_(torch.as_tensor(start, dtype=torch.float64)[None])
        return net

    def fit(self, method, start=None, shift=None, **settings):
        given = {"rounds": 4, "steps": 4, "batch": None, "device": "cpu", "dtype": torch.float64}
        start = torch.zeros(self.a.shape[2]) if start is None else start
        return tf.fit(self.model(start), self.federation(shift), method, **(given | settings))
