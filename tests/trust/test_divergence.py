"""Runs that blow up, and clients that do: noticed at once, said, and nothing finite is lost."""

import copy
import logging

import pytest
import torch
from torch import nn

import tunefree as tf
from flower import local
from helpers import drop_seconds
from tunefree.core.errors import TunefreeError
from tunefree.simulation import cohort
from tunefree.testing._problem import make_federation
from tunefree.training.folder import RunFolder

BAD = 3


class Squares(nn.Module):
    """Lets everything through but inputs whose square overflows: they become NaN."""

    def forward(self, x):
        return x + 0.0 * x.square()


def brittle():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(Squares(), nn.Linear(5, 3)).double()


def spoilt(bad=BAD, rows=slice(None), size=1e308):
    """The small federation, with a client some of whose samples are far too large."""
    fed = make_federation()
    x, owner = fed.x.clone(), fed.owners()
    mine = (owner == bad).nonzero().flatten()[rows]
    x[mine] = size * torch.sign(x[mine])
    return tf.Federation(x, fed.y, owner, test=fed.test, held=fed.held, classes=3)


def fit(method, fed=None, **given):
    method = tf.methods.get(method) if isinstance(method, str) else copy.deepcopy(method)
    words = local.arguments(method, **({"engine": "loop", "device": "cpu"} | given))
    return tf.fit(brittle(), spoilt() if fed is None else fed, method, **words)


@pytest.mark.parametrize("name", tf.methods.names())
def test_every_method_leaves_a_broken_client_out(name, caplog):
    """Or stops, where a method needs everybody."""
    caplog.set_level(logging.INFO, "tunefree")
    method = tf.methods.get(name)
    run = fit(name, rounds=4)
    assert torch.isfinite(run.x).all()
    assert torch.isfinite(run.output).all()
    if method.full or method.prepares:
        assert (run.status, run.history) == ("diverged", [])
        assert f"client {BAD} is refused" in caplog.text
        return
    assert run.status == "finished"
    refused = [row["round"] for row in run.history if row.get("refused")]
    assert refused
    assert all(f"Round {t}: client {BAD} is refused" in caplog.text for t in refused)
    loud = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    (first, *summary) = [text for text in loud if "refused" in text]  # not a line a round
    assert first.startswith(f"Round {refused[0]}: client {BAD} is refused")
    said = f"In {len(refused)} rounds from {refused[0]} to {refused[-1]}, clients were refused"
    assert [text.startswith(said) for text in summary] == [True] * (len(refused) > 1)
    assert {row["refused"] for row in run.history if "refused" in row} == {1}


