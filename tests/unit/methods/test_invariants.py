"""What methods promise about their memory, in every round: partial cohorts, compressed uploads."""

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound
from tunefree.core.random import cohort
from tunefree.rounds.server import init_server_state, run_round

CLIENTS, D = 6, 3 * 4 + 3


def federation(scale=1.0):
    draw = torch.Generator().manual_seed(1)
    sizes = torch.tensor([3, 9, 5, 12, 4, 7])
    owner = torch.repeat_interleave(torch.arange(CLIENTS), sizes)
    x = torch.randn(len(owner), 4, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (len(owner),), generator=draw)
    return tf.Federation(scale * x + owner[:, None] * 0.3, y, owner, classes=3)


def model():
    net = nn.Linear(4, 3).double()
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-0.5, 0.5, 12).reshape(3, 4))
        net.bias.fill_(0.1)
    return net


def rounds(method, *, size=3, count=6, weights="uniform", **settings):
    """Play rounds and yield (standing, row, what clients remember, their shares) after each."""
    work = {"steps": 3, "batch": 4} | settings
    job = bound(
            model=model(), federation=federation(), method=method, rounds=count, cohort=size,
            dtype=torch.float64, device="cpu", seed=2, engine="vmap", **work,
    )  # fmt: skip
    now, everyone = init_server_state(method, job.start, job.plan), torch.arange(CLIENTS)
    for t in range(count):
        ids = cohort(2, t, CLIENTS, size)
        now, row = run_round(method, job.plan, now, job.pool, ids)
        job.pool.commit()
        yield now, row, job.pool.memory.gather(everyone), job.pool.weights


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def mean(p, rows):
    return torch.tensordot(p, rows, 1)


get = tf.methods.get
WIRES = ("dense", "topk:0.3", "topk:0.3:global", "randk:0.5:contractive", "qsgd:7", "natural")
WIRES += ("sign", "ef+topk:0.3")


def at_will(client, round):
    return tf.wire.TopK([0.1, 0.5, 1.0][(client + round) % 3])


CONTROLS = {  # where the server's copy of the mean of the clients' controls is
    "scaffold": ("direction", "control"),
    "scaffoldm": ("direction", "control"),
    "feddc": ("direction", "control"),
    "parfrefl": ("server", "control"),
    "comparfrefl": ("server", "control"),
    "scafcom": ("server", "control"),
    "padamfed": ("server", "control"),
}


def turns():
    """Every method over every wire; both kinds of weights with each of the two, in turn."""
    for i, name in enumerate(CONTROLS):
        for j, wire in enumerate((*WIRES, tf.wire.Choose(at_will))):
            weights = ("uniform", "samples")[(i + j) % 2]
            yield pytest.param(name, wire, weights, id=f"{name}-{wire}-{weights}")


@pytest.mark.parametrize(("name", "wire", "weights"), list(turns()))
def test_the_server_knows_the_mean_of_the_controls(name, wire, weights):
    """Whatever the wire does to them, and although it may differ by client and round."""
    where, what = CONTROLS[name]
    key = "compressor" if "compressor" in tf.methods.settings(name) else "wire"
    for now, _, own, p in rounds(get(name, weights=weights, **{key: wire})):
        close(mean(p, own["direction.control"]), getattr(now, where)[what])


@pytest.mark.parametrize("wire", ["dense", "topk:0.3", "natural"])
@pytest.mark.parametrize("name", ["feddyn", "feddc"])
def test_the_server_knows_the_mean_drift(name, wire):
    for now, _, own, p in rounds(get(name, wire=wire)):
        close(mean(p, own["direction.drift"]), now.server["drift"])


@pytest.mark.parametrize("wire", ["dense", "topk:0.3", "natural"])
@pytest.mark.parametrize("name", ["feddr", "fedadmm"])
def test_the_server_knows_the_mean_of_the_reflected_points(name, wire):
    for now, _, own, p in rounds(get(name, wire=wire)):
        close(mean(p, own["direction.received"]), now.server["z"])


