"""The package against the oracles, at every round, float64, through the public API alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tunefree as tf
import tunefree.core.random
import tunefree.data.batches
from oracle import cases, problems
from oracle import methods as m

SEED = 5


@pytest.fixture(params=cases.PROBLEMS)
def problem(request):
    return cases.PROBLEMS[request.param]()


def module(problem, x0):
    """A torch module whose parameters, in order, are the flat vector x0."""
    if isinstance(problem, problems.Softmax):
        model = torch.nn.Linear(problem.features, problem.classes)
    else:
        model = torch.nn.Linear(problem.d, 1, bias=False)
    model = model.double()
    torch.nn.utils.vector_to_parameters(torch.tensor(x0), model.parameters())
    return model


def federation(problem, order=None):
    order = np.arange(len(problem.x)) if order is None else order
    y = problem.y if isinstance(problem, problems.Softmax) else problem.y[:, None]
    return tf.Federation(problem.x[order], y[order], problem.owner[order])


def fit(problem, x0, method, *, cohort, rounds=cases.ROUNDS, fed=None, **work):
    """What the package did: the server point, the output and the history row of every round."""
    seen = []

    def watch(event):
        point, output = (torch.as_tensor(v).clone().cpu().numpy() for v in (event.x, event.output))
        seen.append((int(event.round), point, output, dict(event.row)))

    settings = {
        "loss": "cross_entropy" if isinstance(problem, problems.Softmax) else "mse",
        "steps": cases.STEPS,
        "batch": None,
    } | work
    if "epochs" in work:
        del settings["steps"]
    tf.fit(
        module(problem, x0),
        federation(problem) if fed is None else fed,
        method=method,
        rounds=rounds,
        cohort=cohort,
        seed=SEED,
        dtype=torch.float64,
        eval_every=1,
        device="cpu",
        callbacks=[watch],
        **settings,
    )
    assert [row[0] for row in seen] == list(range(rounds))
    return [row[1] for row in seen], [row[2] for row in seen], [row[3] for row in seen]


def cohorts(problem, size, rounds=cases.ROUNDS):
    return [tunefree.random.cohort(SEED, t, problem.clients, size).tolist() for t in range(rounds)]


def drawn(problem, groups, **cut):
    """The package's batches as the oracle's `batch(t, i, k)`, and each client's number of steps."""
    rows, steps = {}, {}
    size, start = np.array(problem.sizes), np.array(problem.start)
    for t, ids in enumerate(groups):
        draw = tunefree.data.batches.draw_batches(
            SEED,
            t,
            torch.tensor(ids),
            torch.tensor(size[ids]),
            torch.tensor(start[ids]),
            tunefree.data.batches.BatchPlan(**cut),
        )
        for j, i in enumerate(ids):
            steps[i] = int(draw.steps[j])
            for k in range(steps[i]):
                local = draw.index[j, k][draw.mask[j, k].bool()].numpy() - start[i]
                assert len(local) > 0
                assert local.min() >= 0
                assert local.max() < size[i]
                rows[t, i, k] = local
    return lambda t, i, k: rows[t, i, k], [steps.get(i, 0) for i in range(problem.clients)]


def agree(got, expected):
    assert len(got) == len(expected)
    for t, (a, b) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=f"after round {t}")


def follows(got, run):
    """Agree with the oracle's run; refuse a comparison that rounding decides."""
    margin = run.trace[-1].get("margin", np.inf)
    assert margin > 1e-11, f"knife edge ({margin:.0e}) in a line search: change the case"
    agree(got, run.x)


def turns():
    """Every case on both problems, every method in all set-ups: (case, problem, setup)."""
    names = dict.fromkeys(name for name, _ in cases.NAMED.values())
    for name in names:
        of_method = [case for case, (own, _) in cases.NAMED.items() if own == name]
        pairs = [(case, problem) for case in of_method for problem in cases.PROBLEMS]
        for i in range(max(len(pairs), len(cases.SETUPS))):
            yield *pairs[i % len(pairs)], list(cases.SETUPS)[i % len(cases.SETUPS)]


