"""Sections 2, 4, 7.1, 7.3 and 8 of the algorithms: what must be equal, and where it must end."""

import pytest
import torch

import tunefree as tf
from helpers import Quadratics, assert_close
from tunefree.clients import Adam, Armijo, LocalObjective, Plan, Round, StepContext
from tunefree.core.layout import Layout
from tunefree.methods.fedprodigy import Prodigy
from tunefree.server import FedDuAdagrad, FedDuAdam, FedExP, FedExPM

START = [1.0, -2.0]
get = tf.methods.get


@pytest.fixture
def problem():
    return Quadratics()


# Methods that are another one.


def test_fedavg_is_fedprox_without_pull_and_fedsls_without_search(problem):
    plain = problem.fit(get("fedavg", lr=0.05), START, cohort=2)
    assert torch.equal(problem.fit(get("fedprox", lr=0.05, mu=0.0), START, cohort=2).x, plain.x)
    untested = get("fedsls", max_lr=0.05, max_backtracks=0)
    assert torch.equal(problem.fit(untested, START, cohort=2).x, plain.x)


def test_first_trial_accepted(problem):
    """max_lr <= 2 (1 - c) / L: the search never has to shorten a step."""
    lr = 2 * (1 - 0.1) / problem.smoothness
    searched = problem.fit(get("fedexpsls", max_lr=lr, eps=0.0), START, cohort=2)
    assert all(row["trials"] == 1 for row in searched.history)
    assert torch.equal(searched.x, problem.fit(get("fedexp", lr=lr, eps=0.0), START, cohort=2).x)
    searched = problem.fit(get("fedsls", max_lr=lr), START, cohort=2)
    assert torch.equal(searched.x, problem.fit(get("fedavg", lr=lr), START, cohort=2).x)


def test_only_the_extrapolated_line_search_averages_its_last_iterates(problem):
    """P3: Algorithm 4 returns the last iterate; the released code averages FedExpSLS's last two."""
    given = {"max_lr": 0.05, "max_backtracks": 0}
    for name, shipped in (("fedsls", lambda a, b: b), ("fedexpsls", lambda a, b: (a + b) / 2)):
        before, after = (problem.fit(get(name, **given), START, rounds=n) for n in (3, 4))
        assert not torch.equal(before.x, after.x)
        assert_close(after.output, shipped(before.x, after.x))


def test_equal_moves_make_fedexp_plain():
    problem = Quadratics(clients=1)
    problem.a, problem.y = problem.a.repeat(3, 1, 1), problem.y.repeat(3, 1)
    run = problem.fit(get("fedexp", lr=0.05, eps=0.0), START)
    assert [row["server_step"] for row in run.history] == [1.0] * 4
    assert_close(run.x, problem.fit(get("fedavg", lr=0.05), START).x)


@pytest.mark.parametrize("name", ["fedexp", "fedexpsls"])
def test_the_extrapolated_step(problem, name):
    run = problem.fit(get(name, eps=0.0), START, rounds=10)
    assert all(row["server_step"] >= 1 for row in run.history)
    alone = problem.fit(get(name, eps=0.0), START, rounds=10, cohort=1)
    assert [row["server_step"] for row in alone.history] == [1.0] * 10


def test_fedexpm_alone_takes_half_a_step(problem):
    run = problem.fit(get("fedexpm", eps=0.0, lr=0.05), START, rounds=1, cohort=1)
    assert run.history[0]["server_step"] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
def test_one_client_is_local_sgd(name):
    problem = Quadratics(clients=1)
    mu = {"mu": 0.0} if name == "fedprox" else {}
    run = problem.fit(get(name, lr=0.05, **mu), START, rounds=5, steps=3)
    model = problem.model(START)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(15):
        optimiser.zero_grad()
        (model(problem.a[0])[:, 0] - problem.y[0]).square().mean().backward()
        optimiser.step()
    assert_close(run.x, model.weight.detach()[0])


# FedDuA.

