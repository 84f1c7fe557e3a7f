"""Columns are standardised over a federation as in a simulation, in the open and under masks."""

from dataclasses import replace

import pytest
import torch

import tunefree as tf
from flower.local import CLIENTS, LocalTransport, settings
from flower.test_parity import simulated
from tunefree.flower.serve import serve
from tunefree.privacy import Secure

STANDARD = tf.Preprocess(scale="standard")
STEP = tf.methods.get("fedavg", lr=0.1)
MIME = tf.methods.get("mime", lr=0.1)  # asks clients within a round
PREPARES = tf.methods.get("parfrefl")


def spread(method, transport, **given):
    return serve(settings(method, **given), transport)


@pytest.mark.parametrize("method", [STEP, MIME, PREPARES], ids=["plain", "query", "prepare"])
def test_as_in_a_simulation(method, tmp_path):
    alone = simulated(method, preprocess=STANDARD)
    run = spread(method, LocalTransport(tmp_path, method), preprocess=STANDARD)
    torch.testing.assert_close(run.scaling, alone.scaling, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run.x, alone.x, rtol=1e-9, atol=1e-9)
    assert run.history[-1]["test_loss"] == pytest.approx(alone.history[-1]["test_loss"])
    up = "bytes_up.moments"
    assert run.history[0][up] == alone.history[0][up] == CLIENTS * (1 + 2 * 5) * 8
    assert up not in run.history[1]
    assert all(row["bytes_down.scale"] >= 4 * 2 * 5 * 8 for row in run.history)


def test_auto_by_name(tmp_path):
    transport = LocalTransport(tmp_path)
    given = settings(STEP)
    run = serve(tf.flower.Settings(**{**vars(given), "method": "auto", "set": {}}), transport)
    assert run.scaling is not None
    assert run.settings["scale"] == "standard"
    assert run.settings["method"]["weight_decay"] == 1 / run.settings["data"]["samples"]
    assert (run.settings["validation"], run.settings["patience"]) == (None, None)
    assert (run.status, len(run.history)) == ("finished", given.rounds)


def test_under_masks(tmp_path):
    pytest.importorskip("cryptography")
    run = spread(
        STEP, LocalTransport(tmp_path, STEP), preprocess=STANDARD, secure=Secure(bound=64.0)
    )
    alone = simulated(replace(STEP, weights="uniform"), preprocess=STANDARD)  # as it is under masks
    torch.testing.assert_close(run.scaling, alone.scaling, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run.x, alone.x, rtol=1e-6, atol=1e-6)
    plain = {name for row in run.history for name in row if name.startswith("bytes_up.")}
    assert "bytes_up.moments" not in plain  # only what is masked leaves a client


def test_resume(tmp_path):
    class Dying(LocalTransport):
        def before(self, i, payload):
            if payload.header.get("round") == 1:
                raise RuntimeError("the server dies")
            return payload

    out = tmp_path / "run"
    with pytest.raises(RuntimeError, match="dies"):
        spread(STEP, Dying(tmp_path / "nodes", STEP), preprocess=STANDARD, out=out)
    run = spread(STEP, LocalTransport(tmp_path / "nodes", STEP), preprocess=STANDARD, out=out)
    whole = spread(STEP, LocalTransport(tmp_path / "other", STEP), preprocess=STANDARD)
    assert torch.equal(run.x, whole.x)
    assert torch.equal(run.scaling, whole.scaling)


@pytest.mark.parametrize("wrong", ["samples", "squares", "shape"])
def test_wrong_moments_are_refused(wrong, tmp_path, caplog):
    class Lying(LocalTransport):
        def after(self, i, payload, answer):
            if payload.header.get("what") == "moments" and i == 2:
                old = answer.arrays["point 0"]
                values = torch.frombuffer(bytearray(old.data), dtype=torch.float64)
                if wrong == "samples":
                    values[0] = 0.0
                elif wrong == "squares":
                    values[-1] = -1.0
                data = values.numpy().tobytes()[: 8 if wrong == "shape" else None]
                answer.arrays["point 0"] = type(old)(old.dtype, old.shape, old.form, data)
            return answer

    with pytest.raises(tf.core.errors.TunefreeError, match="of the 6 answers"):
        spread(STEP, Lying(tmp_path, STEP), preprocess=STANDARD)
    assert "client 2 is refused" in caplog.text


def test_nodes_with_other_columns_are_refused(tmp_path, caplog):
    class Wide(LocalTransport):
        def after(self, i, payload, answer):
            if payload.header.get("kind") == "hello" and i == 2:
                answer.header["columns"] = 9
            return answer

        def pause(self):
            pass

    with pytest.raises(tf.core.errors.TunefreeError, match="did not come"):
        spread(STEP, Wide(tmp_path, STEP))
    assert "columns, others have" in caplog.text
