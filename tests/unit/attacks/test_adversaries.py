"""Hostile clients: what they send, what it does to a run, and what withstands it."""

import importlib.util
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound, grouped
from oracle import robust as rules
from tunefree.cli import main
from tunefree.core.errors import ArgumentError
from tunefree.rounds.server import init_server_state, run_round
from tunefree.server.aggregate import Mean

a, r, get = tf.attacks, tf.robust, tf.methods.get
CLIENTS = 10


def federation(spread=0.3):
    draw = torch.Generator().manual_seed(1)
    owner = torch.arange(200) % CLIENTS
    shift = spread * torch.randn(CLIENTS, 6, generator=draw, dtype=torch.float64)
    x = torch.randn(200, 6, generator=draw, dtype=torch.float64) + shift[owner]
    y = (x @ torch.randn(6, 3, generator=draw, dtype=torch.float64)).argmax(1)
    return tf.Federation(x, y, owner, test=(x, y), classes=3)


def model():
    net = nn.Linear(6, 3).double()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    return net


def trained(method="fedavg", attack=None, aggregate=None, fed=None, **given):
    work = {"rounds": 1, "steps": 3, "batch": 10, "device": "cpu", "dtype": torch.float64}
    work |= {"engine": "loop"} | ({} if aggregate is None else {"aggregate": aggregate})
    fed = federation() if fed is None else fed
    return tf.fit(model(), fed, method, **grouped(attack=attack, **work | given))


class Spy:
    """A plain mean that remembers what it was made of."""

    def __init__(self):
        self.rows = {}

    def __call__(self, weight, round, what):
        spy, rows = self, self.rows.setdefault((round, what), {})

        class Noted(Mean):
            def add(self, p, found):
                for name, v in found.items():
                    rows[name] = torch.cat([rows[name], v]) if name in rows else v
                super().add(p, found)

        assert spy is self
        return Noted(weight)


def sent(attack, method="fedavg", what="train", **given):
    """What arrives in round 0, by client: hostile ones last where the attack sees the others."""
    spy = Spy()
    trained(method, attack, spy, **given)
    rows = spy.rows[0, what]
    if attack is None or not attack.sees_honest:
        return rows
    bad = attack.hostile_clients(CLIENTS, 0).tolist()
    order = [i for i in range(CLIENTS) if i not in bad] + bad
    return {n: v[torch.argsort(torch.tensor(order))] for n, v in rows.items()}


BAD = (2, 7, 8)
HONEST = [i for i in range(CLIENTS) if i not in BAD]


def wanted(attack, z):
    honest = z[HONEST]
    if isinstance(attack, a.SignFlip):
        return -attack.scale * z[list(BAD)]
    if isinstance(attack, a.LargeNorm):
        return attack.scale * z[list(BAD)]
    if isinstance(attack, a.InnerProduct):
        return np.tile(-attack.eps * honest.mean(0), (3, 1))
    if attack.z is not None:
        return np.tile(honest.mean(0) - attack.z * honest.std(0), (3, 1))
    return np.tile(rules.little_is_enough(honest, CLIENTS, 3), (3, 1))


VECTORS = [
    a.SignFlip(BAD), a.SignFlip(BAD, scale=4.0), a.LargeNorm(BAD, scale=7.0),
    a.InnerProduct(BAD, eps=2.0), a.LittleIsEnough(BAD, z=1.5), a.LittleIsEnough(BAD),
]  # fmt: skip


@pytest.mark.parametrize("chunk", [None, 3, 1])
@pytest.mark.parametrize("attack", VECTORS, ids=str)
def test_what_is_sent_instead(attack, chunk):
    """On every channel of vectors, by the formula; honest rows are untouched."""
    plain, found = sent(None, "scaffold"), sent(attack, "scaffold", chunk=chunk)
    for name in ("delta", "control"):
        assert torch.equal(found[name][HONEST], plain[name][HONEST])
        want = wanted(attack, plain[name].numpy())
        np.testing.assert_allclose(found[name][list(BAD)].numpy(), want, rtol=1e-9, atol=1e-14)


