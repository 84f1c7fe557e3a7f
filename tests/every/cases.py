"""Every named method, some compositions, and the small problem of `tf.testing` to run them on."""

import pytest
import torch

import tunefree as tf
from helpers import assert_close
from helpers import drop_seconds as timeless
from tunefree.clients import (
    Adam,
    Armijo,
    Canon,
    Constant,
    DoG,
    Mime,
    Momentum,
    Proximal,
    Scaffold,
    Sum,
)
from tunefree.server import Adaptive, Averaged, FedDuAdagrad, FedDuAdam, FedExP
from tunefree.server import Proximal as Prox
from tunefree.testing._problem import CLASSES, SIZES, make_federation, make_net, run_trial

__all__ = ["CLASSES", "COMPOSITIONS", "METHODS", "SIZES", "WORK", "close", "make_federation"]
__all__ += ["make_net", "run_trial", "same", "timeless"]


def at_will(client, round):
    """Another compressor for every client and round."""
    return [tf.wire.TopK(0.1 * (1 + round % 3)), tf.wire.Sign(), tf.wire.Dense()][client % 3]


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
L1, ROW = tf.penalties.L1(1e-2), tf.penalties.GroupLasso(1e-2)
COMPOSITIONS |= {
    "fedduadagrad-mime": tf.Method(direction=Mime(), step=Constant(0.05), server=FedDuAdagrad()),
    "fedduadam-prox-topk": tf.Method(
        direction=Proximal(0.1), server=FedDuAdam(eps_g=1e-3), wire="ef+topk:0.3"
    ),
    "scaffold-randk-fedexp": tf.Method(
        direction=Scaffold(), server=FedExP(), wire="randk:0.5:contractive"
    ),
    "adam-over-sign": tf.Method(step=Constant(0.05), server=Adaptive(), wire="ef+sign"),
    "fedcanon-fedexp-l1": tf.Method(
        direction=Canon(0.05), step=Constant(0.05), server=Prox(L1, 0.05, inner=FedExP())
    ),
    "fedcanon-qsgd-mcp": tf.methods.get("fedcanon", penalty=tf.penalties.MCP(1e-2), wire="qsgd:7"),
    "fedcanon2-scad": tf.methods.get("fedcanon2", penalty=tf.penalties.SCAD(1e-2)),
    "fedmid-group": tf.methods.get("fedmid", penalty=ROW),
    "fedda-l1": tf.methods.get("fedda", penalty=L1),
    "za1-l1": tf.methods.get("za1", penalty=L1),
    "feddr-l1-lowrank": tf.methods.get("feddr", penalty=L1, wire="lowrank:1"),
    "fedpd-skips": tf.methods.get("fedpd", skip=0.5),
    "lod-on-the-server": tf.methods.get("fedproxlod", global_loss="server"),
    "wlod-printed": tf.methods.get("fedproxwlod", reading="printed", prox_step="explicit"),
    "padamfed-vr": tf.methods.get("padamfed", variance_reduced=True),
    "fedhyper-sl": tf.methods.get("fedhyper", schedulers="SL"),
    "exprox-stops": tf.methods.get("fedexprox", extrapolation="stops"),
    "comparfrefl-choose": tf.methods.get("comparfrefl", compressor=tf.wire.Choose(at_will)),
}
KINDS = ("fedavg", "auto", "fedsls", "scaffold", "fedproxwlod", "comparfrefl")  # of memory
METHODS = {name: tf.methods.get(name) for name in tf.methods.names()} | COMPOSITIONS


def parts_of(method):
    """The classes of a method's parts, each with its place."""
    wires = [method.wire, getattr(method.wire, "inner", method.wire)]
    found = {("direction", type(p)) for p in method.directions} | {("wire", type(w)) for w in wires}
    places = ("step", "server", "output")
    return found | {(place, type(getattr(method, place))) for place in places}


def cover(methods=METHODS):
    """Few methods that have every part of all of them, as their names."""
    left, found = set().union(*map(parts_of, methods.values())), []
    while left:
        name = max(methods, key=lambda n: len(parts_of(methods[n]) & left))
        found.append(name)
        left -= parts_of(methods[name])
    return found


def first_of_families():
    """One method of each family, as their names."""
    found = {}
    for name in tf.methods.names():
        found.setdefault(tf.methods.CATALOGUE[name].family, name)
    return list(found.values())


def representatives():
    """Named methods that together have every part of the catalogue, and one of each family."""
    named = {name: METHODS[name] for name in tf.methods.names()}
    chosen = {*cover(named), *first_of_families()}
    return [name for name in named if name in chosen]


def with_the_rest_slow(chosen, *more):
    """All named methods, those that are not chosen among the slow tests; and more."""
    for name in tf.methods.names():
        marks = () if name in chosen else pytest.mark.slow
        yield pytest.param(name, *more, marks=marks)


WORK = {"steps": {"steps": 3}, "epochs": {"epochs": 2}}


def close(a, b, tolerance=1e-10):
    assert_close(a, b, tolerance)


def same(a, b):
    """Same bits: last iterate, shipped model, history, and how it ended."""
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.output, b.output)
    assert timeless(a.history) == timeless(b.history)
    assert a.status == b.status
