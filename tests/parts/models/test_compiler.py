"""What the compiler is told, and where it is not trusted."""

import warnings

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.models import engine
from tunefree.models.compiler import LONG, compiled, in_place


def test_on_a_gpu_kernels_are_not_chosen_by_a_clock(monkeypatch):
    told = {}
    monkeypatch.setattr(torch, "compile", lambda function, **words: told.update(words))
    compiled(torch.sin, torch.device("cuda"))
    assert told == {
        "dynamic": False,
        "options": {
            "deterministic": True,
            "shape_padding": False,
            "realize_opcount_threshold": LONG,
        },
    }
    assert set(told["options"]) <= set(torch._inductor.list_options())
    compiled(torch.sin, torch.device("cpu"))
    assert told["options"] is None


def test_what_the_compiler_says_of_few_classes_is_not_handed_on(monkeypatch):
    """Nor does it end the compilation where warnings are errors, as they are here."""

    def compile(function, **words):
        def loud(x):
            warnings.warn(x, stacklevel=1)
            return function(x)

        return loud

    monkeypatch.setattr(torch, "compile", compile)
    fast = compiled(len, torch.device("cuda"))
    assert fast("\nOnline softmax is disabled on the fly") == 38
    with pytest.warns(UserWarning, match="anything else"):
        fast("anything else")


@pytest.mark.parametrize(
    ("version", "device", "safe"),
    [
        ("2.11.0+cu130", "cpu", False),
        ("2.11.1", "cpu", False),
        ("2.11.0+cu130", "cuda", True),
        ("2.12.0", "cpu", True),
        ("2.13.0+cpu", "cpu", True),
        ("3.0.0a0+git1234", "cpu", True),
    ],
)
def test_steps_in_place_need_a_compiler_that_keeps_their_order(version, device, safe, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert in_place(torch.device(device)) is safe


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
@pytest.mark.parametrize("safe", [None, False])
def test_compiled_layers_move_together(safe, monkeypatch):
    """The gradient of a layer is taken where the next one was, not where it has gone."""
    if safe is not None:
        monkeypatch.setattr(engine, "in_place", lambda device: safe)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=draw)
    y = torch.randint(4, (60,), generator=draw)
    fed = tf.Federation(x, y, torch.arange(60) % 6, classes=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))
    words = {"rounds": 2, "steps": 3, "batch": 5, "dtype": torch.float64, "device": "cpu"}
    runs = [
        tf.fit(model, fed, tf.methods.get("fedavg", lr=1.0), compile=c, **words)
        for c in (False, True)
    ]
    assert runs[1].settings["engine"] == "vmap, compiled"
    torch.testing.assert_close(runs[1].x, runs[0].x, rtol=1e-9, atol=1e-11)
