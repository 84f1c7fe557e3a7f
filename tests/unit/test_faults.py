"""Clients that fail: lost before and after work, slow, late, not there."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound, grouped
from tunefree.cli import main
from tunefree.core.errors import ArgumentError
from tunefree.faults import Cycle, Fate, Faults, parse
from tunefree.rounds.client import pack_uploads
from tunefree.rounds.server import init_server_state, run_round
from tunefree.simulation import simulation
from tunefree.training.folder import RunFolder

CLIENTS, FEATURES, SEED = 8, 4, 3
D = FEATURES + 1
get = tf.methods.get


def federation():
    draw = torch.Generator().manual_seed(1)
    sizes = torch.tensor([3, 9, 5, 12, 4, 7, 6, 10])
    owner = torch.repeat_interleave(torch.arange(CLIENTS), sizes)
    x = torch.randn(len(owner), FEATURES, generator=draw, dtype=torch.float64)
    slope = 2 + 0.2 * torch.randn(CLIENTS, FEATURES, generator=draw, dtype=torch.float64)
    y = (x * slope[owner]).sum(1, keepdim=True) + owner[:, None] * 0.1
    return tf.Federation(x, y, owner, test=(x, y))


def model():
    net = nn.Linear(FEATURES, 1).double()
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-0.5, 0.5, FEATURES)[None])
        net.bias.fill_(0.1)
    return net


def start():
    return torch.cat([p.detach().flatten() for p in model().parameters()])


def settings(method, faults, rounds=12, **given):
    work = {"steps": 4, "batch": None, "cohort": 5, "seed": SEED} | given
    return {
        "model": model(), "federation": federation(), "method": method, "rounds": rounds,
        "dtype": torch.float64, "device": "cpu", "engine": "loop", "faults": faults, **work,
    }  # fmt: skip


def fit(**given):
    return tf.fit(**grouped(**given))


def played(method, faults, rounds=12, pool=None, **given):
    """Play rounds and yield (standing, row, pool, cohort) after each."""
    job = bound(**settings(method, faults, rounds, **given))
    now = init_server_state(job.method, job.start, job.plan)
    ids = job.pool.sample_cohort(0)
    for t in range(rounds):
        after = job.pool.sample_cohort(t + 1)
        now, row = run_round(job.method, job.plan, now, job.pool, ids)
        job.pool.commit()
        yield now, row, job.pool, ids
        ids = after


ALL = Faults(before=0.1, after=0.1, stale=0.15, slow=0.2, delay=3)


def test_no_faults_are_no_faults():
    """To the bit; the history only says how many answered."""
    given = settings("scaffold", None)
    plain, other = fit(**given), fit(**given | {"faults": Faults()})
    assert torch.equal(plain.x, other.x)
    for a, b in zip(plain.history, other.history, strict=True):
        more = {"answered": 5, "lost": 0, "slow": 0, "late": 0, "stale": 0, "seconds": b["seconds"]}
        assert b == a | more


def test_fates_are_as_likely_as_they_say():
    ids = torch.arange(20_000)
    found = torch.bincount(ALL.fates(0, 7, ids), minlength=5) / len(ids)
    wanted = torch.tensor([0.1, 0.1, 0.15, 0.2, 0.45])
    torch.testing.assert_close(found, wanted.double(), atol=0.01, rtol=0, check_dtype=False)
    late = torch.bincount(ALL.delays(0, 7, ids)) / len(ids)
    assert late[0] == 0
    torch.testing.assert_close(late[1:], torch.full((3,), 1 / 3), atol=0.015, rtol=0)
    slow = Faults(slow=1.0)
    for full, most in ((1, 1), (2, 1), (5, 4)):
        taken = slow.steps(0, 7, ids, torch.full_like(ids, full))
        assert (int(taken.min()), int(taken.max())) == (1, most)


def test_fates_depend_on_seed_round_and_client_alone():
    ids = torch.arange(200)
    whole = ALL.fates(0, 4, ids)
    assert torch.equal(ALL.fates(0, 4, ids[50:60]), whole[50:60])
    assert not torch.equal(ALL.fates(0, 5, ids), whole)
    assert not torch.equal(ALL.fates(1, 4, ids), whole)


def oracle(faults, lr, rounds, steps):
    """FedAvg on least squares, one client at a time: yield x, bytes and gradients of each round."""
    fed = federation()
    data = []
    for i in range(CLIENTS):
        a, y = fed.client(i)
        data.append((np.c_[a.numpy(), np.ones(len(y))], y.numpy()[:, 0]))
    x = start().numpy()
    way = []  # (arrives, client, move)
    for t in range(rounds):
        busy = {i for due, i, _ in way if due >= t}
        ids = yield t, busy
        fate = dict(zip(ids, faults.fates(SEED, t, torch.tensor(ids)).tolist(), strict=True))
        moves, gradients, sent = [], 0, []
        for i in ids:
            if fate[i] == Fate.BEFORE:
                continue
            one = torch.tensor([i])
            taken = int(faults.steps(SEED, t, one, torch.tensor([steps])))
            a, y = data[i]
            z = x.copy()
            for _ in range(taken):
                z = z - lr * 2 * a.T @ (a @ z - y) / len(y)
            gradients += taken
            if fate[i] in (Fate.SLOW, Fate.FINE):
                moves.append(z - x)
            elif fate[i] == Fate.STALE:
                sent.append((t + int(faults.delays(SEED, t, one)), i, z - x))
        moves += [move for due, _, move in way if due == t]
        way = [a for a in way if a[0] > t] + sent
        if moves:
            x = x + sum(moves) / len(moves)
        yield x, 8 * D * len(moves), gradients


@pytest.mark.parametrize("chunk", [None, 2])
def test_fedavg_with_every_fault_is_the_loop(chunk):
    """x at every round; ledger and gradients by hand; who is on the way is not drawn."""
    loop, late = oracle(ALL, 0.1, 30, 4), 0
    fedavg = get("fedavg", lr=0.1, weights="uniform")
    for now, row, _, ids in played(fedavg, ALL, 30, chunk=chunk):
        t, busy = next(loop)
        assert t == row["round"]
        assert not busy & set(ids.tolist())
        assert len(ids) == min(5, CLIENTS - len(busy))
        x, up, gradients = loop.send(ids.tolist())
        np.testing.assert_allclose(now.x.numpy(), x, rtol=1e-9, atol=1e-11)
        assert (row["bytes_up"], row["bytes_down"]) == (up, 8 * D * len(ids))
        assert row["gradients"] == gradients
        assert row["answered"] * 8 * D == up
        assert row["answered"] - row["stale"] + row["lost"] + row["late"] == len(ids)
        late += row["stale"]
    assert late > 3


def test_bytes_of_every_channel_and_of_wires_that_differ():
    """Two channels; who sends how much depends on the client."""
    faults = Faults(before=0.2, after=0.2)

    def at_will(client, round):
        return tf.wire.TopK([0.2, 0.6, 1.0][client % 3])

    method = get("scaffold", wire=tf.wire.Choose(at_will))
    size = {}
    for i in range(3):
        alone = next(played(method, Faults(), 1, cohort=CLIENTS))[1]
        only = Faults(available=torch.arange(CLIENTS)[None] == i)
        row = next(played(method, only, 1, cohort=1))[1]
        size[i] = (row["bytes_up.delta"], row["bytes_up.control"])
    assert len(set(size.values())) == 3
    assert alone["bytes_up.delta"] == sum(size[i % 3][0] for i in range(CLIENTS))
    for _, row, _, ids in played(method, faults, 10):
        here = ids[faults.fates(SEED, row["round"], ids) == Fate.FINE].tolist()
        assert row["bytes_up.delta"] == sum(size[i % 3][0] for i in here)
        assert row["bytes_up.control"] == sum(size[i % 3][1] for i in here)
        assert row["bytes_down"] == len(ids) * 2 * 8 * D


def test_questions_are_answered_by_those_who_are_there():
    """LoD asks for losses after the work: two questions of three numbers, both by who is left."""
    faults = Faults(before=0.2, after=0.2)
    for _, row, _, ids in played(get("fedproxlod"), faults, 10, cohort=CLIENTS):
        t = row["round"]
        fates = faults.fates(SEED, t, ids)
        left, open = int((fates >= Fate.SLOW).sum()), int((fates != Fate.BEFORE).sum())
        assert row["answered"] == left
        channels = 8 * (D + 2) * left  # delta, delta_sq, loss
        squares = 8 * left + (8 * open if t == 0 else 0)  # reported, and asked for once
        assert row["bytes_up"] == channels + squares + 3 * 8 * left
        first = "point 0" if t == 0 else "x"  # whoever missed a round cannot follow
        assert row[f"bytes_down.{first}"] >= 8 * D * len(ids)


def memory(pool):
    found = pool.simulation.memory.gather(torch.arange(CLIENTS))
    return {n: v.clone() for n, v in found.items()}


@pytest.mark.parametrize("faults", [Faults(after=0.5), Faults(stale=0.5, delay=3)])
def test_memory_changes_when_an_answer_arrives(faults):
    """A lost upload changes nothing; a late one changes its client in the round it arrives."""
    method, old = get("scaffold", wire="ef+topk:0.4"), None
    way = {}
    for _, row, pool, ids in played(method, faults, 15):
        t, new = row["round"], memory(pool)
        fates = faults.fates(SEED, t, ids)
        now = set(ids[fates == Fate.FINE].tolist()) | way.pop(t, set())
        late = ids[fates == Fate.STALE]
        for i, due in zip(late.tolist(), faults.delays(SEED, t, late).tolist(), strict=True):
            way.setdefault(t + due, set()).add(i)
        if old is not None:
            same = [all(torch.equal(new[n][i], old[n][i]) for n in new) for i in range(CLIENTS)]
            assert {i for i in range(CLIENTS) if not same[i]} == now
        old = new


CONTROLS = {"scaffold": "direction", "parfrefl": "server", "comparfrefl": "server"}
THIRTY = Faults(before=0.1, after=0.1, slow=0.1)
LATE = Faults(before=0.1, after=0.05, slow=0.05, stale=0.1, delay=3)
FAMILIES = {
    "fedavg": (get("fedavg", lr=0.05), LATE),
    "fedavg-ef": (get("fedavg", lr=0.05, wire="ef+topk:0.4"), LATE),
    "scaffold": (get("scaffold", lr=0.05), LATE),
    "scaffold-topk": (get("scaffold", lr=0.05, wire="ef+topk:0.4"), LATE),
    "fedcanon": (get("fedcanon", lr=0.05, penalty="l1:1e-4"), THIRTY),
    "parfrefl": (get("parfrefl"), LATE),
    "comparfrefl": (get("comparfrefl", compressor="topk:0.4"), LATE),
    "fedproxlod": (get("fedproxlod"), THIRTY),
    "fedproxwlod": (get("fedproxwlod"), THIRTY),
    "fedduadagrad": (get("fedduadagrad", lr=0.05), LATE),
    "fedduadam": (get("fedduadam", lr=0.05), LATE),
    "fedexpsls": (get("fedexpsls"), LATE),
    "mime": (get("mime", lr=0.05), THIRTY),
    "feddyn": (get("feddyn"), LATE),
}


def hold(method, now, pool):
    """What methods promise about their memory."""
    own, p = memory(pool), pool.simulation.weights
    found = {n: torch.tensordot(p, v, 1) for n, v in own.items()}
    close = {"rtol": 0, "atol": 1e-11}
    if method.name in CONTROLS:
        server = getattr(now, CONTROLS[method.name])["control"]
        torch.testing.assert_close(found["direction.control"], server, **close)
    if method.name == "fedcanon":
        torch.testing.assert_close(found["direction.control"], torch.zeros_like(now.x), **close)
    if method.name == "feddyn":
        torch.testing.assert_close(found["direction.drift"], now.server["drift"], **close)


def global_loss(x):
    """The mean over clients of their losses."""
    fed = federation()
    parts = (fed.client(i) for i in range(CLIENTS))
    return np.mean([float((a @ x[:-1, None] + x[-1] - y).square().mean()) for a, y in parts])


def due_of(faults, key):
    t, i = key
    one = torch.tensor([i])
    stale = int(faults.fates(SEED, t, one)) == Fate.STALE
    return t + int(faults.delays(SEED, t, one)) if stale else -1


def endured(name, rounds, seen):
    method, faults = FAMILIES[name]
    losses, met = [global_loss(start())], dict.fromkeys(("lost", "slow", "stale"), 0)
    owed, counted = {}, torch.zeros(CLIENTS, D, dtype=torch.float64)
    for now, row, pool, ids in played(method, faults, rounds, steps=3):
        hold(method, now, pool)
        losses.append(global_loss(now.x))
        for n in met:
            met[n] += row[n]
        if name == "fedavg-ef":  # what was sent and what arrived, of those that count
            t, fates = row["round"], faults.fates(SEED, row["round"], ids)
            for i in ids[fates != Fate.BEFORE].tolist():
                owed[t, i] = seen.pop((t, i))
            here = [(t, i) for i in ids[fates >= Fate.SLOW].tolist()]
            here += [k for k in owed if k[0] < t and due_of(faults, k) == t]
            for k in here:
                counted[k[1]] += owed.pop(k)
            torch.testing.assert_close(memory(pool)["wire.delta.error"], counted)
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert met["lost"] > 0
    assert met["slow"] > 0
    assert (met["stale"] > 0) == bool(faults.stale)


@pytest.fixture
def recorded(monkeypatch):
    """Note what error feedback keeps of every upload: what was meant less what arrived."""
    seen = {}

    def noted(method, sent, own, ids, t, ledger):
        arrived, kept = pack_uploads(method, sent, own, ids, t, ledger)
        if "wire.delta.error" in own:
            for j, i in enumerate(ids.tolist()):
                seen[t.index, i] = sent["delta"][j] - arrived["delta"][j]
        return arrived, kept

    monkeypatch.setattr(simulation, "pack_uploads", noted)
    return seen


@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_percent_fail(name, recorded):
    endured(name, 25, recorded)


@pytest.mark.trust
@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_percent_fail_for_200_rounds(name, recorded):
    endured(name, 200, recorded)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproxlod", "mime", "fedduadam"])
def test_a_round_without_answers_leaves_everything_as_it_was(name):
    """Nobody is there in odd rounds: the next round goes on from where the last one ended."""

    def there(t):
        return torch.full((CLIENTS,), t % 2 == 0)

    before = None
    for now, row, pool, _ in played(get(name), Faults(available=there), 6):
        state = now.tensors() | memory(pool)
        if row["round"] % 2:
            assert row["answered"] == row["bytes_up"] == row["bytes_down"] == row["gradients"] == 0
            assert math.isnan(row["train_loss"])
            assert all(torch.equal(state[n], before[n]) for n in state)
        else:
            assert row["answered"] == 5
            assert before is None or not torch.equal(state["x"], before["x"])
        before = state


@pytest.mark.parametrize("name", ["fedavg", "fedproxlod"])
def test_nobody_ever_answers(name, tmp_path):
    given = settings(name, Faults(before=1.0), 3, out=tmp_path / "run")
    run = fit(**given)
    assert run.status == "finished"
    assert torch.equal(run.x, start())
    assert [row["lost"] for row in run.history] == [5, 5, 5]
    assert all(row["bytes_up"] == 0 and row["bytes_down"] > 0 for row in run.history)
    assert all(math.isfinite(row["test_loss"]) for row in run.history)
    assert len(tf.Run.load(tmp_path / "run").history) == 3
    tf.Run.load(tmp_path / "run").report(tmp_path / "page.html")


def test_only_those_who_are_there_are_drawn():
    table = torch.rand(5, CLIENTS, generator=torch.Generator().manual_seed(0)) < 0.6
    for _, row, _, ids in played(get("fedavg"), Faults(available=table.numpy()), 12):
        there = table[row["round"] % 5].nonzero().flatten().tolist()
        assert set(ids.tolist()) <= set(there)
        assert len(ids) == min(5, len(there))
    cycle = Faults(available=Cycle(period=4, share=0.5))
    seen = torch.stack([cycle.available_in(t, 1000, 0) for t in range(8)])
    assert seen.sum(0).tolist() == [4] * 1000
    assert torch.equal(seen[:4], seen[4:])
    assert seen[0].double().mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_run_has_the_late_uploads(tmp_path, stop):
    """Bitwise, with control variates, error feedback and late uploads in the checkpoint."""
    faults = Faults(before=0.1, after=0.1, stale=0.4, delay=3)
    method = get("scaffold", wire="ef+topk:0.4")
    given = settings(method, faults, 10, batch=3)
    whole = fit(**given)

    def crash(event):
        if event.round == stop:
            raise RuntimeError("power cut")

    folder = {"out": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="power cut"):
        fit(**given, **folder, callbacks=[crash])
    kept = RunFolder(tmp_path / "run").load_checkpoint()[1]
    assert len(kept["late.uploads"])
    resumed = fit(**given, **folder)
    assert torch.equal(resumed.x, whole.x)
    for a, b in zip(resumed.history, whole.history, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    again = fit(**given, **folder)  # finished: read and written once more
    assert torch.equal(again.x, whole.x)
    with pytest.raises(tf.TunefreeError, match="faults was"):
        fit(**given | {"faults": Faults(before=0.1)}, **folder)


class Late(tf.server.Server):
    """A server rule that breaks in its sixth round."""

    def step(self, x, mean, state, t, query):
        return (x + mean["delta"]) * (float("inf") if t.index == 5 else 1.0), state, {}


def test_a_round_that_does_not_count_posts_nothing(tmp_path):
    def kept(rounds, name):
        method = tf.Method(direction=tf.clients.Scaffold(), server=Late())
        given = settings(method, Faults(stale=0.4, delay=3), rounds)
        run = fit(**given, out=tmp_path / name)
        return run, RunFolder(tmp_path / name).load_checkpoint()[1]

    (diverged, a), (five, b) = kept(9, "a"), kept(5, "b")
    assert (diverged.status, five.status) == ("diverged", "finished")
    assert a.keys() == b.keys()
    assert "late.uploads" in a
    assert all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize(
    ("name", "faults", "sentence"),
    [
        ("scaffnew", Faults(before=0.1), "defined for full participation"),
        ("fedcanon2", Faults(available=Cycle(3)), "defined for full participation"),
        ("scaffnew", Faults(slow=0.1), "agree on how many steps"),
        ("fedproxlod", Faults(stale=0.1), "queries its cohort within a round"),
        ("mime", Faults(stale=0.1), "queries its cohort within a round"),
        ("fedcanon", Faults(stale=0.1), "with the mean of the same round"),
        ("fedavg", Faults(available=[[True] * 3]), "one bool for each of 8 clients"),
        ("fedavg", 0.1, r"Scenario\(faults=...\) must be a tf.faults.Faults"),
    ],
)
def test_what_makes_no_sense_is_refused(name, faults, sentence):
    cohort = None if get(name).full else 5
    with pytest.raises(ArgumentError, match=sentence):
        bound(**settings(name, faults, cohort=cohort))


def test_solvers_have_no_steps_to_leave_out():
    with pytest.raises(ArgumentError, match="solve their problem to a tolerance"):
        bound(**settings(get("fedadmm", mu=0.5, solver="exact"), Faults(slow=0.1)))


def test_private_means_take_no_late_answers():
    bounds = tf.privacy.Bounds(vectors={"delta": 1.0})
    private = tf.privacy.Privacy(noise=1.0, clients=CLIENTS, cohort=5, bounds=bounds, seed=0)
    given = settings("fedavg", Faults(stale=0.1), aggregate=private)
    with pytest.raises(ArgumentError, match="knows how many clients a round has"):
        bound(**given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"before": -0.1}, r"Faults\(before=...\) must be a finite number >= 0"),
        ({"before": 0.6, "after": 0.6}, "sum must be at most 1, got 1.2"),
        ({"delay": 2}, "give stale, too"),
        ({"stale": 0.1, "delay": 0}, r"Faults\(delay=...\) must be an int >= 1"),
        ({"available": [1, 2]}, "must be a table of booleans"),
    ],
)
def test_bad_settings(given, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        Faults(**given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("before", "must be written KEY=VALUE"),
        ("befor=0.1", "Did you mean 'before'. Known: after, available, before, delay"),
        ("before=a", "faults: before must be a number"),
        ("before=0.1,before=0.2", "has before twice"),
        ("available=x", "must be PERIOD or PERIOD/SHARE"),
    ],
)
def test_bad_words(text, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        parse(text)


def said(words, capsys):
    with pytest.raises(SystemExit) as done:
        main(words)
    return done.value.code, capsys.readouterr().out


def test_the_command_line(tmp_path, capsys):
    words = "run --rounds 4 --steps 2 --clients 6 --cohort 4 --method scaffold --json"
    faults = "before=0.2,after=0.2,stale=0.2,delay=2,slow=0.1,available=4/0.75"
    folder = str(tmp_path / "run")
    code, text = said([*words.split(), "--faults", faults, "--out", folder], capsys)
    assert code == 0
    assert json.loads(text)["status"] == "finished"
    rows = tf.Run.load(folder).history
    assert all({"answered", "lost", "slow", "late", "stale"} <= row.keys() for row in rows)
    assert "Cycle(period=4, share=0.75)" in RunFolder(folder).read_settings()["faults"]
    assert said(["run", "--resume", folder], capsys)[0] == 0