@pytest.mark.parametrize("wire", ["dense", "topk:0.3", "qsgd:7"])
@pytest.mark.parametrize("settings", [{"steps": 3}, {"steps": None, "epochs": 1}])
def test_controls_of_fedcanon_sum_to_zero(wire, settings):
    method = get("fedcanon", penalty="l1:1e-3", wire=wire)
    for _, _, own, p in rounds(method, **settings):
        close(mean(p, own["direction.control"]), torch.zeros(D, dtype=torch.float64))


@pytest.mark.parametrize("wire", ["dense", "topk:0.3", "qsgd:7", "ef+sign"])
@pytest.mark.parametrize("settings", [{"steps": 3}, {"steps": None, "epochs": 1}])
def test_controls_of_za1_sum_to_zero(settings, wire):
    method = get("za1", lr=0.1, server_lr=0.8, penalty="l1:1e-3", wire=wire)
    for now, _, own, p in rounds(method, size=CLIENTS, **settings):
        steps = 3 if settings["steps"] else 2  # ceil(n_i / 4), on average
        close(mean(p, own["direction.half"]), now.x / (0.8 * 0.1 * steps))


@pytest.mark.parametrize("wire", ["dense", "topk:0.3", "qsgd:7", "ef+sign"])
def test_controls_of_scaffnew_sum_to_zero(wire):
    lengths = set()
    for now, row, own, p in rounds(get("scaffnew", lr=0.1, p=0.4, wire=wire), size=CLIENTS):
        close(mean(p, own["direction.half"]), (0.4 / 0.1) * now.x)
        lengths.add(row["gradients"])
    assert len(lengths) > 1  # the coin fell differently


def test_scaffnews_coin_is_fair():
    """Rounds are geometric with mean 1 / p."""
    part, plan = tf.clients.Scaffnew(p=0.25), tf.clients.Plan(4, 4, 4000, 1.0, None, seed=3)
    counts = [part.local_phases(tf.clients.Round(plan, t)).steps for t in range(4000)]
    assert min(counts) == 1
    assert sum(counts) / 4000 == pytest.approx(4, rel=0.05)
    assert counts.count(1) / 4000 == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("name", ["parfrefl", "comparfrefl"])
def test_every_move_has_its_length(name):
    method = get(name, scale=0.7)
    gamma = 0.7 * (3 * 3) ** 0.25 / 6**0.75
    before = init_server_state(
        method, torch.cat([p.flatten() for p in model().parameters()]).detach(), None
    ).x
    for now, row, _, _ in rounds(method):
        assert float((now.x - before).norm()) == pytest.approx(gamma, rel=1e-12)
        assert row["lr"] == pytest.approx(0.7 / (3 * (3 * 3 * 6) ** 0.25), rel=1e-12)
        before = now.x


@pytest.mark.parametrize("inner", ["topk:0.2", "sign", "randk:0.3:contractive", "lowrank:1"])
def test_absent_clients_still_owe_what_they_owed(inner):
    """Error feedback is each client's own; that its sums hold is tested with the wires."""
    method = get("fedavg", wire=f"ef+{inner}")
    owed = torch.zeros(CLIENTS, D, dtype=torch.float64)
    for _, _, own, _ in rounds(method, size=2):
        error = own["wire.delta.error"]
        assert (error != owed).any(1).sum() <= 2  # absent clients keep theirs
        owed = error
    assert bool((owed != 0).any())


@pytest.mark.parametrize("name", ["parfrefl", "comparfrefl", "padamfed"])
@pytest.mark.parametrize("factor", [1e-6, 7.0, 1e6])
def test_the_scale_of_the_losses_does_not_matter(name, factor):
    def scaled(output, target):
        return factor * nn.functional.cross_entropy(output, target, reduction="none")

    plain = [now.x for now, *_ in rounds(get(name))]
    other = [now.x for now, *_ in rounds(get(name), loss=scaled)]
    for a, b in zip(plain, other, strict=True):
        close(a, b, 1e-10)