PLAN = Plan(clients=4, cohort=4, rounds=5, steps=3.0, layout=Layout(("w",), ((6,),)))
DUALS = {
    "adagrad": FedDuAdagrad(eps=0.0),
    "adagrad-eps": FedDuAdagrad(eps=0.3),
    "adam": FedDuAdam(eps=0.0),
    "adam-eps": FedDuAdam(beta1=0.5, beta2=0.8, eps=0.3),
}


def moves(seed, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(4, 6, generator=draw, dtype=torch.float64)


def means(rows):
    return {"delta": rows.mean(0), "delta_sq": rows.square().sum(1).mean()}


def trajectory(rule, scale=1.0, rounds=4):
    """Every x, and the state after each round."""
    x = torch.zeros(6, dtype=torch.float64)
    state, out = rule.init(x, PLAN), []
    for t in range(rounds):
        new, state, trace = rule.step(x, means(moves(t, scale)), state, Round(PLAN, t), None)
        out.append((x, new, state, trace))
        x = new
    return out


@pytest.mark.parametrize("name", DUALS)
def test_feddua_goes_exactly_m_along_v(name):
    """<v, x+ - x> = m; with the norm that the algorithm box prints it would not be."""
    for t, (x, new, state, trace) in enumerate(trajectory(DUALS[name])):
        mean = means(moves(t))
        v = state.get("v", mean["delta"])
        m = state.get("m", mean["delta_sq"] / 2)
        assert_close(v @ (new - x), m)
        assert float(m) >= 0
        assert float(trace["server_step"]) >= 0


def test_feddua_does_not_see_the_scale_of_its_geometry():
    """In round 0 of FedDuAdam G = sqrt(1 - beta2) |delta|: beta2 must not matter."""
    ends = [trajectory(FedDuAdam(beta2=b, eps=0.0), rounds=1)[0][1] for b in (0.0, 0.5, 0.99)]
    assert_close(ends[1], ends[0])
    assert_close(ends[2], ends[0])


def test_feddua_in_round_0():
    mean = means(moves(0))
    delta, q = mean["delta"], mean["delta_sq"]
    expected = (q / 2) * delta.sign() / delta.abs().sum()
    _, new, _, _ = trajectory(FedDuAdagrad(eps=0.0), rounds=1)[0]
    assert_close(new, expected)
    _, new, state, _ = trajectory(FedDuAdam(beta1=0.9, eps=0.0), rounds=1)[0]
    assert_close(state["v"], 0.1 * delta)
    assert_close(state["m"], 0.05 * q)
    assert_close(new, expected)


def test_fedduadagrad_scales_with_the_moves():
    for (_, one, _, _), (_, other, _, _) in zip(
        trajectory(FedDuAdagrad(eps=0.0)), trajectory(FedDuAdagrad(eps=0.0), 7.0), strict=True
    ):
        assert_close(other, 7.0 * one)


def test_feddua_in_flat_geometry_is_fedexp_without_its_floor():
    x, mean = torch.zeros(6, dtype=torch.float64), means(moves(0))
    delta = mean["delta"]
    new, _, trace = FedDuAdagrad(eps=0.0).step(
        x, mean, {"s": 1 - delta.square()}, Round(PLAN, 0), None
    )
    plain = FedExPM(eps=0.0, momentum=0.0)
    other, _, expected = plain.step(x, mean, plain.init(x, PLAN), Round(PLAN, 0), None)
    assert_close(new, other)
    assert_close(trace["server_step"], expected["server_step"])
    assert_close(delta @ (other - x), mean["delta_sq"] / 2)
    floored, _, step = FedExP(eps=0.0).step(x, mean, {}, Round(PLAN, 0), None)
    if float(expected["server_step"]) >= 1:
        assert_close(floored, other)
    assert float(step["server_step"]) == max(1.0, float(expected["server_step"]))


# SCAFFOLD.


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_scaffold_keeps_the_mean_of_the_controls(tmp_path, option, weights):
    """c = mean over all N of c_i, absent and unseen clients included (their c_i is 0)."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([2, 7, 4, 5, 3])
    x = torch.randn(21, 2, generator=draw, dtype=torch.float64)
    fed = tf.Federation(x, x.sum(1), torch.arange(5).repeat_interleave(sizes))
    method = get("scaffold", lr=0.05, option=option, weights=weights)
    model = torch.nn.Linear(2, 1, bias=False).double()
    tf.fit(
        model, fed, method, rounds=6, cohort=2, epochs=1, batch=2, dtype=torch.float64,
        device="cpu", out=tmp_path,
    )  # fmt: skip
    _, tensors, _ = tf.training.folder.RunFolder(tmp_path).load_checkpoint()
    n = sizes.double()
    share = n / n.sum() if weights == "samples" else torch.full_like(n, 1 / 5)
    share = share[tensors["memory_ids"]]
    own = tensors["memory.direction.control"]
    assert_close(tensors["direction.control"], share @ own)
    assert float(own.norm()) > 0.1


def test_option_two_is_the_mean_local_gradient(tmp_path):
    """c_i+ = c_i - c + (x - y_i) / (K lr); in round 0 that is -delta_i / (K lr)."""
    problem = Quadratics()
    problem.fit(get("scaffold", lr=0.05), START, rounds=1, out=tmp_path)
    _, tensors, _ = tf.training.folder.RunFolder(tmp_path).load_checkpoint()
    start = torch.tensor(START, dtype=torch.float64)
    for i, control in zip(tensors["memory_ids"], tensors["memory.direction.control"], strict=True):
        pull = torch.eye(2, dtype=torch.float64) - 0.05 * problem.hessians[i]
        gone = problem.minima[i] + torch.linalg.matrix_power(pull, 4) @ (start - problem.minima[i])
        assert_close(control, (start - gone) / (4 * 0.05))


def biased_point(problem, lr, steps):
    """Where FedAvg stands still.

    K gradient steps take client i from x to x_i + M_i (x - x_i), M_i = (I - lr H_i)^K, so that
    x = mean_i [x_i + M_i (x - x_i)] means (I - mean M_i) x = mean_i (I - M_i) x_i.
    """
    eye = torch.eye(problem.minima.shape[1], dtype=torch.float64)
    shrink = eye - torch.linalg.matrix_power(eye - lr * problem.hessians, steps)
    right = (shrink @ problem.minima[:, :, None]).mean(0)
    return torch.linalg.solve(shrink.mean(0), right)[:, 0]


def test_fixed_points(problem):
    lr, steps = 0.1, 5
    biased = biased_point(problem, lr, steps)
    assert float((biased - problem.optimum).norm()) > 0.05
    settings = {"rounds": 60, "steps": steps, "start": START}
    assert_close(problem.fit(get("fedavg", lr=lr), **settings).x, biased, 1e-8)
    assert_close(problem.fit(get("scaffold", lr=lr), **settings).x, problem.optimum, 1e-8)
    assert_close(
        problem.fit(get("scaffold", lr=lr, option="I"), **settings).x, problem.optimum, 1e-8
    )
    settings["steps"] = 1
    assert_close(
        problem.fit(get("fedavg", lr=lr), **settings | {"rounds": 120}).x, problem.optimum, 1e-8
    )


def test_scaffold_reaches_the_optimum_with_some_of_the_clients(problem):
    run = problem.fit(get("scaffold", lr=0.05), START, rounds=250, steps=2, cohort=2)
    assert_close(run.x, problem.optimum, 1e-6)


# Armijo.


@pytest.mark.parametrize("c", [0.1, 0.6])
def test_accepted_steps_meet_armijo(c):
    """On 2,000 quadratics at once: the decrease, and the lower bound on the step (P3, Remark 3)."""
    draw = torch.Generator().manual_seed(0)
    root = torch.randn(2000, 3, 3, generator=draw, dtype=torch.float64)
    root *= 10 ** (2 * torch.rand(2000, 1, 1, generator=draw, dtype=torch.float64) - 1)
    hessian = root.mT @ root
    smooth = torch.linalg.eigvalsh(hessian)[:, -1]
    y = torch.randn(2000, 3, generator=draw, dtype=torch.float64)

    def value(z):
        return torch.einsum("mi,mij,mj->m", z, hessian, z) / 2

    step = Armijo(c=c, backtrack=0.7, max_lr=1.5)
    d = (hessian @ y[:, :, None])[:, :, 0]
    phi = LocalObjective(value(y), lambda z: 0.0, value, y)
    one = torch.ones(2000, dtype=torch.float64)
    context = StepContext(0, Round(PLAN, 0), 1.0, one, one, phi, {})
    new, lr, _ = step.take(y, d, context, step.begin(y, {}))
    assert bool((value(new) <= value(y) - c * lr * d.square().sum(1) + 1e-12).all())
    bound = 0.7 * (2 * (1 - c) / smooth).clamp(max=1.5)
    assert bool((lr >= bound * (1 - 1e-9)).all())
    assert bool((lr <= 1.5).all())
    assert bool((lr < 1.5).any())


def test_losses_never_increase_along_accepted_steps():
    run = Quadratics(clients=1).fit(get("fedsls"), START, rounds=10, steps=1)
    losses = [row["train_loss"] for row in run.history]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


TOY = {
    "fedavg": (get("fedavg", lr=0.01), "1.94e-01"),
    "fedsls": (get("fedsls", reset="reset"), "5.7e-02"),
    "fedexpsls": (get("fedexpsls", reset="reset", eps=0.0), "8.3e-10"),
}


@pytest.mark.parametrize("name", TOY)
def test_toy_figures(name):
    """P3, Fig. 1: the mean objective of the last iterate after 50 rounds of 10 steps."""
    method, printed = TOY[name]
    model = tf.models.build("regression", shape=(2,), classes=1).double()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.24, 1.0]], dtype=torch.float64))
    fed = tf.load("toy").split(tf.ByOwner())
    run = tf.fit(
        model, fed, method, rounds=50, steps=10, batch=None, dtype=torch.float64, device="cpu",
        eval_every=50,
    )  # fmt: skip
    w1, w2 = run.x.tolist()
    value = ((w1 + w2 - 3) ** 2 + (w1 + 2 * w2 - 3) ** 2) / 2
    assert f"{value:.{len(printed) - 6}e}" == printed


def test_toy_figure_of_fedexp():
    """2.5e-4 in the same figure; rounding decides the digits (with eps = 1e-16 it is 1.3e-4)."""
    model = tf.models.build("regression", shape=(2,), classes=1).double()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.24, 1.0]], dtype=torch.float64))
    work = {"rounds": 50, "steps": 10, "batch": None, "dtype": torch.float64, "eval_every": 50}
    fed = tf.load("toy").split(tf.ByOwner())
    run = tf.fit(model, fed, get("fedexp", lr=0.01, eps=0.0), device="cpu", **work)
    w1, w2 = run.x.tolist()
    assert 1e-4 < ((w1 + w2 - 3) ** 2 + (w1 + 2 * w2 - 3) ** 2) / 2 < 6e-4


# Translation: f_i(x - s) from x0 + s gives x + s, except where |x0| sets the first step.

BY_DISTANCE = (tf.clients.DoG, tf.clients.Follow, Prodigy)
EQUIVARIANT = {
    name: get(name) for name in tf.methods.names() if not isinstance(get(name).step, BY_DISTANCE)
} | {"adam": tf.Method(step=Adam(0.01)), "clip": get("fedavg", clip=0.5)}


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_translation(problem, name):
    start, shift = torch.tensor(START).double(), torch.tensor([0.7, 3.0]).double()
    method = EQUIVARIANT[name]
    cohort = None if method.full else 2
    here = problem.fit(method, start, cohort=cohort)
    there = problem.fit(method, start + shift, shift=shift, cohort=cohort)
    assert_close(there.x, here.x + shift, 1e-9)
    assert_close(there.output, here.output + shift, 1e-9)


def test_dog_depends_on_where_it_starts(problem):
    """Through the 1 + |x0| of its first distance; otherwise it too would be equivariant."""
    start, shift = torch.zeros(2).double(), torch.tensor([0.7, 3.0]).double()
    here = problem.fit(get("feddog"), start)
    there = problem.fit(get("feddog"), start + shift, shift=shift)
    assert float((there.x - shift - here.x).norm()) > 1e-3
    same = tf.methods.get("feddog", r_rel=1e-2 / (1 + float(shift.norm())))
    assert_close(problem.fit(same, start + shift, shift=shift).x, here.x + shift, 1e-9)