TURNS = list(turns())


@pytest.mark.parametrize(("case", "problem", "setup"), TURNS)
def test_named_methods(case, problem, setup):
    """The iterates, and server step and client step (if it is one number) as used in the round."""
    problem, (name, settings) = cases.PROBLEMS[problem](), cases.NAMED[case]
    size, weights = cases.SETUPS[setup]
    x0 = problems.start(problem)
    expected = cases.oracle(name)(
        problem, x0, cohorts(problem, size), cases.STEPS, weights=weights, **settings
    )
    method = tf.methods.get(name, weights=weights, **settings)
    got, _, rows = fit(problem, x0, method, cohort=size)
    follows(got, expected)
    for key in ("server_step", "lr"):
        if key in expected.trace[0]:
            agree([float(row[key]) for row in rows], [row[key] for row in expected.trace])


def test_every_method_meets_both_problems_and_all_setups():
    for i, known in ((1, cases.PROBLEMS), (2, cases.SETUPS)):
        met = {(cases.NAMED[turn[0]][0], turn[i]) for turn in TURNS}
        assert met == {(name, one) for name, _ in cases.NAMED.values() for one in known}
    assert {(case, problem) for case, problem, _ in TURNS} == {
        (case, problem) for case in cases.NAMED for problem in cases.PROBLEMS
    }


@pytest.mark.parametrize("case", ["fedavg", "fedavgm", "fedprox", "auto"])
def test_clients_count_by_samples_unless_told_otherwise(problem, case):
    name, settings = cases.NAMED[case]
    x0, groups = problems.start(problem), cohorts(problem, 3)
    expected = cases.oracle(name)(problem, x0, groups, cases.STEPS, weights="samples", **settings)
    got, _, _ = fit(problem, x0, tf.methods.get(name, **settings), cohort=3)
    follows(got, expected)


SMALL_BATCHES = {
    name: cases.NAMED[name]
    for name in (
        "fedavg",
        "fedprox",
        "scaffold-I",
        "scaffold-II",
        "fedexp",
        "fedduadam",
        "feddog",
        "feddowg",
        "auto",
    )
}
# Long steps on two separable rows end where only rounding is left to compare: shorter ones here.
SMALL_BATCHES["fedsls-grow"] = ("fedsls", {"max_lr": 0.4})
SMALL_BATCHES["fedsls-reset"] = ("fedsls", {"max_lr": 0.5, "c": 0.5, "reset": "reset"})


@pytest.mark.parametrize("case", SMALL_BATCHES)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_minibatches(problem, case, weights):
    name, settings = SMALL_BATCHES[case]
    x0, groups = problems.start(problem), cohorts(problem, 4)
    batch, _ = drawn(problem, groups, batch=2, steps=5, epochs=None)
    expected = cases.oracle(name)(problem, x0, groups, 5, weights=weights, batch=batch, **settings)
    method = tf.methods.get(name, weights=weights, **settings)
    got, _, _ = fit(problem, x0, method, cohort=4, batch=2, steps=5)
    follows(got, expected)