SETTLED = ("scaffold", "scaffoldm", "feddc", "feddr", "fedadmm", "fedcanon", "scafcom", "parfrefl")


@pytest.mark.parametrize("name", SETTLED)
def test_error_feedback_does_not_owe_twice(name):
    """A part that keeps what arrived makes up for the loss by itself."""
    given = {"compressor": "ef+topk:0.3"} if name == "scafcom" else {"wire": "ef+topk:0.3"}
    method = get(name, **given)
    own = set(method.direction.error_compensated)
    assert own
    assert all(isinstance(method.wire_of(c), tf.wire.TopK) for c in own)
    losses = []
    for _, row, memory, _ in rounds(method, count=30, size=CLIENTS):
        assert not any(f"wire.{c}.error" in memory for c in own)
        losses.append(row["train_loss"])
    assert losses[-1] < losses[0]


def test_a_part_that_prepares_is_counted_once():
    """6 d up before round 0, uncompressed; then compressed uploads of the cohort."""
    up = [row["bytes_up"] for _, row, _, _ in rounds(get("comparfrefl", compressor="topk:0.2"))]
    assert len(set(up[1:])) == 1
    assert up[0] == up[1] + 8 * CLIENTS * D


def test_what_papers_count():
    """Values at their width, without the ratio and the indices: 2 of 12 and 1 of 3 entries."""
    for _, row, _, _ in rounds(get("fedavg", wire="topk:0.2")):
        assert row["counted_up"] == 3 * 8 * 3
        assert row["bytes_up"] > row["counted_up"]


def test_the_squared_length_is_that_of_what_arrives():
    """FedExP over a wire that keeps one entry: q is at least |mean|^2, so eta >= 1/2 unclipped."""
    seen = []

    class Watch(tf.server.Server):
        needs = ("delta", "delta_sq")

        def step(self, x, mean, state, t, query):
            seen.append((mean["delta"].square().sum(), mean["delta_sq"]))
            return x + mean["delta"], state, {}

    for _ in rounds(tf.Method(server=Watch(), wire="topk:0.01:global"), size=1):
        pass
    for square, q in seen:
        close(square, q, 1e-15)


def test_proximal_maps_are_counted():
    """One a round for FedCanon, one a client for II, S K + 1 for FedMiD (Table III)."""

    def proxes(name, size):
        method = get(name, penalty="l1:1e-3")
        return {row["proxes"] for _, row, _, _ in rounds(method, size=size)}

    assert proxes("fedcanon", CLIENTS) == {1}
    assert proxes("fedcanon2", CLIENTS) == {CLIENTS}
    assert proxes("fedmid", 3) == {3 * 3 + 1}
    assert proxes("fedda", 3) == {3 * 3 + 1}


def test_solvers_do_not_count_steps():
    """Exact proximal points take as many iterations as they need, whatever K is."""
    runs = [
        [now.x for now, *_ in rounds(get("fedadmm", mu=0.5, solver="exact"), batch=None, steps=k)]
        for k in (1, 5)
    ]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


def test_a_solver_that_did_not_get_there_says_so():
    few = tf.clients.ConjugateGradient(most=2)
    found = [row.get("unsolved") for _, row, _, _ in rounds(get("feddyn", solver=few), batch=None)]
    assert found == [3] * 6
    enough = [row for _, row, _, _ in rounds(get("feddyn", mu=1.0, solver="exact"), batch=None)]
    assert not any("unsolved" in row for row in enough)


def test_a_line_search_solves_to_its_tolerance():
    """The gradient of the subproblem vanishes: grad f_i(y) + mu (y - x) = 0."""
    method = tf.Method(
        direction=tf.clients.Proximal(0.5), step=tf.clients.Until(tf.clients.Armijo(), tol=1e-7)
    )
    exact = get("fedprox", mu=0.5)
    exact = tf.Method(direction=exact.direction, step=tf.clients.ConjugateGradient(most=3000))
    a, b = (next(rounds(m, batch=None, size=6))[0].x for m in (method, exact))
    close(a, b, 1e-6)
