"""What must hold when things go wrong: divergence, damage, frozen parts, odd targets."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import grouped
from tunefree.clients import Constant
from tunefree.clients.rule import Step
from tunefree.core.errors import ArgumentError, ResumeError
from tunefree.training.folder import RunFolder


def federation(seed=0, features=6, classes=3, sizes=(4, 9, 17, 30), test=True):
    g = torch.Generator().manual_seed(seed)
    rows = sum(sizes)
    x = torch.randn(rows, features, generator=g)
    y = (x @ torch.randn(features, classes, generator=g)).argmax(1)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return tf.Federation(x, y, owner, test=(x, y) if test else None, classes=classes)


def linear(features=6, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(features, classes)


class Broken(nn.Module):
    """A model whose loss is finite nowhere."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(6, 3))

    def forward(self, x):
        return x @ self.w / 0.0


@pytest.mark.parametrize("name", ["fedavg", "fedexp", "fedexpm", "fedduadagrad", "fedduadam"])
def test_a_rate_far_too_large_is_called_diverged(name, caplog):
    x = torch.randn(40, 6) * 1e15
    fed = tf.Federation(x, torch.arange(40) % 3, torch.arange(40) % 4, test=None)
    run = tf.fit(linear(), fed, tf.methods.get(name, lr=1e30), rounds=6, steps=3)
    assert run.status == "diverged"
    assert "Diverged in round" in caplog.text
    assert torch.isfinite(run.x).all()
    assert torch.isfinite(run.output).all()


@pytest.mark.parametrize("name", tf.methods.names())
def test_a_loss_that_is_no_number_is_called_diverged(name):
    run = tf.fit(Broken(), federation(), name, rounds=3, steps=2)
    assert run.status == "diverged"
    assert torch.equal(run.x, torch.ones(18))


class Late(tf.server.Server):
    """A server rule that breaks in its third round."""

    def step(self, x, mean, state, t, query):
        return (x + mean["delta"]) * (float("inf") if t.index == 2 else 1.0), state, {}


def test_a_round_that_does_not_count_leaves_clients_as_they_were(tmp_path):
    def method():
        return tf.Method(direction=tf.clients.Scaffold(), server=Late())

    diverged = tf.fit(linear(), federation(), method(), rounds=6, steps=2, out=tmp_path / "a")
    assert (diverged.status, len(diverged.history)) == ("diverged", 2)
    two = tf.fit(linear(), federation(), method(), rounds=2, steps=2, out=tmp_path / "b")
    kept, want = (RunFolder(tmp_path / name).load_checkpoint()[1] for name in "ab")
    assert kept.keys() == want.keys()
    assert all(torch.equal(kept[k], want[k]) for k in kept)
    assert torch.equal(diverged.x, two.x)


class Flat(nn.Module):
    """A convolution whose forward cannot take a batch of no samples."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.out = nn.Linear(2 * 4 * 4, 3)

    def forward(self, x):
        h = self.conv(x)
        return self.out(h.view(h.size(0), -1))


def test_clients_in_turn_with_unequal_epochs():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 1, 6, 6, generator=g, dtype=torch.float64), torch.arange(30) % 3
    fed = tf.Federation(x, y, torch.tensor([0] * 3 + [1] * 27))
    torch.manual_seed(0)
    model, settings = Flat(), {"rounds": 2, "epochs": 1, "batch": 8, "dtype": torch.float64}
    runs = [tf.fit(model, fed, "fedavg", engine=e, **settings) for e in ("loop", "vmap")]
    assert runs[0].settings["engine"] == "loop"
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-10, atol=1e-10)


def test_steps_that_outgrow_the_cache_go_client_by_client():
    """Which engine depends on the bytes of a step and of the parameters, the same every time."""

    def net(width):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 3))

    x, y = torch.randn(120, 1, 6, 6), torch.arange(120) % 3
    fed = tf.Federation(x, y, torch.arange(120) // 60)
    found = [
        tf.fit(net(n), fed, rounds=1, steps=1, batch=b, device="cpu").settings["engine"]
        for n, b in ((6_000, 2), (6_000, 60), (20_000, 2))
    ]
    assert found == ["vmap", "loop", "loop"]


def test_the_summary_is_of_the_model_that_is_shipped():
    fed = federation(sizes=(20, 30, 40))
    run = tf.fit(
        linear(),
        fed,
        tf.methods.get("fedavg", lr=30.0),
        rounds=8,
        evaluate=tf.Evaluate(validation=0.3, keep_best=True),
    )
    scores = [row["validation_accuracy"] for row in run.history]
    best = run.history[int(np.argmax(scores))]
    assert run.summary["test_accuracy"] == best["test_accuracy"]
    got = (run.predict(fed.test[0], raw=True).argmax(1) == fed.test[1]).double().mean()
    assert run.summary["test_accuracy"] == pytest.approx(float(got))


def test_whole_numbers_may_be_a_regression():
    fed = federation()
    target = (fed.x[:, 0] * 5).round().long() + 20
    counts = tf.Federation(fed.x, target, fed.owners(), test=(fed.x, target))
    run = tf.fit(
        nn.Linear(6, 1),
        counts,
        "fedavg",
        loss="mse",
        rounds=3,
        evaluate=tf.Evaluate(validation=0.3, patience=1),
    )
    assert "test_accuracy" not in run.history[-1]
    assert run.status == "finished"


def frozen_net(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    net[0].requires_grad_(False)
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    return net


def test_frozen_parts_belong_to_a_run(tmp_path):
    fed, folder = federation(), tmp_path / "run"
    run = tf.fit(frozen_net(0), fed, rounds=3, out=folder)
    with pytest.raises(ResumeError, match="frozen was"):
        tf.fit(frozen_net(1), fed, rounds=3, out=folder)
    with pytest.raises(ArgumentError, match="frozen parameters"):
        tf.Run.load(folder, frozen_net(1))
    again = tf.Run.load(folder, frozen_net(0))
    assert torch.equal(again.predict(fed.x, raw=True), run.predict(fed.x, raw=True))


def test_a_damaged_line_of_the_history_costs_one_row(tmp_path, caplog):
    fed, folder = federation(), tmp_path / "run"
    stop = [5]

    def crash(event):
        if event.round == stop[0]:
            raise RuntimeError("power cut")

    settings = {"rounds": 8, "steps": 2, "out": folder, "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="power cut"):
        tf.fit(linear(), fed, "fedavg", callbacks=[crash], **settings)
    path = folder / "history.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:20]
    path.write_text("\n".join(lines) + "\n")
    run = tf.fit(linear(), fed, "fedavg", **settings)
    assert [row["round"] for row in run.history] == [0, 1, 3, 4, 5, 6, 7]
    assert "lacks 1 of" in caplog.text


def test_the_good_checkpoint_outlives_a_damaged_one(tmp_path):
    folder = RunFolder(tmp_path)
    for rounds in (4, 8):
        folder.save_checkpoint(rounds, {"x": torch.full((3,), float(rounds))}, {})
    (tmp_path / "state-000008.safetensors").write_bytes(b"cut")
    folder = RunFolder(tmp_path)
    assert folder.load_checkpoint()[0] == 4
    folder.save_checkpoint(5, {"x": torch.full((3,), 5.0)}, {})
    (tmp_path / "state-000005.safetensors").write_bytes(b"cut")
    assert RunFolder(tmp_path).load_checkpoint()[0] == 4


def test_labels_of_the_test_set_count_too():
    fed = federation()
    beyond = tf.Federation(fed.x, fed.y, fed.owners(), test=(fed.x, fed.y + 5))
    with pytest.raises(ArgumentError, match="labels go up to 7; give the last layer 8 outputs"):
        tf.fit(linear(), beyond, rounds=1)


class Mine(Step):
    """A user's own step that is no dataclass."""

    def __init__(self, lr):
        self.lr = lr

    def take(self, y, d, context, scratch):
        return y - self.lr * d, y.new_full(y.shape[:1], self.lr), scratch


