"""Every number that a user can give: refused with a sentence before round 0, or computed with.

The settings are found by their defaults and types, so that a new option or part is tested without
being listed here.
"""

import math
import tracemalloc
from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree import cli, methods
from tunefree.core.errors import ArgumentError, DataError, TunefreeError, check_int, check_numbers
from tunefree.flower.serve import limit_claims
from tunefree.flower.settings import Settings
from tunefree.training.bind import bind
from tunefree.training.client_data import SimulatedClients
from tunefree.training.config import GROUP_OF, OPTIONS, RunConfig

BAD = (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e39, 10**400, 2**70, -(2**70))
HUGE = (1e308, 1e39, 10**400, 2**70)  # refused in float32, whatever the setting
LARGE = (1e18, 3e38, 1e-37)  # may be accepted: the run ends, or diverges with a sentence


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def problem():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=draw)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model, tf.Federation(x, y, [0, 1, 2] * 4, test=(x, y), held=(x, y))


def bound(**options):
    model, fed = problem()
    given = {"rounds": 1, "steps": 1, "batch": 2, "device": "cpu"} | options
    return bind(RunConfig().replace(**given), model, SimulatedClients(fed))


SETTINGS = [
    (name, p.name)
    for name in methods.names()
    for p in methods.registry.settings(name).values()
    if is_number(p.default) or "float" in str(p.annotation) or "int" in str(p.annotation)
]


def test_there_are_settings():
    assert {("fedavg", "lr"), ("fedavg", "server_lr"), ("fedadam", "eps")} <= set(SETTINGS)


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=[f"{n}-{s}" for n, s in SETTINGS])
def test_settings_of_methods(name, setting):
    for value in BAD:
        try:
            bound(method=methods.get(name, **{setting: value}))
            accepted = True
        except TunefreeError:
            accepted = False
        assert not (accepted and value in (*HUGE, math.inf, -math.inf)), value
        assert not (accepted and value != value)
    model, fed = problem()
    for value in LARGE:
        try:
            method = methods.get(name, **{setting: value})
            run = tf.fit(model, fed, method, rounds=1, steps=1, batch=2, device="cpu")
        except TunefreeError:
            continue
        assert run.status in ("finished", "diverged")


@pytest.mark.parametrize("name", ["fedadam", "fedavg", "fedmid"])
@pytest.mark.parametrize("value", [1e308, 1e-307, 1e200, 1e-200])
def test_numbers_at_the_end_of_float64(name, value):
    """Their squares and inverses are none: refused, or diverged, with a sentence."""
    model, fed = problem()
    for setting in [s for n, s in SETTINGS if n == name]:
        try:
            method = methods.get(name, **{setting: value})
        except TunefreeError:
            continue
        given = {"rounds": 2, "steps": 1, "batch": 2, "device": "cpu", "dtype": torch.float64}
        try:
            run = tf.fit(model.double(), fed, method, **given)
        except TunefreeError:
            continue
        assert run.status in ("finished", "diverged")
        assert torch.isfinite(run.x).all()


@pytest.mark.parametrize("setting", ["clip", "weight_decay"])
def test_options_of_any_method(setting):
    for value in BAD:
        with pytest.raises(TunefreeError):
            bound(method=methods.get("fedavg", **{setting: value}))


NUMBERS = [f.name for _, f in OPTIONS if f.metadata.get("least") is not None or f.name == "seed"]


@pytest.mark.parametrize("option", [*NUMBERS, "validation"])
@pytest.mark.parametrize("value", [*BAD, True, "1", 2.5], ids=str)
def test_options_of_a_run(option, value):
    given = {option: value} | ({"steps": None} if option == "epochs" else {})
    if option == "patience":
        given["validation"] = 0.5
    with pytest.raises(TunefreeError):
        bound(**given)


SERVER = [
    f.name
    for f in fields(Settings)
    if f.name not in {o.name for _, o in OPTIONS} | {"clients"} | set(GROUP_OF.values())
    and (is_number(f.default) or (f.default is not MISSING and "int" in str(f.type)))
]