def test_the_papers_z():
    """Baruch et al.'s example: 50 workers, 24 of them hostile."""
    from tunefree.attacks.rules import largest_z

    for m, f in ((50, 24), (50, 12), (20, 4), (100, 20), (10, 3)):
        s = m // 2 + 1 - f
        assert largest_z(m, f) == pytest.approx(
            max(0.0, rules.quantile((m - f - s) / (m - f))), abs=1e-9
        )
    assert largest_z(50, 24) == pytest.approx(1.43, abs=0.01)


def test_noise_is_as_long_as_it_says_and_repeats():
    attack = a.Gaussian(BAD, scale=5.0)
    plain, first, again = (sent(k)["delta"] for k in (None, attack, attack))
    assert torch.equal(first, again)
    bad = list(BAD)
    ratio = first[bad].norm(dim=1) / plain[bad].norm(dim=1)
    assert 2.5 < float(ratio.mean()) < 7.5
    assert abs(float(torch.corrcoef(first[bad])[0, 1])) < 0.8  # another for each
    spy = Spy()
    trained("fedavg", attack, spy, rounds=2)
    one, two = (spy.rows[t, "train"]["delta"][bad] for t in (0, 1))
    ratio = one / two
    assert float(ratio.std()) > 1e-3  # and in each round


def test_numbers_are_lies_where_that_means_something():
    plain = sent(None, "fedexp")
    large = sent(a.LargeNorm(BAD, scale=10.0), "fedexp")
    bad = list(BAD)
    torch.testing.assert_close(large["delta_sq"][bad], 100 * plain["delta_sq"][bad])
    lied = sent(a.Misreport(BAD, scale=50.0), "fedexp")
    assert torch.equal(lied["delta"], plain["delta"])
    torch.testing.assert_close(lied["delta_sq"][bad], 50 * plain["delta_sq"][bad])
    assert torch.equal(lied["delta_sq"][HONEST], plain["delta_sq"][HONEST])
    loss = [sent(k, "fedproxlod", "probe 0")["loss"] for k in (None, a.Misreport(BAD, scale=50.0))]
    assert not torch.equal(loss[0], loss[1])


def test_questions_are_answered_with_lies_too():
    for attack, factor in ((None, 1.0), (a.SignFlip(BAD), -1.0), (a.InnerProduct(BAD), None)):
        found = sent(attack, "mime", "probe 0")["grad"]
        plain = sent(None, "mime", "probe 0")["grad"]
        if factor is None:
            want = -0.5 * plain[HONEST].mean(0).expand(3, -1)
        else:
            want = factor * plain[list(BAD)]
        torch.testing.assert_close(found[list(BAD)], want)
        assert torch.equal(found[HONEST], plain[HONEST])


def test_hostile_clients_train_honestly():
    """What they remember is what they would have without the lie."""
    everyone = torch.arange(CLIENTS)
    kept = []
    for attack in (None, a.SignFlip(BAD, scale=20.0)):
        given = {"model": model(), "federation": federation(), "method": get("scaffold")}
        job = bound(**given, rounds=1, steps=3, attack=attack, dtype=torch.float64)
        now = init_server_state(job.method, job.start, job.plan)
        run_round(job.method, job.plan, now, job.pool, everyone)
        job.pool.commit()
        kept.append(job.pool.memory.gather(everyone)["direction.control"])
    assert torch.equal(*kept)
    assert bool((kept[0] != 0).any())


def test_a_lie_passes_the_wire():
    """What arrives is something that the wire could have written: two entries of 21."""
    found = sent(a.Gaussian(BAD), get("fedavg", wire="topk:0.1:global"))["delta"]
    assert set((found != 0).sum(1).tolist()) == {2}