def test_a_users_own_part_can_resume(tmp_path):
    fed, settings = federation(), {"rounds": 3, "out": tmp_path / "run"}
    first = tf.fit(linear(), fed, tf.Method(step=Mine(0.1)), **settings)
    again = tf.fit(linear(), fed, tf.Method(step=Mine(0.1)), **settings)
    assert torch.equal(first.x, again.x)
    same = tf.fit(linear(), fed, tf.Method(step=Constant(0.1)), rounds=3)
    torch.testing.assert_close(first.x, same.x)
    with pytest.raises(ResumeError, match=r"method.step.lr was 0.1, now 0.2"):
        tf.fit(linear(), fed, tf.Method(step=Mine(0.2)), **settings)


def test_predict_takes_arrays():
    fed = federation()
    run = tf.fit(linear(), fed, rounds=1)
    wide = fed.x.double().numpy()
    assert torch.equal(run.predict(wide, raw=True), run.predict(fed.x, raw=True))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"metrics": {"loss": lambda o, t: 0.0}}, "cannot have the name 'loss'"),
        ({"engine": "loop", "compile": True}, "only the batched engine is compiled"),
    ],
)
def test_options_that_would_be_ignored_are_refused(given, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        tf.fit(linear(), federation(), rounds=1, **grouped(**given))


def test_metrics_need_data():
    with pytest.raises(ArgumentError, match="needs a test or a validation set"):
        tf.fit(
            linear(),
            federation(test=False),
            rounds=1,
            evaluate=tf.Evaluate(metrics={"f": lambda o, t: 0.0}),
        )


def test_numbers_that_json_lacks_are_null(tmp_path):
    run = tf.fit(
        linear(),
        federation(),
        rounds=1,
        evaluate=tf.Evaluate(metrics={"odd": lambda o, t: float("nan")}),
        out=tmp_path,
    )
    row = json.loads((tmp_path / "history.jsonl").read_text())
    assert row["test_odd"] is None
    assert np.isnan(run.history[0]["test_odd"])


def test_numpy_numbers_are_numbers(tmp_path):
    method = tf.methods.get("fedavg", lr=np.float32(0.125), server_lr=np.float64(1))
    sizes = {"rounds": np.int64(2), "cohort": np.int32(3), "batch": np.int64(4)}
    run = tf.fit(linear(), federation(), method, out=tmp_path / "run", **sizes)
    plain = tf.fit(
        linear(), federation(), tf.methods.get("fedavg", lr=0.125), rounds=2, cohort=3, batch=4
    )
    assert torch.equal(run.x, plain.x)
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (saved["rounds"], saved["method"]["step"]["lr"]) == (2, 0.125)


class Whispers(tf.clients.Plain):
    """A direction that sends what it does not declare."""

    def upload(self, result, own, t):
        return {"secret": result.loss}, own


def test_an_undeclared_channel_is_refused():
    method = tf.Method(direction=Whispers(), name="mine")
    with pytest.raises(tf.TunefreeError, match="A part of mine sends the channel 'secret'"):
        tf.fit(linear(), federation(), method, rounds=1, steps=1)