@pytest.mark.parametrize("case", SMALL_BATCHES)
def test_unequal_steps(problem, case):
    """Two epochs of batches of 4: client i takes 2 ceil(n_i / 4) steps, the last ones short."""
    name, settings = SMALL_BATCHES[case]
    settings = settings | {"weights": "uniform"}
    x0, groups = problems.start(problem), cohorts(problem, 4)
    batch, steps = drawn(problem, groups, batch=4, steps=None, epochs=2)
    for i in {i for ids in groups for i in ids}:
        assert steps[i] == 2 * -(-problem.sizes[i] // 4)
    expected = cases.oracle(name)(problem, x0, groups, steps, batch=batch, **settings)
    got, _, _ = fit(problem, x0, tf.methods.get(name, **settings), cohort=4, batch=4, epochs=2)
    follows(got, expected)


SCHEDULES = {
    "cosine": [("cosine", 0.1)],
    "exponential:0.9": [("exponential", 0.9)],
    "linear:0.2": [("linear", 0.2)],
    "linear:0.2+hold:0.5": [("linear", 0.2, 0.5)],
    "warmup:3": [("warmup", 3)],
    "cosine+warmup:2": [("cosine", 0.1), ("warmup", 2)],
}
EVERYTHING = {"schedule": "cosine+warmup:2", "weight_decay": 1e-2, "clip": 0.5}


@pytest.mark.parametrize("case", ["fedavg", "fedprox", "scaffold-II", "fedexp", "fedduadagrad"])
@pytest.mark.parametrize(
    "extra",
    [*({"schedule": s} for s in SCHEDULES), {"weight_decay": 1e-2}, {"clip": 0.5}, EVERYTHING],
    ids=[*SCHEDULES, "weight_decay", "clip", "everything"],
)
def test_schedule_decay_and_clip(problem, case, extra):
    name, settings = cases.NAMED[case]
    settings = settings | {"weights": "uniform"}
    x0 = problems.start(problem)
    expected = cases.oracle(name)(
        problem,
        x0,
        cohorts(problem, 3),
        cases.STEPS,
        schedule=SCHEDULES[extra["schedule"]] if "schedule" in extra else (),
        decay=extra.get("weight_decay", 0.0),
        clip=extra.get("clip"),
        **settings,
    )
    got, _, rows = fit(problem, x0, tf.methods.get(name, **settings, **extra), cohort=3)
    follows(got, expected)
    agree([float(row["lr"]) for row in rows], [row["lr"] for row in expected.trace])


@pytest.mark.parametrize("name", ["fedsls", "fedexpsls"])
def test_weight_decay_is_inside_the_line_search(problem, name):
    x0 = problems.start(problem)
    expected = cases.oracle(name)(problem, x0, cohorts(problem, 3), cases.STEPS, decay=0.3)
    got, _, _ = fit(problem, x0, tf.methods.get(name, weight_decay=0.3), cohort=3)
    follows(got, expected)


# id: (parts of a tf.Method, the oracle's step, server, and arguments); made anew for every test
def compositions():
    clients, server = tf.clients, tf.server
    armijo = {"c": 0.2, "backtrack": 0.8, "max_lr": 2.0, "max_backtracks": 50}
    return {
        "momentum": (
            {
                "direction": clients.Plain(),
                "step": clients.Momentum(lr=0.03, momentum=0.8),
                "server": server.Average(server_lr=0.9),
            },
            (m.Momentum(0.03, 0.8), m.Average(0.9), {}),
        ),
        "adam": (
            {
                "direction": clients.Plain(),
                "step": clients.Adam(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-6),
                "server": server.Average(server_lr=1.0),
            },
            (m.Adam(0.03, 0.8, 0.95, 1e-6), m.Average(), {}),
        ),
        "prox-adam-momentum": (
            {
                "direction": clients.Proximal(mu=0.6),
                "step": clients.Adam(lr=0.03, beta1=0.9, beta2=0.999, eps=1e-8),
                "server": server.Momentum(server_lr=0.5, momentum=0.7),
            },
            (m.Adam(0.03), m.ServerMomentum(0.5, 0.7), {"mu": 0.6}),
        ),
        "scaffold-constant-fedexp": (
            {
                "direction": clients.Scaffold(),
                "step": clients.Constant(lr=0.05),
                "server": server.FedExP(eps=1e-3),
            },
            (m.Constant(0.05), m.FedExP(1e-3), {"control": "II"}),
        ),
        "scaffold-momentum-fedexpm": (
            {
                "direction": clients.Scaffold(option="II"),
                "step": clients.Momentum(lr=0.03, momentum=0.6),
                "server": server.FedExPM(eps=1e-3, momentum=0.5),
            },
            (m.Momentum(0.03, 0.6), m.FedExPM(1e-3, 0.5), {"control": "II"}),
        ),
        "scaffold-armijo-fedduadam": (
            {
                "direction": clients.Scaffold(option="II"),
                "step": clients.Armijo(reset="grow", growth=1.5, **armijo),
                "server": server.FedDuAdam(beta1=0.9, beta2=0.99, eps=1e-9, eps_g=1e-2),
            },
            (
                m.Armijo(reset="grow", growth=1.5, **armijo),
                m.FedDuAdam(0.9, 0.99, 1e-9, 1e-2),
                {"control": "II"},
            ),
        ),
        "scaffold-I-armijo-average": (
            {
                "direction": clients.Scaffold(option="I"),
                "step": clients.Armijo(reset="reset", growth=2.0, **armijo),
                "server": server.Average(server_lr=1.0),
            },
            (m.Armijo(reset="reset", **armijo), m.Average(), {"control": "I"}),
        ),
        "prox-armijo-fedexp": (
            {
                "direction": clients.Proximal(mu=0.7),
                "step": clients.Armijo(reset="keep", growth=2.0, **armijo),
                "server": server.FedExP(eps=1e-4, max_server_step=2.0),
            },
            (m.Armijo(reset="keep", **armijo), m.FedExP(1e-4, 2.0), {"mu": 0.7}),
        ),
        "dowg-fedduadagrad": (
            {
                "direction": clients.Plain(),
                "step": clients.DoG(r_rel=1e-2, weighted=True),
                "server": server.FedDuAdagrad(eps=1e-9, eps_g=0.0),
                "output": server.Averaged(gamma=8),
            },
            (m.DoG(1e-2, weighted=True), m.FedDuAdagrad(), {}),
        ),
        "dog-fedexp": (
            {
                "direction": clients.Plain(),
                "step": clients.DoG(r_rel=3e-2, weighted=False),
                "server": server.FedExP(eps=0.0),
            },
            (m.DoG(3e-2), m.FedExP(0.0), {}),
        ),
        "scaffold-dowg-fedduadam": (
            {
                "direction": clients.Scaffold(),
                "step": clients.DoG(r_rel=3e-2, weighted=True),
                "server": server.FedDuAdam(beta1=0.5, beta2=0.9, eps=1e-6, eps_g=1e-3),
            },
            (m.DoG(3e-2, weighted=True), m.FedDuAdam(0.5, 0.9, 1e-6, 1e-3), {"control": "II"}),
        ),
        "live-dog-average": (
            {"step": clients.DoG(r_rel=1e-2, live=True), "server": server.Average(server_lr=0.9)},
            (m.LiveDoG(1e-2), m.Average(0.9), {}),
        ),
        "live-dowg-average": (
            {"step": clients.DoG(r_rel=3e-2, weighted=True, live=True)},
            (m.LiveDoG(3e-2, weighted=True), m.Average(), {}),
        ),
        "counted-live-dowg-fedexp": (
            {
                "step": clients.DoG(r_rel=3e-2, weighted=True, live=True, asked=False),
                "server": server.FedExP(eps=1e-3),
            },
            (m.LiveDoG(3e-2, weighted=True, asked=False), m.FedExP(1e-3), {}),
        ),
        "scaffold-live-dog-fedduadam-move": (
            {
                "direction": clients.Scaffold(),
                "step": clients.DoG(r_rel=3e-2, live=True),
                "server": server.FedDuAdam(beta1=0.5, beta2=0.9, eps_g=1e-3, max_move=0.8),
            },
            (
                m.LiveDoG(3e-2),
                m.FedDuAdam(0.5, 0.9, 1e-9, 1e-3, max_move=0.8),
                {"control": "II"},
            ),
        ),
        "prox-live-dowg-fedexp": (
            {
                "direction": clients.Proximal(mu=0.5),
                "step": clients.DoG(r_rel=3e-2, weighted=True, live=True),
                "server": server.FedExP(eps=1e-3),
            },
            (m.LiveDoG(3e-2, weighted=True), m.FedExP(1e-3), {"mu": 0.5}),
        ),
        "fedduadagrad-move": (
            {
                "step": clients.Constant(lr=0.05),
                "server": server.FedDuAdagrad(eps_g=1e-3, max_move=1.0),
            },
            (m.Constant(0.05), m.FedDuAdagrad(1e-9, 1e-3, max_move=1.0), {}),
        ),
        "fedduadam-move": (
            {
                "step": clients.Constant(lr=0.05),
                "server": server.FedDuAdam(max_move=0.6),
            },
            (m.Constant(0.05), m.FedDuAdam(max_move=0.6), {}),
        ),
        "live-dowg-fedduadagrad-move": (
            {
                "step": clients.DoG(weighted=True, live=True),
                "server": server.FedDuAdagrad(max_move=1.0),
                "output": server.Averaged(),
            },
            (m.LiveDoG(weighted=True), m.FedDuAdagrad(max_move=1.0), {}),
        ),
    }


COMPOSITIONS = (
    "momentum",
    "adam",
    "prox-adam-momentum",
    "scaffold-constant-fedexp",
    "scaffold-momentum-fedexpm",
    "scaffold-armijo-fedduadam",
    "scaffold-I-armijo-average",
    "prox-armijo-fedexp",
    "dowg-fedduadagrad",
    "dog-fedexp",
    "scaffold-dowg-fedduadam",
    "live-dog-average",
    "live-dowg-average",
    "counted-live-dowg-fedexp",
    "scaffold-live-dog-fedduadam-move",
    "prox-live-dowg-fedexp",
    "fedduadagrad-move",
    "fedduadam-move",
    "live-dowg-fedduadagrad-move",
)


@pytest.mark.parametrize("case", ["feddog", "feddowg", "auto", "scaffold-I"])
def test_weight_decay_belongs_to_every_clients_loss(problem, case):
    """Where a gradient over all data is asked for, too."""
    name, settings = cases.NAMED[case]
    settings = settings | {"weights": "uniform"}
    x0 = problems.start(problem)
    groups = cohorts(problem, 3)
    expected = cases.oracle(name)(problem, x0, groups, cases.STEPS, decay=0.05, **settings)
    method = tf.methods.get(name, weight_decay=0.05, **settings)
    got, _, _ = fit(problem, x0, method, cohort=3)
    follows(got, expected)


@pytest.mark.parametrize("case", ["feddog", "feddowg", "auto"])
@pytest.mark.parametrize("schedule", ["linear:0", "cosine:0.1"])
def test_a_schedule_multiplies_steps_that_follow_from_distances(problem, case, schedule):
    name, settings = cases.NAMED[case]
    settings = settings | {"weights": "uniform"}
    kind, number = schedule.split(":")
    x0, groups = problems.start(problem), cohorts(problem, 3)
    terms = [(kind, float(number))]
    expected = cases.oracle(name)(problem, x0, groups, cases.STEPS, schedule=terms, **settings)
    method = tf.methods.get(name, schedule=schedule, **settings)
    got, _, _ = fit(problem, x0, method, cohort=3)
    follows(got, expected)


def composition_turns():
    """Every composition on both problems and with three cohorts."""
    first, second = cases.PROBLEMS
    for name in COMPOSITIONS:
        yield name, first, 3, "uniform"
        yield name, second, 4, "samples"
        yield name, first, 7, "uniform"
        first, second = second, first


@pytest.mark.parametrize(("name", "problem", "size", "weights"), list(composition_turns()))
def test_compositions(name, problem, size, weights):
    problem, (parts, (step, server, extra)) = cases.PROBLEMS[problem](), compositions()[name]
    x0, groups = problems.start(problem), cohorts(problem, size)
    expected = m.federated(problem, x0, groups, cases.STEPS, step, server, weights=weights, **extra)
    got, _, rows = fit(problem, x0, tf.Method(weights=weights, **parts), cohort=size)
    follows(got, expected)
    agree([row["server_step"] for row in rows], [row["server_step"] for row in expected.trace])
    if isinstance(step, m.LiveDoG):
        agree([row["lr"] for row in rows], [row["lr"] for row in expected.trace])


@pytest.mark.parametrize(
    "name",
    [
        "scaffold-armijo-fedduadam",
        "dowg-fedduadagrad",
        "live-dog-average",
        "counted-live-dowg-fedexp",
        "scaffold-live-dog-fedduadam-move",
        "live-dowg-fedduadagrad-move",
    ],
)
def test_compositions_on_unequal_steps(problem, name):
    parts, (step, server, extra) = compositions()[name]
    x0, groups = problems.start(problem), cohorts(problem, 4)
    batch, steps = drawn(problem, groups, batch=4, steps=None, epochs=1)
    expected = m.federated(problem, x0, groups, steps, step, server, batch=batch, **extra)
    got, _, _ = fit(problem, x0, tf.Method(**parts), cohort=4, batch=4, epochs=1)
    follows(got, expected)


@pytest.mark.parametrize(
    "name", ["fedduadagrad-move", "fedduadam-move", "live-dowg-fedduadagrad-move"]
)
def test_the_longest_move_is_met_and_missed(problem, name):
    """The comparisons above see both sides of the bound."""
    _, (step, server, extra) = compositions()[name]
    lengths = []

    def watched(x, dbar, q):
        new, eta = server(x, dbar, q)
        lengths.append(np.linalg.norm(new - x) / (server.max_move * np.sqrt(q)))
        return new, eta

    groups = cohorts(problem, 3)
    m.federated(problem, problems.start(problem), groups, cases.STEPS, step, watched, **extra)
    assert min(lengths) < 0.99
    assert max(lengths) == pytest.approx(1, rel=1e-12)


def test_every_composition_is_run():
    assert set(COMPOSITIONS) == set(compositions())


def plain(output):
    return tf.Method(
        direction=tf.clients.Plain(),
        step=tf.clients.Constant(lr=0.05),
        server=tf.server.FedExP(eps=1e-3),
        output=output,
    )


def test_outputs(problem):
    x0, groups = problems.start(problem), cohorts(problem, 3, rounds=8)
    expected = m.fedexp(problem, x0, groups, cases.STEPS, lr=0.05).x

    def outputs(part):
        points, output, _ = fit(problem, x0, plain(part), cohort=3, rounds=8)
        agree(points, expected)  # training goes on from the un-averaged point
        return output

    agree(outputs(tf.server.Last()), expected)
    agree(outputs(tf.server.Averaged(gamma=8)), m.polynomial(expected, 8))
    agree(outputs(tf.server.Averaged(gamma=2)), m.polynomial(expected, 2))
    # After the first round the other one of the last two is x0, or there is none yet.
    pairs = outputs(tf.server.LastTwo())
    agree(pairs[1:], m.last_two(x0, expected)[1:])
    either = (m.last_two(x0, expected)[0], expected[0])
    assert any(np.allclose(pairs[0], point, rtol=1e-9, atol=1e-11) for point in either)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_averaged_output_of_auto(problem, weights):
    x0 = problems.start(problem)
    expected = m.auto(problem, x0, cohorts(problem, 3), cases.STEPS, weights=weights)
    got, output, _ = fit(problem, x0, tf.methods.get("auto", weights=weights), cohort=3)
    follows(got, expected)
    agree(output, m.polynomial(expected.x, 8))


def test_feddowgdua_is_the_composition_under_comparison():
    parts, _ = compositions()["live-dowg-fedduadagrad-move"]
    assert tf.methods.get("feddowgdua") == tf.Method(name="feddowgdua", **parts)


def test_auto_is_one_of_two_methods():
    shallow, deep = tf.methods.get("feddowgdua"), tf.methods.get("fedrace")
    auto = tf.methods.get("auto")
    last = tf.clients.Schedule("linear", floor=0.0, hold=0.75)
    assert replace(auto, deep=None) == replace(shallow, name="auto", weights=None, schedule=last)
    assert auto.for_deep_networks() == replace(deep, name="auto", weights=None)
    assert shallow.for_deep_networks() == shallow
    clipped, other = replace(auto, clip=0.5), replace(auto, server=tf.server.Average())
    assert clipped.for_deep_networks() == replace(deep, name="auto", weights=None, clip=0.5)
    assert other.for_deep_networks() == other
    with pytest.raises(tf.core.errors.ArgumentError, match="schedule='cosine' with ServerRate"):
        tf.methods.get("auto", schedule="cosine").for_deep_networks()


@pytest.mark.parametrize(("rounds", "size"), [(9, 3), (30, 4), (22, 7)])
def test_race(problem, rounds, size):
    """The rates of all arms, the judgement between them, and the run after them."""
    x0, groups = problems.start(problem), cohorts(problem, size, rounds)
    expected = m.fedrace(problem, x0, groups, cases.STEPS)
    got, output, rows = fit(
        problem, x0, tf.methods.get("fedrace", output="last"), cohort=size, rounds=rounds
    )
    agree([row["lr"] for row in rows], [row["lr"] for row in expected.trace])
    assert [row.get("arm") for row in rows] == [row["arm"] for row in expected.trace]
    assert max(row["arm"] or 0 for row in expected.trace) >= 2
    agree(got, expected.x)
    began = sum(row["arm"] is not None for row in expected.trace)
    agree(output[began:], expected.x[began:])


def test_a_race_from_the_minimum(problem):
    """Every arm raises f, some of them by less than others."""
    x0, everyone = problems.start(problem), range(problem.clients)
    for _ in range(3000):
        x0 = x0 - 0.1 * np.mean([problem.grad(i, x0) for i in everyone], axis=0)
    groups = cohorts(problem, 3, 30)
    expected = m.fedrace(problem, x0, groups, cases.STEPS)
    got, _, rows = fit(problem, x0, tf.methods.get("fedrace"), cohort=3, rounds=30)
    agree([row["lr"] for row in rows], [row["lr"] for row in expected.trace])
    assert next(row["lr"] for row in rows if "arm" not in row) < 0.05
    agree(got, expected.x)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_dogs_state_on_the_server(problem, weighted, live, tmp_path):
    """z, r, v: from the same formulas in both forms."""
    x0, groups = problems.start(problem), cohorts(problem, 3)
    step = (m.LiveDoG if live else m.DoG)(3e-2, weighted)
    expected = m.federated(problem, x0, groups, cases.STEPS, step, m.FedExP())
    method = tf.Method(
        step=tf.clients.DoG(3e-2, weighted=weighted, live=live), server=tf.server.FedExP()
    )
    got, _, _ = fit(problem, x0, method, cohort=3, out=tmp_path)
    follows(got, expected)
    _, state, _ = tf.training.folder.RunFolder(tmp_path).load_checkpoint()
    for name, value in {"z": step.z, "r": step.r, "v": step.v}.items():
        np.testing.assert_allclose(state[f"step.{name}"].numpy(), value, rtol=1e-9, err_msg=name)


def test_order_of_the_rows_does_not_matter(problem):
    x0 = problems.start(problem)
    order = np.random.default_rng(0).permutation(len(problem.x))
    expected = m.fedexpsls(problem, x0, cohorts(problem, 3), cases.STEPS)
    fed = federation(problem, order)
    got, _, _ = fit(problem, x0, tf.methods.get("fedexpsls"), cohort=3, fed=fed)
    follows(got, expected)


def test_callable_loss():
    problem = problems.least_squares()
    x0 = problems.start(problem)
    expected = m.scaffold(problem, x0, cohorts(problem, 3), cases.STEPS, lr=0.05)
    fed = tf.Federation(problem.x, problem.y, problem.owner)

    def squared(output, target):
        return (output.squeeze(-1) - target).square()

    method = tf.methods.get("scaffold", lr=0.05)
    got, _, _ = fit(problem, x0, method, cohort=3, fed=fed, loss=squared)
    follows(got, expected)


@pytest.mark.parametrize("case", ["fedavgm", "fedexpm", "fedduadagrad", "fedduadam", "feddowg"])
def test_server_memory_over_many_rounds(problem, case):
    name, settings = cases.NAMED[case]
    settings = settings | {"weights": "uniform"}
    x0 = problems.start(problem)
    groups = cohorts(problem, 3, rounds=15)
    expected = cases.oracle(name)(problem, x0, groups, 2, **settings)
    got, _, _ = fit(problem, x0, tf.methods.get(name, **settings), cohort=3, rounds=15, steps=2)
    follows(got, expected)
