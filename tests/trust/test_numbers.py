"""Extreme values: every method trains or reports divergence, and never ships a NaN."""

import resource

import pytest
import torch
from torch import nn

import tunefree as tf
from every.cases import METHODS
from helpers import grouped, normal
from tunefree.core.errors import ArgumentError, DataError

FEW = (  # one of each family
    "auto",
    "fedavg",
    "fedproxlod",
    "parfrefl",
    "fedexpsls",
    "feddowg",
    "fedduadam",
    "fedexp",
    "fedyogi",
    "scaffold",
    "mime",
    "feddyn",
    "scafcom",
    "fedcanon",
    "za1",
    "fedadmm",
)
# The only combinations that may be refused, and why: everything else has to return a run.
REFUSED = {
    ("fedcanon-qsgd-mcp", "many small steps"): r"Cannot use MCP.* proximal map needs alpha < 1/rho",
    ("fedcanon2-scad", "many small steps"): r"Cannot use SCAD.* proximal map needs alpha < 1/rho",
}
# Where a method's loss rises so far that the run says so: steps of a fixed length, and proximal
# points that a few local steps do not reach (StoPS, and the weight of FedProxLoD as printed).
RISES = {
    "parfrefl": ("many small steps",),
    "comparfrefl": ("many small steps",),
    "wlod-printed": ("many small steps",),
    "exprox-stops": ("float64", "one client", "one class", "one class in all", "d = 1"),
}
SCALE_FREE = ("auto", "fedrace", "feddog", "feddowg", "fedprodigy", "fedproxlod", "fedproxwlod")


class Scaled:
    """Squared error times a number, of each sample."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, output, target):
        return self.scale * (output - target.view_as(output)).square().flatten(1).sum(1)


def line(d, out=1, zero=False):
    net = nn.Linear(d, out, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.zeros(out, d) if zero else normal(1, out, d))
    return net


def regression(n=8, d=3, clients=2, scale=1.0):
    x = normal(0, n, d) * scale
    y = x @ torch.ones(d, 1, dtype=torch.float64) / scale
    fed = tf.Federation(x, y, [i % clients for i in range(n)], test=(x, y), held=(x, y))
    return line(d), fed


def labels(n=8, d=3, clients=2, given=None, classes=2):
    x = normal(0, n, d)
    y = (x[:, 0] > 0).long() if given is None else torch.full((n,), given)
    owner = [i % clients for i in range(n)]
    fed = tf.Federation(x, y, owner, classes=classes, test=(x, y), held=(x, y))
    return line(d, classes), fed


def flat():
    """Everything is zero, and so is every gradient."""
    x, y = torch.zeros(6, 3, dtype=torch.float64), torch.zeros(6, 1, dtype=torch.float64)
    return line(3, zero=True), tf.Federation(x, y, [0, 1, 2] * 2, test=(x, y), held=(x, y))


def solved():
    """The start is the answer."""
    x = normal(0, 6, 3)
    net = line(3)
    y = net(x).detach()
    return net, tf.Federation(x, y, [0, 1, 2] * 2, test=(x, y), held=(x, y))


def alike():
    x = normal(0, 3, 3).repeat(4, 1)
    y = x.sum(1, keepdim=True)
    owner = torch.arange(4).repeat_interleave(3)
    return line(3), tf.Federation(x, y, owner, test=(x, y), held=(x, y))


CASES = {
    "float32": (labels, {}),
    "float64": (labels, {"dtype": torch.float64}),
    "bf16": (labels, {"precision": "bf16"}),
    "one sample": (lambda: labels(1, clients=1), {}),
    "one sample each": (lambda: labels(3, clients=3), {}),
    "one client": (lambda: labels(clients=1), {}),
    "one class": (lambda: labels(given=0), {}),
    "one class in all": (lambda: labels(given=0, classes=1), {}),
    "d = 1": (lambda: regression(d=1), {}),
    "no gradient": (flat, {}),
    "solved": (solved, {"dtype": torch.float64}),
    "identical clients": (alike, {}),
    "many small steps": (lambda: regression(), {"steps": 30}),
}
for power in (-30, -20, -10, 10, 20, 30):
    CASES[f"loss 1e{power}"] = (regression, {"loss": Scaled(10.0**power)})
    CASES[f"loss 1e{power} float64"] = (
        regression,
        {"loss": Scaled(10.0**power), "dtype": torch.float64},
    )
for power in (-30, -20, 10, 18):
    CASES[f"inputs 1e{power}"] = (lambda power=power: regression(scale=10.0**power), {})


def train(method, case):
    make, given = CASES[case]
    model, fed = make()
    given = {"rounds": 3, "steps": 2, "batch": 4, "device": "cpu", "engine": "loop"} | given
    if method.step.most is not None:
        given["batch"] = None
    return tf.fit(model, fed, method, **grouped(**given))


def outcome(name, case):
    """Return a run's status after checking its numbers; an error fails, unless it is listed."""
    if (name, case) in REFUSED:
        with pytest.raises(ArgumentError, match=REFUSED[name, case]):
            train(METHODS[name], case)
        return "refused"
    run = train(METHODS[name], case)
    assert bool(torch.isfinite(run.x).all()), "x"
    assert bool(torch.isfinite(run.output).all()), "the model that is shipped"
    for row in run.history:
        assert abs(row["train_loss"]) < float("inf")
    if run.status == "finished":
        assert len(run.history) == 3
    return run.status


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("case", ["bf16", "one sample", "one class in all", "d = 1", "no gradient"])
def test_a_few(name, case):
    assert outcome(name, case) == "finished"


@pytest.mark.parametrize("name", FEW[::3])
@pytest.mark.parametrize("case", ["loss 1e-30", "loss 1e30", "identical clients", "inputs 1e18"])
def test_scales(name, case):
    # squares of large numbers are beyond float32; parfrefl normalises its gradients
    overflows = case in ("loss 1e30", "inputs 1e18") and name != "parfrefl"
    assert outcome(name, case) == ("diverged" if overflows else "finished")


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize(
    "case", ["loss 1e-10", "loss 1e10", "loss 1e-30 float64", "loss 1e30 float64"]
)
def test_methods_without_a_rate_do_not_depend_on_the_scale(name, case):
    assert outcome(name, case) == "finished"


@pytest.mark.trust
@pytest.mark.parametrize("name", METHODS)
def test_every_method(name):
    found = {case: outcome(name, case) for case in CASES}
    print(found)
    large = ("loss 1e10", "loss 1e20", "loss 1e30", "inputs 1e10", "inputs 1e18")
    for case, status in found.items():
        may_diverge = case.startswith(large)
        expected = ("finished", "diverged") if may_diverge else ("finished", "refused")
        if case in RISES.get(name, ()):
            expected = ("unstable", "diverged")
        assert status in expected, case


def test_clients_without_samples_are_refused():
    with pytest.raises(DataError, match="client 1 has no samples"):
        tf.Federation(normal(0, 2, 1), [0, 1], [0, 2], clients=3)


class Long(nn.Module):
    """A vector as a model; each sample looks at a few of its numbers."""

    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return self.w[:4].sum() * x


@pytest.mark.trust
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam", "auto"])
def test_a_hundred_million_numbers(name):
    x = torch.ones(2, 1)
    fed = tf.Federation(x, x, [0, 1])
    run = tf.fit(Long(100_000_000), fed, name, rounds=1, steps=1, batch=1, device="cpu")
    assert run.status == "finished"
    assert run.x.numel() == 100_000_000
    assert bool(torch.isfinite(run.output[:8]).all())
    print(name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")