def test_wrong_labels_are_wrong_data():
    fed = federation()
    y = torch.where(torch.isin(fed.owners(), torch.tensor(BAD)), 2 - fed.y, fed.y)
    other = tf.Federation(fed.x, y, fed.owners(), test=fed.test, classes=3)
    flipped, plain = trained(attack=a.LabelFlip(BAD), rounds=3), trained(fed=other, rounds=3)
    assert torch.equal(flipped.x, plain.x)
    assert flipped.history[-1]["test_loss"] == plain.history[-1]["test_loss"]


def test_who_is_hostile():
    one = a.SignFlip(0.3)
    assert len(one.hostile_clients(10, 0)) == 3
    assert torch.equal(one.hostile_clients(1000, 0), one.hostile_clients(1000, 0))
    assert not torch.equal(one.hostile_clients(1000, 0), one.hostile_clients(1000, 1))
    assert a.SignFlip((5, 1)).hostile_clients(10, 0).tolist() == [1, 5]
    run = trained(attack=one, rounds=4, cohort=4)
    bad = set(one.hostile_clients(CLIENTS, 0).tolist())
    for row in run.history:
        ids = tf.random.cohort(0, row["round"], CLIENTS, 4).tolist()
        assert row["hostile"] == len(bad & set(ids))


RULES = {
    "median": r.Median(),
    "trimmed-mean": r.TrimmedMean(f=2),
    "geometric-median": r.GeometricMedian(),
    "krum": r.Krum(f=2),
    "multi-krum": r.MultiKrum(f=2),
    "norm-clip": r.NormClip(),
    "centred-clip": r.CentredClip(),
    "nnm": r.NNM(r.TrimmedMean(f=2), f=2),
    "bucketing": r.Bucketing(r.Median(), size=2),
}
TWO = (3, 6)
ATTACKS = [
    a.SignFlip(TWO, scale=20.0), a.LargeNorm(TWO, scale=1000.0), a.Gaussian(TWO, scale=200.0),
    a.InnerProduct(TWO, eps=20.0), a.LittleIsEnough(TWO, z=1.0), a.LabelFlip(TWO),
]  # fmt: skip


@cache
def accuracy(attack=None, rule=None):
    return trained("fedavg", attack, rule, rounds=8, eval_every=8).history[-1]["test_accuracy"]


def test_the_mean_breaks():
    """A test of the next one: three of its attacks ruin a run that averages."""
    for attack in (ATTACKS[0], ATTACKS[2], ATTACKS[3]):
        assert accuracy(attack) < accuracy() - 0.2


@pytest.mark.parametrize("name", RULES)
def test_two_of_ten_are_withstood(name):
    for attack in (ATTACKS[0], ATTACKS[2], ATTACKS[4]):
        assert accuracy(attack, RULES[name]) > accuracy() - 0.15, attack


@pytest.mark.trust
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("method", ["scaffold", "fedexp", "fedduadam", "parfrefl", "fedproxlod"])
def test_in_front_of_any_server_rule(name, method):
    """Controls, losses and squared lengths pass the rule as well; a run goes on and gets better."""
    drifts = name == "krum" and get(method).direction.uploads
    if drifts or (name, method) == ("bucketing", "scaffold"):
        pytest.skip("the server adds up controls: one client's, or the middle of five, drift away")
    for attack in ATTACKS:
        assert accuracy(attack, RULES[name]) > accuracy() - 0.15, attack
        run = trained(method, attack, RULES[name], rounds=60)
        first, last = run.history[0]["test_loss"], run.history[-1]["test_loss"]
        assert run.status == "finished", attack
        assert last < max(first, math.log(3)), attack


@cache
def steps(method, attack, aggregate=None):
    """The server's largest step and the longest move of two rounds."""
    moves = []

    class Watch:
        x = torch.zeros(21, dtype=torch.float64)

        def __call__(self, event):
            moves.append(float((event.x - self.x).norm()))
            self.x = event.x

    run = trained(method, attack, aggregate, rounds=2, callbacks=[Watch()])
    return max(row["server_step"] for row in run.history), max(moves)


