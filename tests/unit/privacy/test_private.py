"""Clipped, noised means: what one client can change, how much noise there is, what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tunefree as tf
from helpers import CrashError
from tunefree.core.errors import ArgumentError
from tunefree.privacy import Bounds, Privacy, Secure, epsilon
from tunefree.privacy.private import seeded_noise, system_noise

BOUNDS = Bounds(
    vectors={"delta": 2.0, "control": 0.5}, scalars={"loss": (0.0, 5.0), "sq": (-1.0, 3.0)}
)
ANY = st.floats(width=32) | st.sampled_from([0.0, 1e300, -1e308, 5e-324, math.inf, math.nan])


def rows(numbers, dtype=torch.float64):
    """Return one client's channels of any eight numbers."""
    t = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    return {"delta": t[None, :3], "control": t[None, 3:6], "loss": t[6:7], "sq": t[7:8]}


def blocks(unit):
    """Return what a client adds, in units: all its vectors, and each number."""
    vectors = torch.cat([unit["delta"][0], unit["control"][0]]).double()
    return [vectors, unit["loss"].double(), unit["sq"].double()]


@given(
    a=st.lists(ANY, min_size=8, max_size=8),
    b=st.lists(ANY, min_size=8, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(deadline=None)
def test_no_client_adds_more_than_one_nor_changes_more_than_two(a, b, dtype):
    one, two = (blocks(BOUNDS.scale(rows(v, dtype))) for v in (a, b))
    for u, v in zip(one, two, strict=True):
        assert math.hypot(*u.tolist()) <= 1
        assert math.hypot(*v.tolist()) <= 1
        assert math.hypot(*(u - v).tolist()) <= 2


def test_two_clients_can_be_two_apart():
    """The bound that the accounting uses is met, so that no smaller one would do."""
    up, down = (BOUNDS.scale(rows([s * 9.0] * 8)) for s in (1, -1))
    for u, v in zip(blocks(up), blocks(down), strict=True):
        assert float((u - v).norm()) == pytest.approx(2)


def test_vectors_are_clipped_together_and_small_ones_left_alone():
    small = rows([0.6, 0.0, 0.0, 0.2, 0.0, 0.0, 2.0, 1.0])
    unit = BOUNDS.scale(small)
    assert unit["delta"][0, 0] == 0.3
    assert unit["control"][0, 0] == 0.4
    assert (unit["loss"], unit["sq"]) == (-0.2, 0.0)
    large = BOUNDS.scale(rows([6.0, 0.0, 0.0, 2.0, 0.0, 0.0, 2.0, 1.0]))  # in units (3, 4)
    assert large["delta"][0, 0] == pytest.approx(0.6)
    assert large["control"][0, 0] == pytest.approx(0.8)
    for name, value in small.items():
        torch.testing.assert_close(BOUNDS.unscale(name, unit[name]), value)


def test_a_broken_client_counts_as_nothing_and_others_are_untouched():
    good = rows([0.6, 0.0, 0.0, 0.2, 0.0, 0.0, 2.0, 1.0])
    bad = rows([math.nan, 0.0, 0.0, 0.2, 0.0, 0.0, math.inf, 1.0])
    both = BOUNDS.scale({n: torch.cat([good[n], bad[n]]) for n in good})
    assert not both["control"][1].any()
    assert both["loss"].tolist() == [-0.2, 0.0]
    assert torch.equal(both["delta"][:1], BOUNDS.scale(good)["delta"])


D = 10_000


def privacy(**given):
    settings = {"noise": 0.02, "clients": 10, "cohort": 4, "bounds": BOUNDS, "seed": 3}
    return Privacy(**settings | given)


def mean(private, people=4, weight=0.4, round=0, size=D, what=""):
    torch.manual_seed(0)
    out = private(weight, round, what)
    sent = {"delta": torch.full((people, size), 2 / math.sqrt(size)).double()}
    sent |= {"control": torch.zeros(people, size).double()}
    sent |= {"loss": torch.full((people,), 4.0).double(), "sq": torch.ones(people).double()}
    for row in range(people):
        out.add(
            torch.full((1,), 0.1, dtype=torch.float64),
            {n: v[row : row + 1] for n, v in sent.items()},
        )
    return out.result()


@pytest.mark.parametrize("seed", [3, None])
def test_noise_has_the_deviation_that_was_promised(seed):
    """z B / (S sqrt(share)): of 90 percent for the vectors, of 5 for each number."""
    private = privacy(seed=seed)
    found = mean(private)
    for name, bound, centre in (("delta", 2.0, 2 / math.sqrt(D)), ("control", 0.5, 0.0)):
        want = 0.02 * bound / 4 / math.sqrt(0.9)
        assert float(found[name].std()) == pytest.approx(want, rel=5 / math.sqrt(2 * D))
        assert float(found[name].mean()) == pytest.approx(centre, abs=5 * want / math.sqrt(D))
    losses = torch.tensor([mean(private, round=t, size=1)["loss"] for t in range(1, 301)])
    want = 0.02 * 2.5 / 4 / math.sqrt(0.05)
    assert float(losses.std()) == pytest.approx(want, rel=5 / math.sqrt(600))
    assert float(losses.mean()) == pytest.approx(4.0, abs=5 * want / math.sqrt(300))


def test_same_seed_same_bits_and_nothing_else_is():
    one, two = mean(privacy()), mean(privacy())
    assert all(torch.equal(one[n], two[n]) for n in one)
    for other in (
        mean(privacy(seed=4)),
        mean(privacy(), round=1),
        mean(privacy(), what="probe"),
        mean(privacy(seed=None)),
    ):
        assert not (one["delta"] == other["delta"]).any()
    drawn = (
        seeded_noise(0, 0)("a", 1000),
        seeded_noise(0, 0)("b", 1000),
        system_noise("a", 1000),
        system_noise("a", 1000),
    )
    corr = torch.corrcoef(torch.stack(drawn)) - torch.eye(4)
    assert float(corr.abs().max()) < 6 / math.sqrt(1000)


def test_the_count_is_fixed():
    """With half of the cohort gone, sums are halved: who was there cannot be read from a mean."""
    quiet = privacy(noise=0.0)
    whole, half = mean(quiet), mean(quiet, people=2, weight=0.2, round=1)
    torch.testing.assert_close(2 * half["delta"], whole["delta"])
    assert float(half["loss"]) == pytest.approx((4 + 2.5) / 2)  # the middle for those away
    everybody = mean(quiet, people=10, weight=1.0, round=2)  # before round 0
    torch.testing.assert_close(everybody["delta"], whole["delta"])


def test_numbers_stay_in_their_range():
    loud = privacy(noise=50.0)
    losses = [float(mean(loud, round=t, size=1)["loss"]) for t in range(20)]
    assert min(losses) == 0.0
    assert max(losses) == 5.0


def test_noise_over_masks_is_noise_over_the_plain_sum():
    pytest.importorskip("cryptography", reason="needs tunefree[privacy]")
    plain, masked = mean(privacy()), mean(privacy(aggregate=Secure(bound=1.0)))
    for name in plain:
        torch.testing.assert_close(plain[name], masked[name], rtol=0, atol=1e-12)


def test_what_would_break_the_promise_is_refused():
    one = {n: v[:1] for n, v in rows([0.0] * 8).items()}
    with pytest.raises(ArgumentError, match="weights='uniform'"):
        privacy()(0.4).add(torch.tensor([0.2]), one)
    with pytest.raises(ArgumentError, match="'grad_sq' has no bound"):
        privacy()(0.4).add(torch.tensor([0.1]), {"grad_sq": torch.zeros(1)})
    with pytest.raises(ArgumentError, match="'loss' has no bound"):
        privacy()(0.4).add(torch.tensor([0.1]), {"loss": torch.zeros(1, 5)})
    crowd = privacy()(0.4)
    with pytest.raises(ArgumentError, match="5 rows were added for 4 clients"):
        crowd.add(torch.full((5,), 0.1), {"loss": torch.zeros(5)})
    private = privacy()
    mean(private)
    with pytest.raises(ArgumentError, match="releases 'loss' twice"):
        mean(private, what="again")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise": -1.0}, "noise"),
        ({"cohort": 11}, "at most the number of clients, 10"),
        ({"cohort": 0}, "cohort"),
    ],
)
def test_bad_settings_of_privacy(change, said):
    with pytest.raises(ArgumentError, match=said):
        privacy(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vectors": {"delta": 0.0}}, "delta"),
        ({"vectors": {}, "scalars": {"loss": (1.0, 1.0)}}, "range"),
        ({"vectors": {"a": 1.0}, "scalars": {"a": (0.0, 1.0)}}, "not both"),
        ({"vectors": {}, "scalars": {"a": (0.0, 1.0)}, "share": 1.0}, "share"),
    ],
)
def test_bad_bounds(change, said):
    with pytest.raises(ArgumentError, match=said):
        Bounds(**change)