@pytest.mark.parametrize("option", [*SERVER, "clients", "minimum"])
def test_options_of_a_federation(option):
    assert {"deadline", "wait", "largest", "claim_limit"} <= set(SERVER)
    for value in (math.nan, math.inf, -math.inf, 10**400, "1"):
        with pytest.raises(TunefreeError):
            Settings(**{"model": nn.Linear(3, 2), "clients": 3, option: value})


class Mine(tf.clients.Step):
    """A user's own step that checks nothing."""

    def __init__(self, lr):
        self.lr = lr

    def take(self, y, d, context, scratch):
        return y - self.lr * d, y.new_full(y.shape[:1], self.lr), scratch


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308, 1e39, 1e-40])
def test_a_part_that_checks_nothing(value):
    with pytest.raises(ArgumentError, match=r"step\.lr=\.\.\.\) must be a finite number"):
        bound(method=tf.Method(step=Mine(value)))
    if value in (1e39, 1e-40):  # of float64
        assert bound(method=tf.Method(step=Mine(value)), dtype=torch.float64)


def test_check_numbers_looks_inside():
    check_numbers("f", {"a": [1, 2.5, None, "x", {"b": (True, 3)}]})
    with pytest.raises(
        ArgumentError, match=r"f\(a\.1\.b=\.\.\.\) must be a finite number, got nan"
    ):
        check_numbers("f", {"a": [1, {"b": math.nan}]})
    with pytest.raises(ArgumentError, match=r"of size 0 to 9.2e\+18"):
        check_numbers("f", {"a": 2**64})
    with pytest.raises(ArgumentError, match=r"must be below 2\*\*63, got"):
        check_int("f", "a", 1 << 63)
    with pytest.raises(ArgumentError, match="an int >= 1, got 0"):
        check_int("f", "a", 0)


