"""The methods of `oracle.family` under comparison, as data."""

import numpy as np

from oracle import family, problems
from oracle.family import Entropy, PNorm, Quadratic

# id: (method name, its arguments); absent arguments test the defaults
NAMED = {
    "fedadagrad": ("fedadagrad", {}),
    "fedadagrad-all": (
        "fedadagrad",
        {"lr": 0.05, "server_lr": 0.2, "beta1": 0.4, "eps": 1e-2, "s0": 0.3},
    ),
    "fedadam": ("fedadam", {}),
    "fedadam-all": (
        "fedadam",
        {"lr": 0.05, "server_lr": 0.1, "beta1": 0.5, "beta2": 0.8, "eps": 0.1, "s0": 0.2},
    ),
    "fedyogi": ("fedyogi", {}),
    "fedyogi-all": (
        "fedyogi",
        {"lr": 0.05, "server_lr": 0.1, "beta1": 0.5, "beta2": 0.8, "eps": 0.2, "s0": 0.01},
    ),
    "fedams": ("fedams", {}),
    "fedams-all": (
        "fedams",
        {"lr": 0.05, "server_lr": 0.08, "beta1": 0.5, "beta2": 0.5, "eps": 0.02},
    ),
    "adaalter": ("adaalter", {}),
    "adaalter-all": ("adaalter", {"lr": 0.2, "eps": 0.3, "b0": 0.5}),
    "fedlin": ("fedlin", {}),
    "fedlin-all": ("fedlin", {"lr": 0.05, "balanced": False}),
    "fedexprox": ("fedexprox", {}),
    "fedexprox-constant": ("fedexprox", {"lr": 0.05, "mu": 0.7, "extrapolation": 1.4}),
    "fedexprox-stops": ("fedexprox", {"mu": 2.0, "extrapolation": "stops"}),
    "fedexprox-inf": ("fedexprox", {"lr": 0.12, "mu": 3.0, "extrapolation": "stops", "inf": 0.1}),
    "fedexprox-exact": ("fedexprox", {"mu": 1.5, "solver": "exact"}),
    "fedexprox-exact-stops": (
        "fedexprox",
        {"mu": 1.5, "extrapolation": "stops", "solver": "exact"},
    ),
    "fedsps": ("fedsps", {}),
    "fedsps-all": ("fedsps", {"c": 1.2, "max_lr": 0.5, "lower": 0.05, "server_lr": 0.8}),
    "mime": ("mime", {}),
    "mime-all": ("mime", {"lr": 0.05, "momentum": 0.5, "server_lr": 0.8}),
    "mimelite": ("mimelite", {}),
    "mimelite-all": ("mimelite", {"lr": 0.05, "momentum": 0.5, "server_lr": 0.8}),
    "fedavgcm": ("fedavgcm", {}),
    "fedavgcm-all": ("fedavgcm", {"lr": 0.05, "beta": 0.4, "server_lr": 0.8}),
    "scaffoldm": ("scaffoldm", {}),
    "scaffoldm-all": ("scaffoldm", {"lr": 0.05, "beta": 0.4, "server_lr": 0.8}),
    "padamfed": ("padamfed", {}),
    "padamfed-scale": ("padamfed", {"scale": 0.3, "beta": 0.4}),
    "padamfed-all": ("padamfed", {"beta": 0.3, "lr": 0.02, "server_lr": 0.2}),
    "padamfed-vr": ("padamfed", {"variance_reduced": True}),
    "padamfed-vr-scale": ("padamfed", {"scale": 0.3, "beta": 0.4, "variance_reduced": True}),
    "padamfed-vr-all": (
        "padamfed",
        {"beta": 0.3, "lr": 0.02, "server_lr": 0.2, "variance_reduced": True},
    ),
    "feddua": ("feddua", {}),
    "feddua-quadratic": ("feddua", {"lr": 0.05, "mirror": Quadratic(), "beta1": 0.5}),
    "feddua-entropy": ("feddua", {"lr": 0.02, "mirror": Entropy()}),
    "feddua-entropy-momentum": ("feddua", {"lr": 0.02, "mirror": Entropy(), "beta1": 0.3}),
    "feddua-pnorm": ("feddua", {"lr": 0.05, "mirror": PNorm()}),
    "feddua-pnorm-all": ("feddua", {"lr": 0.05, "mirror": PNorm(p=1.2), "beta1": 0.4}),
}

# Which need every client in every round: none.
FULL = frozenset()
# Which solve the client's problem on all of its rows, taking as many steps as they need.
EXACT = {"fedexprox-exact", "fedexprox-exact-stops"}
# Which cases allow clients a different number of steps each.
UNEQUAL_OK = frozenset(NAMED) - EXACT
# Which need a start with positive coordinates.
POSITIVE = {"feddua-entropy", "feddua-entropy-momentum"}
# Which set their own client step and so take no schedule.
OWN_STEP = {case for case, (name, _) in NAMED.items() if name in ("fedsps", "padamfed")}
# Which need the gradient of the loss they look at, unclipped.
NO_CLIP = {"fedsps", "fedsps-all"}
# StoPS takes the local steps for the whole proximal point: where they are cut short it runs away.
NEEDS_LONG_STEPS = {"fedexprox-stops", "fedexprox-inf"}


def oracle(name):
    return getattr(family, name)


def start(problem, case):
    x0 = problems.start(problem)
    return np.abs(x0) + 0.5 if case in POSITIVE else x0
