"""A method of each family, whose servers see sums alone: under masks, clipped, and noised."""

import pytest
import torch

import tunefree as tf
from tunefree.core.errors import ArgumentError
from tunefree.privacy import Bounds, Privacy, Secure, epsilon
from tunefree.server.aggregate import weighted_mean
from tunefree.testing._problem import CLASSES, SIZES, run_trial

METHODS = {
    "fedavg": {"lr": 0.1},
    "scaffold": {"lr": 0.1},
    "fedexp": {"lr": 0.1},
    "feddua": {"lr": 0.1},
    "parfrefl": {},
    "fedcanon": {"lr": 0.1, "penalty": "l1:0.01"},
}
CLIENTS, ROUNDS = len(SIZES), 3


def method(name, **given):
    return tf.methods.get(name, **METHODS[name], **given)


def bounds(made, vector, number):
    return Bounds(
        vectors=dict.fromkeys(made.vectors, vector),
        scalars=dict.fromkeys((*made.scalars, "loss"), (0.0, number)) | {"lr": (0.0, 1.0)},
    )


def private(made, vector, number, noise, **given):
    cohort = CLIENTS if made.full else 4
    limits = bounds(made, vector, number)
    return Privacy(noise=noise, clients=CLIENTS, cohort=cohort, bounds=limits, **given)


def run(made, aggregate=weighted_mean):
    return run_trial(made, aggregate=aggregate)


def same(a, b, tolerance):
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=tolerance)
    for one, two in zip(a.history, b.history, strict=True):
        assert one["train_loss"] == pytest.approx(two["train_loss"], abs=tolerance)


@pytest.mark.parametrize(
    ("name", "weights"), [*((n, "uniform") for n in METHODS), ("scaffold", "samples")]
)
def test_under_masks_a_run_is_the_plain_run(name, weights):
    """Steps of 2^-40, and a few rounds that carry them on."""
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    made = method(name, weights=weights)
    weighted_mean = run(made)
    masked = run(made, Secure())
    same(weighted_mean, masked, 1e-10)
    assert not torch.equal(weighted_mean.x, masked.x)  # it was another way
    coarse = run(made, Secure(bits=32, bound=16.0))
    same(weighted_mean, coarse, 1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_with_wide_bounds_a_run_is_the_plain_run(name):
    made = method(name, weights="uniform")
    same(run(made), run(made, private(made, 1e4, 1e4, 0.0)), 1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_with_noise_a_run_repeats_and_ends(name):
    made = method(name)
    one, two, other = (run(made, private(made, 0.5, CLASSES, 0.1, seed=s)) for s in (1, 1, 2))
    assert torch.equal(one.x, two.x)
    assert one.status == "finished"
    assert not (one.x == other.x).any() or name == "fedcanon"  # which sets some to zero
    assert not torch.equal(one.x, other.x)


def test_a_channel_that_has_no_bound_stops_the_run():
    made = method("fedexp")
    tight = private(tf.methods.get("fedavg"), 1.0, 1.0, 1.0)
    with pytest.raises(ArgumentError, match="'delta_sq' has no bound"):
        run(made, tight)


def test_numbers_count_clipped_and_noised_like_vectors():
    """FedExP's step is made of a number that clients send; so is the loss of the history."""
    made = method("fedexp")
    free = run(made)
    assert min(row["train_loss"] for row in free.history) > 0.5
    assert max(row["server_step"] for row in free.history) > 1
    scalars = {"loss": (0.0, 0.5), "lr": (0.0, 1.0), "delta_sq": (0.0, 1e-9)}

    def clipped(noise, **given):
        limits = Bounds(vectors={"delta": 1e4}, scalars=scalars)
        settings = {"noise": noise, "clients": CLIENTS, "cohort": 4, "bounds": limits, "seed": 0}
        return run(made, Privacy(**settings | given))

    quiet = clipped(0.0)
    assert [row["train_loss"] for row in quiet.history] == pytest.approx([0.5] * ROUNDS)
    assert [row["server_step"] for row in quiet.history] == [1.0] * ROUNDS
    one, two = (clipped(1e-3, seed=s) for s in (0, 1))
    for a, b in zip(one.history, two.history, strict=True):
        assert a["train_loss"] != b["train_loss"]
        assert a["lr"] != b["lr"] != 0.1


@pytest.mark.parametrize(
    ("name", "cohorts"), [("fedavg", "known"), ("fedavg", "secret"), ("parfrefl", "known")]
)
def test_the_history_says_what_was_spent(name, cohorts):
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    made = method(name)
    given = {"delta": 1e-3, "cohorts": cohorts, "seed": 0}
    aggregate = private(made, 1.0, 3.0, 8.0, **given)
    spent = [row["epsilon"] for row in run(made, aggregate).history]
    plan = {"clients": CLIENTS, "cohort": aggregate.cohort, "delta": 1e-3, "cohorts": cohorts}
    want = [epsilon(8.0, rounds=t, prepares=made.prepares, **plan) for t in range(1, ROUNDS + 1)]
    assert spent == want
    assert spent == sorted(set(spent))


def test_secret_cohorts_do_not_go_with_memory():
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    made = method("scaffold")
    secret = private(made, 1.0, 3.0, 8.0, delta=1e-3, cohorts="secret")
    with pytest.raises(ArgumentError, match="take cohorts='known'"):
        run(made, secret)