EXTRAPOLATING = ("fedexp", "fedduadagrad", "fedduadam")


@pytest.mark.parametrize("method", EXTRAPOLATING)
def test_one_large_client_blows_up_an_extrapolated_step(method):
    """Under the mean: FedExP goes to S/2 times a mean that is L/S long; a lie has no bound."""
    clean, move = steps(method, None)
    for scale in (1e3, 1e6):
        eta, far = steps(method, a.LargeNorm((4,), scale=scale))
        assert far > scale / 100 * move
        lie, far = steps(method, a.Misreport((4,), scale=scale))
        assert lie > scale / 100 * clean
        assert far > scale / 100 * move
        if method == "fedexp":
            assert eta == pytest.approx(CLIENTS / 2, rel=0.1)


@pytest.mark.parametrize("method", EXTRAPOLATING)
@pytest.mark.parametrize("name", RULES)
def test_robust_rules_bound_it(name, method):
    """Whatever the scale: a step is no longer than a few honest ones, and does not grow with it."""
    _, move = steps(method, None)
    found = []
    for scale in (1e3, 1e6):
        for attack in (a.LargeNorm((4,), scale=scale), a.Misreport((4,), scale=scale)):
            found.append(steps(method, attack, RULES[name])[1])
    assert max(found) < 20 * move
    assert found[0] == pytest.approx(found[2], rel=0.05)
    assert found[1] == pytest.approx(found[3], rel=1e-9)


def test_fedexps_step_is_bounded_by_honest_lengths():
    """eta |v| <= max(|v|, (|v|^2 + r^2) / (4 sqrt(eps))), r the farthest honest move."""
    eps = 1e-3
    for name, rule in RULES.items():
        spy = Spy()
        trained("fedexp", a.LargeNorm((4,), scale=1e9), spy)
        z = spy.rows[0, "train"]["delta"]
        gathered = rule(1.0, 0, "train")
        gathered.add(torch.full((CLIENTS,), 0.1), {"delta": z, "delta_sq": z.square().sum(1)})
        found = gathered.result()
        v, q = found["delta"], found["delta_sq"]
        eta = max(1.0, float(q / (2 * (v.square().sum() + eps))))
        honest = z[[i for i in range(CLIENTS) if i != 4]]
        far = float((honest - v).norm(dim=1).max())
        length = float(v.norm())
        assert length <= 2 * float(honest.norm(dim=1).max()), name
        bound = max(length, (length**2 + far**2) / (4 * math.sqrt(eps)))
        assert eta * length <= bound * (1 + 1e-9), name


def test_rows_may_come_one_by_one():
    """As from nodes of a real federation."""
    z = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    for rule in RULES.values():
        found = []
        for size in (1, 9):
            gathered = rule(1.0, 2, "train")
            for low in range(0, 9, size):
                part = {"delta": z[low : low + size], "loss": z[low : low + size, 0]}
                gathered.add(torch.full((size,), 1 / 9).double(), part)
            found.append(gathered.result())
        assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
        assert rule(1.0, 2, "train").result() == {}


@pytest.mark.parametrize("rule", [r.Median(), r.NNM(r.Krum(f=0), f=1)], ids=str)
def test_a_real_federation_takes_the_same_rules(tmp_path, rule):
    """Nodes in this process, their rows one by one, give what the simulation gives."""
    from flower.local import LocalTransport, make_federation, make_net
    from flower.local import arguments as shared
    from flower.local import train as served

    method = get("fedexp", lr=0.1)
    data = make_federation()
    alone = tf.fit(make_net(), data, method, **shared(method), aggregate=rule, device="cpu")
    spread = served(method, LocalTransport(tmp_path, method), aggregate=rule)
    torch.testing.assert_close(spread.x, alone.x, rtol=1e-10, atol=1e-12)


