"""Every method and several compositions, through `fit` alone."""

import signal

import pytest
import torch

import tunefree as tf
from every.cases import SIZES, close, federation, fit, net, same, timeless
from tunefree.errors import Interrupted

ROUNDS = 3


def test_batched_equals_looped(method, work):
    batched = fit(method, engine="vmap", **work)
    looped = fit(method, engine="loop", **work)
    close(batched.x, looped.x)
    close(batched.output, looped.output)
    for a, b in zip(batched.history, looped.history, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-10, abs=1e-10), name


def test_same_seed_same_bits(method, work):
    once = fit(method, **work)
    same(once, fit(method, **work))
    assert not torch.equal(once.x, fit(method, seed=8, **work).x)


def test_chunks_agree(method, work):
    """Other draws would move the result by far more than rounding does."""
    whole = fit(method, chunk=4, rounds=2, **work)
    for chunk in (1, 2, 3):
        part = fit(method, chunk=chunk, rounds=2, **work)
        assert part.settings["chunk"] == chunk
        close(part.x, whole.x)
        close(part.output, whole.output)
        for name in ("bytes_up", "bytes_down", "gradients"):
            assert [row[name] for row in part.history] == [row[name] for row in whole.history]


def test_client_order_does_not_matter(method):
    order = (4, 0, 5, 2, 1, 3)
    alike = {"model": net(dropout=0), "cohort": len(SIZES), "batch": None}
    a = fit(method, federation(), **alike)
    renamed = federation(order)
    assert renamed.sizes.tolist() == [9, 4, 12, 7, 3, 5]
    b = fit(method, renamed, **alike)
    close(a.x, b.x)
    close(a.output, b.output)


def test_inputs_are_unmutated(method):
    fed, model = federation(), net()
    fit(method, fed, model)
    for name, value in net().state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    fresh = federation()
    for a, b in [
        (fed.x, fresh.x),
        (fed.y, fresh.y),
        (fed.sizes, fresh.sizes),
        (fed.starts, fresh.starts),
        (fed.test[0], fresh.test[0]),
        (fed.test[1], fresh.test[1]),
    ]:
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device_are_kept(method, dtype):
    kept = []
    run = tf.fit(
        net(),
        federation(),
        method,
        rounds=2,
        cohort=3,
        steps=2,
        batch=4,
        dtype=dtype,
        device="cpu",
        callbacks=[lambda event: kept.extend([event.x, event.output])],
    )
    for t in [run.x, run.output, *kept, *run.model.parameters()]:
        assert (t.dtype, t.device.type) == (dtype, "cpu")
    assert run.predict(federation().test[0]).dtype == dtype


def test_global_state_is_untouched(method):
    torch.manual_seed(123)
    before, kind, handler = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        signal.getsignal(signal.SIGINT),
    )
    fit(method, rounds=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == kind
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_result_does_not_depend_on_the_global_generator(method):
    torch.manual_seed(1)
    once = fit(method, rounds=2)
    torch.manual_seed(2)
    same(once, fit(method, rounds=2))


def ctrl_c(after):
    def press(event):
        if event.round == after:
            signal.raise_signal(signal.SIGINT)

    return press


class CrashError(Exception):
    pass


def crash(after):
    def fall(event):
        if event.round == after:
            raise CrashError

    return fall


@pytest.fixture
def whole(method):
    return fit(method, rounds=ROUNDS)


def test_interrupted_at_any_round_and_resumed(method, whole, tmp_path):
    for r in range(ROUNDS - 1):
        out = tmp_path / f"stopped-{r}"
        with pytest.raises(Interrupted) as stopped:
            fit(method, rounds=ROUNDS, out=out, callbacks=[ctrl_c(r)])
        partial = stopped.value.run
        assert (partial.status, len(partial.history)) == ("interrupted", r + 1)
        assert timeless(partial.history) == timeless(whole.history[: r + 1])
        assert str(out) in str(stopped.value)
        same(fit(method, rounds=ROUNDS, out=out), whole)
        same(tf.Run.load(out), whole)


def test_ctrl_c_in_the_last_round_finishes(method, whole, tmp_path):
    same(fit(method, rounds=ROUNDS, out=tmp_path, callbacks=[ctrl_c(ROUNDS - 1)]), whole)


def test_crashed_at_any_round_and_resumed(method, whole, tmp_path):
    """A callback raises after the round, so that the checkpoint of that round is not there."""
    saving = {"rounds": ROUNDS, "checkpoint_every": 1}
    for r in range(ROUNDS):
        out = tmp_path / f"crashed-{r}"
        with pytest.raises(CrashError):
            fit(method, out=out, callbacks=[crash(r)], **saving)
        same(fit(method, out=out, **saving), whole)
        same(tf.Run.load(out), whole)


def test_stopped_again_and_again(method, whole, tmp_path):
    for r in range(ROUNDS - 1):
        with pytest.raises(Interrupted):
            fit(method, rounds=ROUNDS, out=tmp_path, callbacks=[ctrl_c(r)])
    same(fit(method, rounds=ROUNDS, out=tmp_path), whole)
    same(fit(method, rounds=ROUNDS, out=tmp_path), whole)  # finished: nothing is trained again
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == ROUNDS


def test_what_is_measured(method):
    """The columns of the history that every method has, and their bytes (section 0.1)."""
    run = fit(method)
    d, size = run.x.numel(), 8
    down = 1 + ("control" in method.direction.uploads)
    up = 1 + ("control" in method.direction.uploads)
    scalars = {
        "down": 1 + method.step.live if isinstance(method.step, tf.clients.DoG) else 0,
        "up": ("delta_sq" in method.server.needs) + len(method.step.uploads),
    }
    for t, row in enumerate(run.history):
        wanted = {"round", "train_loss", "bytes_up", "bytes_down", "lr", "gradients", "seconds"}
        assert wanted | {"server_step", "test_loss", "test_accuracy"} <= row.keys()
        assert row["round"] == t
        assert row["gradients"] == 4 * 3
        asked = isinstance(method.step, tf.clients.DoG) and t == 0
        assert row["bytes_down"] == 4 * size * (d * (down + asked) + scalars["down"])
        assert row["bytes_up"] == 4 * size * (d * up + scalars["up"] + asked)


@pytest.mark.parametrize("option", ["I", "II"])
def test_absent_clients_keep_their_memory(option, tmp_path):
    method = tf.methods.get("scaffold", option=option)
    before = {}
    for t in range(4):
        out = tmp_path / str(t)
        with pytest.raises(Interrupted):
            fit(method, cohort=2, rounds=5, out=out, callbacks=[ctrl_c(t)])
        _, tensors, _ = tf.run.Folder(out).load()
        ids, rows = tensors["memory_ids"].tolist(), tensors["memory.direction.control"]
        now = dict(zip(ids, rows, strict=True))
        present = set(tf.random.cohort(7, t, len(SIZES), 2).tolist())
        assert now.keys() == before.keys() | present
        for i, row in before.items():
            assert torch.equal(now[i], row) == (i not in present)
        before = now
