"""Every method on a GPU: where there is one, it must agree with the CPU."""

import pytest
import torch

import tunefree as tf
from every.cases import CLASSES, close, make_federation, make_net
from helpers import grouped

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU; the same code runs on the CPU elsewhere"
)


def fit(method, device, fed=None, model=None, **settings):
    given = {"rounds": 3, "cohort": 4, "batch": 4, "seed": 7} | settings
    if isinstance(method, tf.Method) and method.full:
        given["cohort"] = None
    fed = make_federation() if fed is None else fed
    model = make_net() if model is None else model
    return tf.fit(model, fed, method, device=device, dtype=torch.float64, **grouped(**given))


def test_agrees_with_the_cpu(method, work):
    here, there = fit(method, "cpu", **work), fit(method, "cuda", **work)
    assert there.x.device.type == there.output.device.type == "cuda"
    close(there.x.cpu(), here.x, 1e-7)
    close(there.output.cpu(), here.output, 1e-7)
    assert next(there.model.parameters()).device.type == "cpu"
    assert there.predict(make_federation().test[0], raw=True).device.type == "cpu"


def test_resume_and_load(method, tmp_path):
    def crash(event):
        if event.round == 1:
            raise ZeroDivisionError

    whole = fit(method, "cuda", steps=3)
    with pytest.raises(ZeroDivisionError):
        fit(method, "cuda", steps=3, out=tmp_path, checkpoint_every=1, callbacks=[crash])
    again = fit(method, "cuda", steps=3, out=tmp_path, checkpoint_every=1)
    close(again.x, whole.x)
    assert torch.equal(tf.Run.load(tmp_path, make_net()).output, again.output.cpu())
    fit("fedavg", "cpu", steps=3, model=again)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_measurements(weights):
    method = tf.methods.get("fedavg", weights=weights)
    for owner in (None, torch.arange(14) % 6):
        fed = make_federation()
        fed = tf.Federation(
            fed.x, fed.y, fed.owners(), test=fed.test, test_owner=owner, classes=CLASSES
        )
        settings = {"validation": 0.3, "keep_best": True, "per_client": True, "steps": 3}
        here, there = (fit(method, device, fed, **settings) for device in ("cpu", "cuda"))
        for name in ("test_loss", "validation_loss", "client_worst", "client_spread"):
            assert there.history[-1][name] == pytest.approx(here.history[-1][name], abs=1e-9)


def test_the_loop_engine():
    here = fit("scaffold", "cpu", steps=3, engine="loop")
    close(fit("scaffold", "cuda", steps=3, engine="loop").x.cpu(), here.x, 1e-7)