def test_a_resumed_run_is_the_same(tmp_path):
    given = {
        "method": "scaffold", "attack": a.Gaussian(TWO), "rounds": 6, "cohort": 8,
        "aggregate": r.Bucketing(r.GeometricMedian(), size=2),
        "faults": tf.faults.Faults(before=0.2, stale=0.2, delay=2),
    }  # fmt: skip
    whole = trained(**given)

    def crash(event):
        if event.round == 3:
            raise RuntimeError("power cut")

    folder = {"out": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="power cut"):
        trained(**given, **folder, callbacks=[crash])
    resumed = trained(**given, **folder)
    assert torch.equal(resumed.x, whole.x)
    with pytest.raises(tf.TunefreeError, match="attack was"):
        trained(**given | {"attack": a.SignFlip(TWO)}, **folder)
    with pytest.raises(tf.TunefreeError, match="aggregate was"):
        trained(**given | {"aggregate": r.Median()}, **folder)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: a.SignFlip(0.0), r"SignFlip\(clients=...\) must be a share between 0 and 1"),
        (lambda: a.SignFlip(3), "or different client numbers, got 3"),
        (lambda: a.SignFlip((1, 1)), "or different client numbers"),
        (lambda: a.LargeNorm(scale=0.0), r"LargeNorm\(scale=...\) must be a finite number > 0"),
        (lambda: a.LittleIsEnough(z=-1.0), r"LittleIsEnough\(z=...\) must be a finite number >= 0"),
        (lambda: trained(attack=a.SignFlip((99,))), "must be below the number of clients, 10"),
        (lambda: trained(attack=a.Misreport()), "send no numbers to lie about"),
        (lambda: trained(attack=0.2), r"Scenario\(attack=...\) must be one of tf.attacks"),
        (lambda: trained(aggregate=r.Krum(f=4)), "needs at least 11 uploads a round"),
        (lambda: a.parse("sign-flap"), "Did you mean 'sign-flip'. Known: gaussian, inner-product"),
        (lambda: a.parse("sign-flip:x"), "must be a share such as 0.2, or client numbers"),
        (lambda: a.parse("sign-flip:0.2:size=3"), "Unknown setting of sign-flip 'size'"),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        make()


def test_the_page_is_up_to_date():
    place = Path(__file__).parents[3] / "experiments" / "trust" / "render.py"
    spec = importlib.util.spec_from_file_location("attacks_page", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0


def test_labels_must_be_labels():
    fed = federation()
    numbers = tf.Federation(fed.x, fed.x[:, :1], fed.owners())
    with pytest.raises(ArgumentError, match="its targets are no class labels"):
        tf.fit(nn.Linear(6, 1), numbers, scenario=tf.Scenario(attack=a.LabelFlip()))


def said(words, capsys):
    with pytest.raises(SystemExit) as done:
        main(words)
    found = capsys.readouterr()
    return done.value.code, found.out, found.err


def test_the_command_line(tmp_path, capsys):
    words = "run --rounds 2 --steps 2 --clients 12 --cohort 0 --method fedexp --json"
    trust = "--attack sign-flip:0+3:scale=5 --aggregate nnm:f=2+krum:f=2 --faults after=0.1"
    code, text, _ = said([*words.split(), *trust.split(), "--out", str(tmp_path / "a")], capsys)
    assert code == 0
    assert json.loads(text)["status"] == "finished"
    kept = tf.Run.load(tmp_path / "a").settings
    assert kept["attack"] == "SignFlip(clients=(0, 3), scale=5.0)"
    assert kept["aggregate"] == "NNM(inner=Krum(f=2), f=2)"
    code, _, error = said(["run", "--aggregate", "krum:f=2:keep=3"], capsys)
    assert code == 2
    assert "Unknown setting of krum 'keep'" in error
    both = "compare --methods fedavg,fedexp --seeds 1 --rounds 2 --steps 2 --clients 6 --cohort 0"
    out = str(tmp_path / "b")
    code, text, _ = said(
        [*both.split(), "--attack", "sign-flip:0.2", "--out", out, "--format", "csv"], capsys
    )
    assert code == 0
    assert "fedexp" in text
