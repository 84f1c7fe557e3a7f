"""The package against `oracle.proposed`, at every round, float64, through the public API alone."""

import pytest
import torch

import tunefree as tf
import tunefree.data.batches
from oracle import cases, problems
from oracle import proposed_cases as named
from oracle.test_methods import (
    SCHEDULES,
    SEED,
    agree,
    cohorts,
    drawn,
    federation,
    fit,
    follows,
)


def penalty(kind, *numbers):
    names = {
        "l1": (tf.penalties.L1, ("weight",)),
        "l2": (tf.penalties.L2, ("weight",)),
        "elastic": (tf.penalties.ElasticNet, ("l1", "l2")),
        "mcp": (tf.penalties.MCP, ("weight", "gamma")),
        "scad": (tf.penalties.SCAD, ("weight", "a")),
    }
    make, words = names[kind]
    return make(**dict(zip(words, numbers, strict=True)))


def made(case, **common):
    """The package's method of a case."""
    name, settings = named.NAMED[case]
    settings = dict(settings)
    if "penalty" in settings:
        settings["penalty"] = penalty(*settings["penalty"])
    if "compressor" in settings:
        kind, ratio = settings["compressor"]
        assert kind == "topk"
        settings["compressor"] = tf.wire.TopK(ratio)
    return tf.methods.get(name, **settings, **common)


def data(case, problem):
    """The clients' rows, and the server's own where the case asks for them."""
    if named.NAMED[case][1].get("global_loss") != "server":
        return federation(problem)
    own = named.held(problem)
    y, held = (p.y if isinstance(p, problems.Softmax) else p.y[:, None] for p in (problem, own))
    return tf.Federation(problem.x, y, problem.owner, held=(own.x, held))


# The history's word for it, and the oracle's.
REPORTED = {
    "mu": "mu",
    "lr": "lr",
    "server_step": "server_step",
    "distance": "r",
    "global_loss": "f",
    "merged": "accept",
}


def compare(case, problem, expected, method, **work):
    """Every x, every output, and the scalars of every round."""
    x0 = problems.start(problem)
    got, outputs, rows = fit(problem, x0, method, fed=data(case, problem), **work)
    follows(got, expected)
    agree(outputs, expected.memory["output"])
    for key, name in REPORTED.items():
        if name in expected.trace[0]:
            agree([float(row[key]) for row in rows], [float(row[name]) for row in expected.trace])


def batches(problem, groups, **cut):
    """As `drawn`, with those of the pass before the first round, which everyone takes part in."""
    later, _ = drawn(problem, groups, **cut)
    rows, steps = {}, []
    size, start = torch.tensor(problem.sizes), torch.tensor(problem.start)
    everyone = torch.arange(problem.clients)
    draw = tunefree.data.batches.draw_batches(
        SEED, -1, everyone, size, start, tunefree.data.batches.BatchPlan(**cut)
    )
    for i in range(problem.clients):
        steps.append(int(draw.steps[i]))
        for k in range(steps[i]):
            rows[i, k] = draw.index[i, k][draw.mask[i, k].bool()].numpy() - problem.start[i]
            assert len(rows[i, k]) > 0
    return lambda t, i, k: rows[i, k] if t == -1 else later(t, i, k), steps


def everyone_if(case, problem, size):
    return problem.clients if case in named.FULL else size


@pytest.mark.parametrize("case", named.NAMED)
def test_named_methods(case):
    problem, size, weights = named.setup(case)
    x0, groups = problems.start(problem), cohorts(problem, size)
    steps = named.ENOUGH if case in named.EXACT else cases.STEPS
    expected = named.run(case, problem, x0, groups, steps, weights=weights)
    compare(case, problem, expected, made(case, weights=weights), cohort=size, steps=steps)


def test_the_best_is_both_kept_and_replaced():
    """The comparison above sees both sides, of the cut of D at 0 too."""
    problem, size, _ = named.setup("lod-far")
    groups = cohorts(problem, size)
    trace = named.run("lod-far", problem, problems.start(problem), groups, cases.STEPS).trace
    assert {row["accept"] for row in trace} == {True, False}
    assert {row["D"] > 0 for row in trace} == {True, False}


@pytest.mark.parametrize("case", ["lod", "wlod-server", "comparfrefl", "fedcanon-mcp"])
def test_everyone(case):
    problem = problems.softmax()
    x0, groups = problems.start(problem), cohorts(problem, problem.clients)
    expected = named.run(case, problem, x0, groups, cases.STEPS, weights="samples")
    compare(case, problem, expected, made(case, weights="samples"), cohort=None)


@pytest.mark.parametrize("case", named.SMALL_BATCHES)
def test_minibatches(case):
    problem = problems.softmax()
    x0, size = problems.start(problem), everyone_if(case, problem, 4)
    groups = cohorts(problem, size)
    batch, _ = batches(problem, groups, batch=2, steps=5, epochs=None)
    expected = named.run(case, problem, x0, groups, 5, weights="samples", batch=batch)
    method = made(case, weights="samples")
    compare(case, problem, expected, method, cohort=size, batch=2, steps=5)