def releases(out, rounds, at=None, **more):
    """Run with noise; crash in round `at`. Every fourth round is saved."""

    def crash(event):
        if event.round == at:
            raise CrashError

    made = tf.methods.get("fedavg", lr=0.1)
    bounds = Bounds(vectors={"delta": 1.0}, scalars={"loss": (0.0, 4.0), "lr": (0.0, 1.0)})
    private = Privacy(noise=5.0, clients=4, cohort=4, bounds=bounds, delta=1e-3, **more)
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    fed, model = tf.Federation(x, y, torch.arange(20) // 5), torch.nn.Linear(3, 3)
    given = {"rounds": rounds, "steps": 1, "checkpoint_every": 4, "device": "cpu"}
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    return tf.fit(model, fed, made, out=out, callbacks=[crash], aggregate=private, **given)


def test_a_round_that_is_run_again_is_a_second_release(tmp_path):
    """Noise from the system is other noise the second time, so that the budget counts both."""
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")

    def cost(rounds):
        return epsilon(5.0, rounds=rounds, clients=4, cohort=4, delta=1e-3)

    whole = releases(None, 8)
    assert whole.history[-1]["epsilon"] == cost(8)
    with pytest.raises(CrashError):
        releases(tmp_path / "run", 8, at=6)  # rounds 4, 5 and 6 are not in a checkpoint
    with pytest.raises(CrashError):
        releases(tmp_path / "run", 8, at=4)  # once more, and round 4
    run = releases(tmp_path / "run", 8)
    assert [row["epsilon"] for row in run.history[:4]] == [cost(t + 1) for t in range(4)]
    replays = (3 + 1) + (1 + 1)  # and perhaps a round that was begun
    assert [row["epsilon"] for row in run.history[4:]] == [cost(t + replays) for t in range(5, 9)]
    ended = releases(tmp_path / "run", 8)
    assert ended.history == run.history


def test_before_the_first_checkpoint_too(tmp_path):
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    with pytest.raises(CrashError):
        releases(tmp_path / "run", 3, at=1)
    run = releases(tmp_path / "run", 3)
    want = epsilon(5.0, rounds=3 + 2 + 1, clients=4, cohort=4, delta=1e-3)
    assert run.history[-1]["epsilon"] == want


@pytest.mark.parametrize("within", [False, True])
def test_what_was_sent_before_round_0_is_released_again(within, tmp_path):
    """Moments of columns, a preparation and round 0, in a run that stopped in round 0."""
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    made = tf.methods.get("parfrefl")
    vectors = dict.fromkeys(made.vectors, 1.0)
    scalars = dict.fromkeys((*made.scalars, "loss", "lr"), (0.0, 4.0))
    x, y = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 3
    fed = tf.Federation(x, y, torch.arange(300) // 3, test=(x, y))
    stops = [True]

    def crash(*values):
        if stops and stops.pop():
            raise CrashError
        return 0.0

    def train():
        private = Privacy(
            noise=1.0,
            clients=100,
            cohort=100,
            bounds=Bounds(vectors=vectors, scalars=scalars),
            delta=1e-3,
        )
        given = {
            "rounds": 2,
            "steps": 1,
            "preprocess": tf.Preprocess(scale="standard"),
            "device": "cpu",
            "engine": "loop",
        }
        # In an evaluation there is no row yet, in a callback there is.
        given |= {"evaluate": tf.Evaluate(metrics={"own": crash})} if within else {}
        calls = [] if within else [crash]
        model, out = torch.nn.Linear(2, 3), tmp_path / "run"
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        return tf.fit(model, fed, made, aggregate=private, out=out, callbacks=calls, **given)

    with pytest.raises(CrashError):
        train()
    run = train()
    released = 2 * (1 + 1 + 1) + 1  # the second time round 1 as well
    least = epsilon(1.0, rounds=released, clients=100, cohort=100, delta=1e-3)
    assert run.history[-1]["epsilon"] >= least


def test_noise_from_a_seed_is_the_same_release(tmp_path):
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    with pytest.raises(CrashError):
        releases(tmp_path / "run", 8, at=6, seed=1)
    again, whole = releases(tmp_path / "run", 8, seed=1), releases(None, 8, seed=1)
    assert torch.equal(again.x, whole.x)
    assert again.history[-1]["epsilon"] == whole.history[-1]["epsilon"]


def test_secret_cohorts_need_uniform_draws_and_no_memory():
    """Refused before round 0, not at the first evaluation."""
    pytest.importorskip("dp_accounting", reason="needs tunefree[privacy]")
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    fed, model = tf.Federation(x, y, torch.arange(40) // 5), torch.nn.Linear(3, 3)
    scalars = {"loss": (0.0, 4.0), "lr": (0.0, 1.0)}
    bounds = Bounds(vectors={"delta": 1.0, "c": 1.0}, scalars=scalars)
    given = {"noise": 5.0, "clients": 8, "cohort": 4, "bounds": bounds, "delta": 1e-3}
    private = Privacy(**given, cohorts="secret")
    run = {"rounds": 2, "steps": 1, "cohort": 4, "aggregate": private, "eval_every": 2}
    with pytest.raises(ArgumentError, match="clients with a memory"):
        tf.fit(model, fed, "scaffold", callbacks=[lambda e: pytest.fail("a round was run")], **run)
    for faults in ("available=4/0.5", "stale=0.5,delay=2"):
        with pytest.raises(ArgumentError, match="drawn from some of the clients only"):
            tf.fit(model, fed, "fedavg", scenario=tf.Scenario(faults=faults), **run)