@pytest.mark.parametrize("name", ["scaffold", "fedexp", "fedefams", "mime", "fedproxlod"])
def test_it_is_what_a_federation_does(name, tmp_path, monkeypatch):
    """The server of a real federation refuses such an upload; the numbers are the same."""
    monkeypatch.setattr(local, "make_net", brittle)
    method = tf.methods.get(name)
    alone = fit(name, engine=tf.Engine(chunk=1))
    spread = local.train(method, local.LocalTransport(tmp_path, method, spoilt()), fed=spoilt())
    torch.testing.assert_close(alone.x, spread.x, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(alone.output, spread.output, rtol=1e-12, atol=1e-14)
    names = ["train_loss", "refused", "bytes_up.delta", "lr"]
    names += [] if name in ("mime", "fedproxlod") else ["gradients"]  # answers took some too
    for a, b in zip(alone.history, spread.history, strict=True):
        assert {k: a.get(k) for k in names} == pytest.approx({k: b.get(k) for k in names})


@pytest.mark.parametrize("name", ["scaffold", pytest.param("fedcanon", marks=pytest.mark.trust)])
def test_chunks_do_not_matter(name):
    runs = [
        fit(name, engine=tf.Engine(backend="vmap", chunk=c), steps=2, rounds=3)
        for c in (None, 1, 3)
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.x, runs[0].x, rtol=1e-12, atol=1e-12)
        assert [r.get("refused") for r in run.history] == [
            r.get("refused") for r in runs[0].history
        ]
        assert [r["bytes_up"] for r in run.history] == [r["bytes_up"] for r in runs[0].history]


def test_the_mean_is_over_the_others():
    """The last client is broken: the run is that of a federation without it."""
    last = 5
    run = fit("fedavg", spoilt(last), cohort=None)
    fed = make_federation()
    few = fed.owners() < last
    others = tf.Federation(fed.x[few], fed.y[few], fed.owners()[few], test=fed.test, classes=3)
    want = fit("fedavg", others, cohort=None)
    torch.testing.assert_close(run.x, want.x, rtol=1e-12, atol=1e-12)
    for a, b in zip(run.history, want.history, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"])
        assert (a["gradients"], a["refused"]) == (b["gradients"], 1)
        assert a["bytes_up.delta"] == b["bytes_up.delta"]
        assert a["bytes_up.refused"] == a["bytes_up.delta"] // 5
        assert a["bytes_up"] == a["bytes_up.delta"] + a["bytes_up.refused"]


def test_its_memory_stays_and_the_means_agree(tmp_path):
    """SCAFFOLD's c is the mean of all c_i, the refused one's being what it was."""
    fed = spoilt(rows=slice(1))  # breaks in those rounds that draw this sample
    fit("scaffold", fed, rounds=8, cohort=None, steps=1, batch=4, out=tmp_path)
    rows = RunFolder(tmp_path).read_history()
    refused = [row["round"] for row in rows if row.get("refused")]
    assert 0 < len(refused) < 8
    tensors = RunFolder(tmp_path).load_checkpoint()[1]
    (own,) = [v for k, v in tensors.items() if k.startswith("memory.direction.")]
    (shared,) = [v for k, v in tensors.items() if k.startswith("direction.")]
    assert torch.isfinite(own).all()
    torch.testing.assert_close(own.mean(0), shared, rtol=1e-10, atol=1e-12)


def test_finite_numbers_are_left_as_they_are(monkeypatch):
    """Looking changes nothing, and neither does a sum that overflows although its terms do not."""
    fed, given = make_federation(), {"dtype": torch.float32, "rounds": 3}
    seen = fit("scaffold", fed, **given)
    monkeypatch.setattr(cohort, "checksums", lambda works, *found: works[0].loss.double() * 0)
    assert torch.equal(seen.x, fit("scaffold", fed, **given).x)
    monkeypatch.undo()
    for bad in (torch.inf, -torch.inf, torch.nan):
        for large, dtype in ((3e38, torch.float32), (1e308, torch.float64)):
            rows = torch.full((2, 100), large, dtype=dtype)
            rows[1, 7] = bad
            found = cohort.checksums((), {"delta": rows, "loss": rows[:, 0]})
            assert torch.isfinite(found).tolist() == [True, False]


def test_everybody_broken_is_a_run_that_diverged(caplog):
    fed = make_federation()
    x = 1e308 * torch.sign(fed.x)
    every = tf.Federation(x, fed.y, fed.owners(), test=fed.test, held=fed.held, classes=3)
    run = fit("fedavg", every)
    assert (run.status, run.history) == ("diverged", [])
    assert "Diverged in round 0: the training loss is no longer finite; the state" in caplog.text
    assert "Try a smaller lr (it is 0.1), a smaller server_lr (it is 1), clip=1.0" in caplog.text


class Late(tf.server.Server):
    """A server rule whose memory breaks in its third round, and x with it a round later."""

    def init(self, x, plan):
        return {"m": torch.ones_like(x)}

    def step(self, x, mean, state, t, query):
        broken = float("inf") if t.index == 2 else 1.0
        return x + mean["delta"], {"m": state["m"] * broken}, {}


def test_it_is_noticed_in_the_round_where_it_happens(caplog, tmp_path):
    method = tf.Method(direction=tf.clients.Scaffold(), server=Late(), clip=1.0)
    run = fit(method, make_federation(), rounds=6, out=tmp_path)
    assert (run.status, len(run.history)) == ("diverged", 2)
    assert "Diverged in round 2: the server's memory (m) is no longer finite" in caplog.text
    assert "clip" not in caplog.text
    again = tf.Run.load(tmp_path)
    assert (again.status, len(again.history)) == ("diverged", 2)
    assert torch.equal(again.x, fit(method, make_federation(), rounds=2).x)
    assert all(torch.isfinite(v).all() for v in RunFolder(tmp_path).load_checkpoint()[1].values())


@pytest.mark.parametrize(
    ("name", "tip"),
    [("fedavg", "or method auto."), ("auto", "Try clip=1.0 or smaller inputs, or dtype float64.")],
)
def test_what_to_try(name, tip, caplog):
    fed = make_federation()
    x = 1e308 * torch.sign(fed.x)
    fit(name, tf.Federation(x, fed.y, fed.owners(), held=fed.held, classes=3))
    assert tip in caplog.text


def test_many_broken_clients_are_one_line(caplog):
    x, y = torch.randn(80, 5, dtype=torch.float64), torch.arange(80) % 3
    x[:60] = 1e308 * torch.sign(x[:60])
    fit("fedavg", tf.Federation(x, y, torch.arange(80) // 4), rounds=1, cohort=20)
    assert "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 others are refused" in caplog.text


def test_a_broken_client_under_secure_aggregation():
    pytest.importorskip("cryptography")
    run = fit("fedavg", spoilt(), aggregate=tf.privacy.Secure(), cohort=None, rounds=2)
    plain = fit("fedavg", spoilt(), cohort=None, rounds=2)
    assert [row["refused"] for row in run.history] == [1, 1]
    torch.testing.assert_close(run.x, plain.x, rtol=1e-6, atol=1e-6)


def test_a_resumed_run_refuses_the_same(tmp_path):
    fed, given = spoilt(rows=slice(1)), {"rounds": 6, "cohort": None, "steps": 1}
    want = fit("scaffold", fed, **given)
    assert any(row.get("refused") for row in want.history)

    def stop(event):
        if event.round == 3:
            raise TunefreeError("stopped")

    with pytest.raises(TunefreeError, match="stopped"):
        fit("scaffold", fed, out=tmp_path, checkpoint_every=1, callbacks=[stop], **given)
    run = fit("scaffold", fed, out=tmp_path, **given)
    assert torch.equal(run.x, want.x)
    assert drop_seconds(run.history) == drop_seconds(want.history)