@pytest.mark.parametrize("case", named.SMALL_BATCHES)
def test_unequal_steps(case):
    """Two epochs of batches of 4: client i takes 2 ceil(n_i / 4) steps, the last ones short."""
    problem = problems.least_squares()
    x0, size = problems.start(problem), everyone_if(case, problem, 4)
    groups = cohorts(problem, size)
    batch, steps = batches(problem, groups, batch=4, steps=None, epochs=2)
    assert steps == [2 * -(-n // 4) for n in problem.sizes]
    expected = named.run(case, problem, x0, groups, steps, batch=batch)
    compare(case, problem, expected, made(case), cohort=size, batch=4, epochs=2)


@pytest.mark.parametrize("case", named.COMMON)
def test_decay_clip_and_schedule(case):
    problem = problems.least_squares()
    x0, groups = problems.start(problem), cohorts(problem, 3)
    common, extra = {"decay": 0.3, "clip": 2.0}, {"weight_decay": 0.3, "clip": 2.0}
    if "canon" in case:
        extra["schedule"] = "cosine+warmup:2"
        common["schedule"] = SCHEDULES[extra["schedule"]]
    expected = named.run(case, problem, x0, groups, cases.STEPS, **common)
    compare(case, problem, expected, made(case, **extra), cohort=3)


@pytest.mark.parametrize("case", ["parfrefl", "comparfrefl-ratio"])
def test_schedules_of_long_runs(case):
    """T > SK: beta = sqrt(SK/T) is below 1."""
    problem = problems.softmax()
    x0, groups = problems.start(problem), cohorts(problem, 2, rounds=10)
    expected = named.run(case, problem, x0, groups, 2)
    assert expected.trace[0]["beta"] < 0.7
    compare(case, problem, expected, made(case), cohort=2, steps=2, rounds=10)


@pytest.mark.parametrize("case", ["wlod", "comparfrefl-set", "fedcanon-l1"])
def test_memory_over_many_rounds(case):
    problem = problems.softmax()
    x0, groups = problems.start(problem), cohorts(problem, 3, rounds=15)
    expected = named.run(case, problem, x0, groups, 2)
    compare(case, problem, expected, made(case), cohort=3, rounds=15, steps=2)


# Section 8: methods that are another one, with everyone in every round.

IDENTITIES = {
    "fedcanon-scaffold": ("fedcanon", {}),
    "fedcanon-alpha-scaffold": ("fedcanon", {"alpha": 0.15}),
    "scaffoldm-scaffold": ("scaffoldm", {"beta": 1.0}),
    "fedavgcm-fedavg": ("fedavgcm", {"beta": 1.0}),
    "fedda-fedavg": ("fedda", {}),
    "fedmid-fedavg": ("fedmid", {}),
    "mimelite-fedavg": ("mimelite", {"momentum": 0.0}),
    "feddua-fedexpm": ("feddua", {}),
}
OTHERS = {
    "fedcanon-alpha-scaffold": {"server_lr": 0.15 / (0.05 * cases.STEPS)},
    "feddua-fedexpm": {"eps": 0.0, "momentum": 0.0},  # FedExP without its floor
}


@pytest.mark.parametrize("pair", IDENTITIES)
def test_identities(pair):
    """The second is taken from its own oracle."""
    problem = problems.least_squares()
    x0, groups = problems.start(problem), cohorts(problem, problem.clients)
    other = cases.oracle(pair.split("-")[-1])
    expected = other(problem, x0, groups, cases.STEPS, lr=0.05, **OTHERS.get(pair, {}))
    name, settings = IDENTITIES[pair]
    method = tf.methods.get(name, lr=0.05, **settings)
    agree(fit(problem, x0, method, cohort=None)[0], expected.x)


def test_fedcanon_two_is_fedcanon():
    """With one proximal map a round for each client instead of one for all."""
    problem = problems.softmax()
    x0 = problems.start(problem)
    settings = {"lr": 0.05, "penalty": tf.penalties.SCAD(0.3)}
    (one, _, rows), (two, _, more) = (
        fit(problem, x0, tf.methods.get(name, **settings), cohort=None)
        for name in ("fedcanon", "fedcanon2")
    )
    agree(one, two)
    assert [row["proxes"] for row in rows] == [1] * cases.ROUNDS
    assert [row["proxes"] for row in more] == [problem.clients] * cases.ROUNDS


def test_comparfrefl_that_keeps_everything_is_parfrefl():
    problem = problems.softmax()
    x0 = problems.start(problem)
    plain = fit(problem, x0, tf.methods.get("parfrefl", beta=0.5), cohort=3)[0]
    kept = tf.methods.get("comparfrefl", beta=0.5, compressor=tf.wire.TopK(1.0))
    agree(fit(problem, x0, kept, cohort=3)[0], plain)


@pytest.mark.parametrize("name", ["parfrefl", "comparfrefl"])
def test_the_size_of_the_losses_does_not_matter(name):
    problem = problems.least_squares()
    x0, method = problems.start(problem), tf.methods.get(name, beta=0.5)

    def scaled(output, target):
        return 40 * (output - target).square().mean(-1)

    plain = fit(problem, x0, method, cohort=3)[0]
    agree(fit(problem, x0, method, cohort=3, loss=scaled)[0], plain)