COMMANDS = {
    "--set lr=1e308 --method fedavg": "fedavg(step.lr=...) must be a finite number, 0 or of size",
    "--set server_lr=1e308 --method fedavg": "server_lr=...) must be a finite number, 0 or of size",
    "--set clip=1e308 --method fedavg": "clip=...) must be a finite number, 0 or of size",
    "--set max_lr=1e308 --method fedsls": "max_lr=...) must be a finite number, 0 or of size",
    "--set eps=1e308 --method fedadam": "eps=...) must be a finite number, 0 or of size",
    "--batch 99999999999999999999999": "batch=...) must be below 2**63",
    "--steps 99999999999999999999999": "steps=...) must be below 2**63",
    "--steps 4611686018427387904": "This takes more memory than there is",
    "--device meta": "must be 'auto' or a device of this machine, got 'meta'",
    "--jobs 99999999999": "jobs=...) must be below 2**12",
    "--out=": "--out must not be empty",
    "--figures=": "--figures must not be empty",
}


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.usefixtures("wide")
def test_one_sentence_and_nothing_written(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = words.split()
    device = [] if "--device" in words else ["--device", "cpu"]
    command = ["compare", "--methods", "fedavg"] if "--jobs" in words else ["run"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--clients", "3", "--rounds", "1", *device, *given])
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    assert COMMANDS[words] in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, fed = problem()
    with pytest.raises(ArgumentError, match=r"fit\(out=\.\.\.\) must be a folder, got ''"):
        tf.fit(model, fed, rounds=1, out="")
    with pytest.raises(ArgumentError, match=r"compare\(out=\.\.\.\) must be a folder"):
        tf.compare(model, fed, ["fedavg"], rounds=1, seeds=1, out="")
    with pytest.raises(SystemExit):
        cli.main(["run", "--out", ""])
    assert "--out must not be empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


SPARSE = torch.eye(6).to_sparse()
DENSE, LABELS, OWNER = torch.randn(6, 6), [0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1]
MASKED = np.ma.masked_array(np.ones((6, 6), np.float32), mask=np.eye(6, dtype=bool))
TENSORS = {
    "sparse": SPARSE,
    "meta": torch.empty(6, 6, device="meta"),
    "complex": torch.ones(6, 6, dtype=torch.complex64),
    "masked": MASKED,
    "rows": list(MASKED),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("kind", [*TENSORS, "csr"])
def test_arrays_whose_numbers_are_not_there(kind):
    value = TENSORS[kind] if kind != "csr" else DENSE.to_sparse_csr()
    said = "masked entries" if kind in ("masked", "rows") else "dense tensor of real numbers"
    with pytest.raises(DataError, match=said):
        tf.Federation(value, LABELS, OWNER)
    with pytest.raises(DataError, match=said):
        tf.Federation({"a": value, "b": DENSE}, LABELS, OWNER)
    with pytest.raises(DataError, match=said):
        tf.Federation(DENSE, value, OWNER)
    with pytest.raises(DataError, match=said):
        tf.Federation(DENSE, LABELS, OWNER, test=(value, LABELS))
    run = tf.fit(nn.Linear(6, 2), tf.Federation(DENSE, LABELS, OWNER), rounds=1, steps=1)
    with pytest.raises(DataError, match=f"Run.predict.* {said}"):
        run.predict(value)


def test_masks_of_owners_and_samples():
    owner = np.ma.masked_array(OWNER, mask=[1, 0, 0, 0, 0, 0])
    with pytest.raises(DataError, match="no masked entries, but has 1"):
        tf.Federation(DENSE, LABELS, owner)
    samples = [(row, label) for row, label in zip(MASKED, LABELS, strict=True)]
    with pytest.raises(DataError, match="no masked entries, but has 1"):
        tf.Federation.of([samples, samples])
    unmasked = np.ma.masked_array(np.ones((6, 6), np.float32))
    assert tf.Federation(unmasked, LABELS, OWNER).samples == 6


MANY = {
    "classes": lambda: tf.Federation(DENSE, LABELS, OWNER, classes=10**9),
    "label": lambda: tf.Federation(DENSE, [0, 1, 0, 1, 0, 10**9], OWNER),
    "build": lambda: tf.models.build("linear", shape=(4,), classes=10**9),
}


@pytest.mark.parametrize("given", MANY)
def test_very_many_classes_take_no_memory(given):
    tracemalloc.start()
    with pytest.raises(TunefreeError, match=r"2\*\*20|1,048,576"):
        MANY[given]()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 22
    fed = tf.Federation(DENSE, LABELS, OWNER, classes=1 << 19)
    assert "labels" not in fed.picture()


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["positive", "negative"])
def test_ints_that_python_does_not_print(value):
    """The message names their size, since `repr` refuses them."""
    for act in (
        lambda: methods.get("fedavg", lr=value),
        lambda: methods.get("fedprodigy", d_rel=value),
        lambda: bound(rounds=value),
        lambda: bound(seed=value),
        lambda: check_numbers("fit", {"a": [value]}),
    ):
        with pytest.raises(ArgumentError, match="got an int of 16610 bits"):
            act()


@pytest.mark.parametrize("limit", [1.0, 10.0, 1e39, 1e308, 2**63])
def test_limits_of_claims(limit):
    claims = [5, 3, 8, 2**40]
    want = [min(n, limit * 5) for n in claims]
    assert limit_claims(claims, limit).tolist() == want


@pytest.mark.parametrize("value", ["x", None, torch.ones(2), math.nan, 10**400, -1])
def test_weights_of_classes(value):
    with pytest.raises(ArgumentError, match="class_weight"):
        bound(class_weight={0: value})


@pytest.mark.parametrize("value", ["x", None, torch.ones(2), 10**400, 10**5000], ids=range(5))
def test_metrics_that_are_no_numbers(value):
    model, fed = problem()
    own = tf.Evaluate(metrics={"own": lambda output, target: value})
    with pytest.raises(ArgumentError, match="'own' must return one number, got a"):
        tf.fit(model, fed, "fedavg", rounds=1, steps=1, device="cpu", evaluate=own)
