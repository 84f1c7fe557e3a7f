"""Options of the compiler, and the versions in which it is not safe."""

import warnings

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.models import engine
from tunefree.models.compiled.compiler import MAX_FUSED_OPS, compile_graph, is_in_place_safe
from tunefree.models.compiled.descent import CompiledDescent


def test_on_a_gpu_kernels_are_not_chosen_by_timing(monkeypatch):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.update(options))
    compile_graph(torch.sin, torch.device("cuda"))
    assert given == {
        "dynamic": False,
        "options": {
            "deterministic": True,
            "shape_padding": False,
            "realize_opcount_threshold": MAX_FUSED_OPS,
        },
    }
    assert set(given["options"]) <= set(torch._inductor.list_options())


def test_a_warning_about_few_classes_is_suppressed(monkeypatch):
    """Also where warnings are errors, as they are here."""

    def compile(function, **options):
        def loud(x):
            warnings.warn(x, stacklevel=1)
            return function(x)

        return loud

    monkeypatch.setattr(torch, "compile", compile)
    fast = compile_graph(len, torch.device("cuda"))
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
def test_versions_that_are_safe_in_place(version, device, safe, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert is_in_place_safe(torch.device(device)) is safe


def run(compile):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=draw)
    y = torch.randint(4, (60,), generator=draw)
    fed = tf.Federation(x, y, torch.arange(60) % 6, classes=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))
    given = {"rounds": 2, "steps": 3, "batch": 5, "dtype": torch.float64, "device": "cpu"}
    return tf.fit(model, fed, tf.methods.get("fedavg", lr=1.0), compile=compile, **given)


@pytest.mark.compiled_engines
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
def test_compiled_layers_move_together():
    """The gradient of a layer uses the next layer's weights of before the step."""
    fast, plain = run(compile=True), run(compile=False)
    assert fast.settings["engine"] == "vmap, compiled"
    torch.testing.assert_close(fast.x, plain.x, rtol=1e-9, atol=1e-11)


@pytest.mark.compiled_engines
@pytest.mark.parametrize("safe", [False, True])
def test_only_a_safe_compiler_gets_steps_in_place(safe, monkeypatch):
    steps, step = [], CompiledDescent.step
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: graph)
    monkeypatch.setattr(engine, "is_in_place_safe", lambda device: safe)
    monkeypatch.setattr(CompiledDescent, "step", lambda *a: steps.append(0) or step(*a))
    fast, plain = run(compile=True), run(compile=False)
    assert fast.settings["engine"] == "vmap, compiled"
    assert bool(steps) is safe
    torch.testing.assert_close(fast.x, plain.x, rtol=1e-9, atol=1e-11)
