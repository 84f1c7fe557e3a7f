"""Settings that cannot work fail before round 0, with a sentence that says why and what to do."""

import pytest
import torch

import tunefree as tf
from tunefree.clients import (
    Armijo,
    Canon,
    ClientMomentum,
    Constant,
    DualAverage,
    FedDR,
    Mime,
    MimeLite,
    Momentum,
    Normalised,
    Pull,
    Rates,
    Scaffold,
    Sum,
)
from tunefree.clients import Proximal as Pulled
from tunefree.core.errors import ArgumentError
from tunefree.penalties import L1, MCP
from tunefree.server import FedDuAdam, FedExP, LoD, ParFreFL, Proximal, Splitting
from tunefree.wire import ErrorFeedback, RandK

get = tf.methods.get

AT_ONCE = {
    "beta": (lambda: get("scafcom", beta=0.0), "beta=...) must be a number in (0, 1], got 0.0."),
    "beta-1": (lambda: get("fedavgcm", beta=1.5), "number in (0, 1], got 1.5."),
    "beta2": (lambda: get("fedadam", beta2=1.0), "must be a number in [0, 1), got 1.0."),
    "ratio": (lambda: get("comparfrefl", compressor="topk:0"), "ratio"),
    "ratio-part": (lambda: tf.wire.TopK(0.0), "got 0.0."),
    "levels": (lambda: tf.wire.QSGD(0), "got 0."),
    "scale": (lambda: get("parfrefl", scale=0), "scale=...) must be a finite number > 0, got 0."),
    "p": (lambda: get("scaffnew", p=0.0), "must be a number in (0, 1], got 0.0."),
    "skip": (lambda: get("fedpd", skip=1.0), "must be a number in [0, 1), got 1.0."),
    "relax": (lambda: get("feddr", relax=2.0), "must be a number between 0 and 2, got 2.0."),
    "mu": (lambda: get("feddyn", mu=0.0), "must be a finite number > 0, got 0.0."),
    "solver": (lambda: get("feddr", solver="newton"), "Unknown solver 'newton'."),
    "compressor": (lambda: get("scafcom", compressor="topq:0.1"), "Did you mean 'topk'?"),
    "compressor-kind": (lambda: get("scafcom", compressor=3), "must be a wire or its text, got 3."),
    "penalty": (lambda: get("fedcanon", penalty="l7:1"), "Unknown penalty 'l7'."),
    "penalty-kind": (lambda: get("fedcanon", penalty=3), "must be a penalty or its text, got 3."),
    "mirror": (lambda: get("feddua", mirror="cubic"), "Unknown mirror 'cubic'."),
    "pnorm": (lambda: get("feddua", mirror="pnorm:3"), "must be a number in (1, 2], got 3.0."),
    "prox_step": (lambda: get("fedproxlod", prox_step="x"), "Unknown prox_step 'x'."),
    "schedulers": (lambda: get("fedhyper", schedulers="L"), "Unknown schedulers 'L'."),
    "bound": (lambda: get("fedhyper", bound=0.5), "must be a finite number >= 1, got 0.5."),
    "delta": (lambda: get("deltasgd", delta=-1), "must be a finite number >= 0, got -1."),
    "d_rel": (lambda: get("fedprodigy", d_rel=0), "must be a finite number > 0, got 0."),
    "wire": (lambda: get("fedavg", wire="zip"), "zip"),
    "metric": (
        lambda: Proximal(L1(), inner=FedDuAdam()),
        "Cannot use Proximal with FedDuAdam. This is because it scales coordinates differently",
    ),
    "unbounded": (
        lambda: Proximal(MCP(), inner=FedExP()),
        "Cannot use MCP with FedExP. This is because its step has no bound",
    ),
    "twice-scaled": (
        lambda: Sum(Mime(), ClientMomentum()),
        "Cannot add directions that set the same thing of a local step, got scale, ref, scale",
    ),
    "twice-sent": (
        lambda: Sum(Scaffold("I"), Scaffold("II")),
        "Cannot add directions that send the same channel, got control, control",
    ),
    "no-momentum": (
        lambda: tf.Method(direction=ClientMomentum()),
        "Cannot use ClientMomentum with Average. This is because it reads momentum",
    ),
    "no-innovation": (
        lambda: tf.Method(server=ParFreFL()),
        "Cannot use ParFreFL with Plain and Constant. This is because it needs innovation",
    ),
    "no-losses": (lambda: tf.Method(server=LoD()), "it needs loss, grad_sq"),
    "pull": (lambda: tf.Method(direction=Pull()), "it reads mu"),
    "search-with-maps": (
        lambda: tf.Method(direction=DualAverage(), step=Armijo()),
        "Cannot use Armijo with DualAverage. This is because its line search needs the gradient",
    ),
    "lr-unknown": (
        lambda: tf.Method(direction=Canon(0.1), step=Armijo()),
        "Cannot use Armijo with Canon. This is because it divides by the client's step size",
    ),
    "lr-momentum": (
        lambda: tf.Method(direction=Canon(0.1), step=Momentum(0.1)),
        "Cannot use Momentum with Canon.",
    ),
    "lr-differs": (
        lambda: tf.Method(direction=Canon(0.1), step=Constant(0.2)),
        "Parts of one method must have the same lr, got Canon(lr=0.1), Constant(lr=0.2).",
    ),
    "schedule": (
        lambda: get("za1", schedule="cosine"),
        "Cannot use schedule='cosine' with ZA1. This is because it counts on the same step size",
    ),
    "own-step": (
        lambda: get("parfrefl", schedule="cosine"),
        "Cannot use schedule='cosine' with Normalised. This is because it sets its own step size",
    ),
    "clip": (lambda: get("fedsps", clip=1.0), "Cannot use clip=1.0 with Polyak."),
    "wire-too": (
        lambda: get("fedefsgd", wire="sign"),
        "fedefsgd packs its uploads by its own setting: give compressor=..., not wire=...",
    ),
    "hidden-lr": (
        lambda: tf.Method(direction=Sum(Canon(0.1), Pulled(0.1)), step=Armijo()),
        "Cannot use Armijo with Canon.",
    ),
    "mu-differs": (
        lambda: tf.Method(direction=FedDR(1.0), server=Splitting(mu=0.1)),
        "Parts of one method must have the same mu, got FedDR(mu=1.0) and Splitting(mu=0.1).",
    ),
    "rates-differ": (
        lambda: tf.Method(
            direction=tf.clients.ParFreFL(), step=Normalised(Rates(scale=2.0)), server=ParFreFL()
        ),
        "Parts of one method must have the same rates",
    ),
    "walk-differs": (
        lambda: tf.Method(direction=DualAverage(L1()), server=tf.server.DualAverage()),
        "Parts of one method must have the same settings",
    ),
    "half-za1": (
        lambda: tf.Method(direction=tf.clients.ZA1()),
        "Cannot use ZA1 with Average. This is because it is defined with the server rule ZA1",
    ),
    "half-drift": (
        lambda: tf.Method(server=tf.server.Drift()),
        "Cannot use Drift with Plain. This is because it is defined with the direction FedDyn or",
    ),
    "vr": (
        lambda: tf.Method(
            direction=tf.clients.PAdaMFed(Rates("padamfed-vr")), server=tf.server.PAdaMFed()
        ),
        "it reads before, which that server rule does not send",
    ),
    "copies": (lambda: tf.Method(server=Proximal(silent=True)), "FedCanon II needs both halves"),
    "scaffnew": (
        lambda: tf.Method(direction=tf.clients.Scaffnew(0.1), server=tf.server.Average(0.5)),
        "its controls count on plain averaging",
    ),
    "nested": (
        lambda: tf.clients.Until(tf.clients.ConjugateGradient()),
        "must be a step that is no solver itself",
    ),
    "prepare-dog": (
        lambda: tf.Method(
            direction=tf.clients.ParFreFL(), step=tf.clients.DoG(), server=ParFreFL()
        ),
        "everyone works before round 0, when that step has not begun",
    ),
    "prepare-sum": (
        lambda: Sum(tf.clients.ParFreFL(), Scaffold()),
        "Cannot add Scaffold to a direction for which everyone works before round 0.",
    ),
    "inf": (lambda: get("fedexprox", inf=0.1), "inf=0.1 is for extrapolation='stops'"),
    "explicit": (
        lambda: get("fedproxlod", prox_step="explicit", solver="exact"),
        "prox_step='explicit' is for solver='steps'",
    ),
    "argument": (lambda: get("fedcanon", alfa=0.1), "Did you mean 'alpha'?"),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_at_construction(case):
    make, words = AT_ONCE[case]
    with pytest.raises(ArgumentError) as error:
        make()
    text = str(error.value)
    assert words in text
    assert text.endswith(".")
    assert "\n" not in text


def fit(method, **settings):
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    fed = tf.Federation(x, torch.arange(24) % 2, torch.arange(24) // 4, classes=2)
    given = {"rounds": 2, "steps": 2, "batch": 2, "device": "cpu"} | settings
    return tf.fit(torch.nn.Linear(3, 2), fed, method, **given)


BOUND = {  # what only the plan can show
    "mcp": (
        lambda: fit(get("fedcanon", lr=1.0, penalty="mcp:1e-4:1.5")),
        "alpha=2.0). This is because its proximal map needs alpha < 1/rho = 1.5",
    ),
    "scad": (
        lambda: fit(get("fedcanon", alpha=2.8, penalty="scad:1e-4")),
        "needs alpha < 1/rho = 2.7",
    ),
    "feddr": (lambda: fit(get("feddr", mu=0.2, penalty="mcp:1e-4")), "alpha < 1/rho = 3"),
    "fedda": (
        lambda: fit(get("fedda", lr=0.1, penalty="mcp:1e-4"), rounds=40),
        "alpha < 1/rho = 3",  # tau grows to 8
    ),
    "full": (
        lambda: fit(get("scaffnew"), cohort=3),
        "Cannot use scaffnew with 3 of 6 clients a round. This is because it is defined for full "
        "participation; use cohort=None (--cohort 0).",
    ),
    "cohort": (lambda: fit("fedavg", cohort=7), "at most the number of clients, 6, got 7."),
    "steps": (lambda: fit("fedavg", steps=0), "must be an int >= 1, got 0."),
    "rounds": (lambda: fit("parfrefl", rounds=0), "must be an int >= 1, got 0."),
    "held": (
        lambda: fit(get("fedproxlod", global_loss="server")),
        "give Federation(held=...), or use global_loss='clients'.",
    ),
    "batch": (
        lambda: fit(get("feddr", solver="exact")),
        "Cannot use ConjugateGradient with batches of 2.",
    ),
    "until": (lambda: fit(get("feddr", solver="armijo")), "Cannot use Until with batches of 2."),
    "entropy": (
        lambda: fit(get("feddua", mirror="entropy")),
        "Entropy() needs parameters that are all > 0, got a model whose smallest is",
    ),
    "owed": (
        lambda: fit(get("scaffold", wire=RandK(0.1))),
        "use a compressor that never lengthens the error",
    ),
    "feedback": (
        lambda: fit(get("fedavg", wire=ErrorFeedback(RandK(0.1)))),
        "use a compressor that never lengthens the error",
    ),
}


@pytest.mark.parametrize("case", BOUND)
def test_before_round_0(case):
    run, words = BOUND[case]
    with pytest.raises(ArgumentError) as error:
        run()
    assert words in str(error.value)
    assert str(error.value).endswith(".")


def test_sums_that_may_be():
    """A momentum and a pull, MimeLite and SCAFFOLD's controls: different things of a step."""
    both = Sum(MimeLite(), Scaffold(), Pulled(0.1))
    run = fit(tf.Method(direction=both, step=Constant(0.05)))
    assert run.status == "finished"
