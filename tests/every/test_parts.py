"""Every direction, step, server rule, output and wire, found by looking into the rooms."""

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch

import tunefree as tf
from tunefree.clients import Direction, Local, Phi, Plan, Round, Step, Tick, Work
from tunefree.errors import ArgumentError
from tunefree.models import Layout
from tunefree.server import Output, Server

BASES = (Direction, Step, Server, Output)


def is_part(cls, room):
    if room is tf.wire:
        return all(callable(getattr(cls, name, None)) for name in ("pack", "encode", "decode"))
    return issubclass(cls, BASES)


def found():
    """Every public part by "room.Class", from all modules of the rooms."""
    parts = {}
    for room in (tf.clients, tf.server, tf.wire):
        for info in pkgutil.iter_modules(room.__path__):
            module = importlib.import_module(f"{room.__name__}.{info.name}")
            for name, cls in vars(module).items():
                own = isinstance(cls, type) and cls.__module__ == module.__name__
                base = own and (cls in BASES or getattr(cls, "_is_protocol", False))
                if own and not base and not name.startswith("_") and is_part(cls, room):
                    parts[f"{room.__name__.split('.')[1]}.{name}"] = cls
    return parts


PARTS = found()
OF = {base: {k: c for k, c in PARTS.items() if issubclass(c, base)} for base in BASES}
BUILT = {tf.clients.Sum: lambda: tf.clients.Sum(tf.clients.Scaffold(), tf.clients.Proximal(0.5))}


def build(cls):
    return BUILT.get(cls, cls)()


@pytest.fixture(params=PARTS)
def part(request):
    return PARTS[request.param]


def test_the_search_finds_what_is_there():
    assert {"clients.Sum", "clients.DoG", "server.FedDuAdam", "server.Averaged"} <= PARTS.keys()
    assert "wire.Dense" in PARTS
    assert not {"clients.Direction", "server.Server", "wire.Wire"} & PARTS.keys()


def test_is_a_frozen_dataclass(part):
    assert is_dataclass(part)
    assert part.__dataclass_params__.frozen
    assert build(part) == build(part)


def test_is_in_its_room(part):
    room = importlib.import_module(part.__module__.rpartition(".")[0])
    assert part.__name__ in room.__all__
    assert getattr(room, part.__name__) is part


def test_the_module_says_what_it_computes(part):
    doc = importlib.import_module(part.__module__).__doc__
    assert "Differences from the paper" in doc
    equations = [line for line in doc.splitlines() if re.match(r" {4}.*(=|<-)", line)]
    assert equations or part in (tf.server.Last,)
    assert part.__doc__


def test_arguments_are_described(part):
    for field in fields(part):
        if part not in BUILT:
            assert re.search(rf"^ +{field.name}: \S", part.__doc__, re.M), field.name


def arguments(kinds):
    """(class, argument) for every argument whose annotation is one of `kinds`."""
    out = {}
    for name, cls in PARTS.items():
        hints = get_type_hints(cls)
        for field in fields(cls):
            hint = hints[field.name]
            options = get_args(hint) if get_origin(hint) is not Literal else (Literal,)
            if set(options or (hint,)) & kinds:
                out[f"{name}-{field.name}"] = (cls, field.name)
    return out


NUMBERS = arguments({int, float})
CHOICES = arguments({Literal})


def refused(cls, name, value):
    with pytest.raises(ArgumentError) as error:
        cls(**{name: value})
    text = str(error.value)
    for word in (cls.__name__, name, repr(value)):
        assert word in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("value", [float("nan"), -1.0, float("-inf")])
def test_numbers_out_of_range(case, value):
    refused(*NUMBERS[case], value)


@pytest.mark.parametrize("case", NUMBERS)
def test_infinity(case):
    refused(*NUMBERS[case], float("inf"))


@pytest.mark.parametrize("case", NUMBERS)
def test_text_for_a_number(case):
    refused(*NUMBERS[case], "0.1")


@pytest.mark.parametrize("case", arguments({int}))
def test_a_fraction_for_a_whole_number(case):
    refused(*NUMBERS[case], 2.5)


@pytest.mark.parametrize("case", CHOICES)
def test_unknown_choices(case):
    refused(*CHOICES[case], "other")


# Rules are pure: what they are given is as it was.

D, M = 4, 3
X = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
PLAN = Plan(clients=6, cohort=M, rounds=5, steps=2.0, layout=Layout(("w",), ((D,),)))
ROUND = Round(index=1, fraction=0.5, factor=0.7)


def rows(seed, *shape):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (M, D)), generator=draw, dtype=torch.float64)


def walk(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from walk(getattr(value, field.name))


def pure(call, *args):
    """Call, check that no tensor among the arguments changed, and that a second call agrees."""
    before = [t.clone() for t in walk(args)]
    out = call(*args)
    for old, now in zip(before, walk(args), strict=True):
        assert torch.equal(old, now), f"{call.__qualname__} changed its arguments"
    for first, again in zip(walk(out), walk(call(*args)), strict=True):
        assert torch.equal(first, again), f"{call.__qualname__} differs when called again"
    return out


def ask(what, at, who="cohort"):
    one = {"loss": rows(5, 1)[0], "grad": rows(6, D), "grad_sq": rows(7, 1).square()[0]}[what]
    return [one for _ in at]


def expanded(state):
    return {name: v.expand(M, *v.shape).clone() for name, v in state.items()}


WORK = Work(
    delta=rows(1),
    steps=torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64),
    loss=rows(2, M).square(),
    lr=torch.full((M,), 0.1, dtype=torch.float64),
    trials=torch.zeros(M, dtype=torch.float64),
    grad_mean=rows(3),
    grad_sq=rows(3).square().sum(1),
    grad_full=rows(4),
)


def client_hooks(part):
    """Call every hook that directions and steps share, in a round's order."""
    own, shared = pure(part.init, X, PLAN)
    own = expanded(own)
    shared = pure(part.open, X, shared, Round(0, 0.5), ask)
    down = {"x": X, **pure(part.down, shared)}
    sent, memory = pure(part.upload, WORK, X, down, own)
    assert set(sent) == set(part.uploads)
    assert memory.keys() == own.keys()
    mean = {"delta": WORK.delta.mean(0)} | {k: v.mean(0) for k, v in sent.items()}
    after = pure(part.absorb, mean, shared, ROUND)
    assert after.keys() == shared.keys()
    for t in walk([sent, memory, after, shared, down]):
        assert t.dtype == X.dtype
    return down, own


@pytest.mark.parametrize("name", OF[Direction])
def test_directions_are_pure(name):
    part = build(PARTS[name])
    down, own = client_hooks(part)
    local = pure(part.local, X, down, own)
    assert isinstance(local, Local)
    y, g = rows(8), rows(9)
    assert pure(local.bend, g, y).shape == (M, D)
    pure(local.value, y)


@pytest.mark.parametrize("name", OF[Step])
def test_steps_are_pure(name):
    part = build(PARTS[name])
    down, _ = client_hooks(part)
    y, centre = rows(8), rows(9)

    def value(z):
        return (z - centre).square().sum(1)

    phi = Phi(loss=value(y), extra=lambda z: 0.0, value=value, y=y)
    scratch = pure(part.begin, y, down)
    for k in range(3):
        tick = Tick(k, 0.7, torch.full((M,), 0.5, dtype=torch.float64))
        new, lr, after = pure(part.take, y, 2 * (y - centre), phi, tick, down, scratch)
        assert (new.shape, lr.shape) == ((M, D), (M,))
        assert new.dtype == lr.dtype == y.dtype
        assert after.keys() == scratch.keys()
        scratch = after
    assert bool((value(new) < value(y)).all())


@pytest.mark.parametrize("name", OF[Server])
def test_servers_are_pure(name):
    part = build(PARTS[name])
    state, x = pure(part.init, X, PLAN), X
    for k in range(3):
        moves = rows(10 + k)
        mean = {"delta": moves.mean(0), "delta_sq": moves.square().sum(1).mean()}
        assert set(part.needs) <= mean.keys()
        x, after, trace = pure(part.step, x, mean, state, ROUND)
        assert after.keys() == state.keys()
        assert x.shape == X.shape
        assert trace["server_step"].ndim == 0
        assert all(t.dtype == X.dtype for t in walk([x, after, trace]))
        state = after


@pytest.mark.parametrize("name", OF[Server])
def test_servers_stay_finite_when_nobody_moves(name):
    """0/0 in a step size or a preconditioner is 0: x stays where it is."""
    part = build(PARTS[name])
    for small in ({}, {"eps": 0.0}):
        if set(small) <= {f.name for f in fields(part)}:
            part = type(part)(**small)
        mean = {"delta": torch.zeros_like(X), "delta_sq": X.new_zeros(())}
        x, state, trace = part.step(X, mean, part.init(X, PLAN), ROUND)
        assert torch.equal(x, X)
        assert all(bool(torch.isfinite(t).all()) for t in walk([state, trace]))


@pytest.mark.parametrize("name", OF[Output])
def test_outputs_are_pure(name):
    part = build(PARTS[name])
    state = pure(part.init, X)
    assert torch.equal(pure(part.value, X, state), X)
    for k in range(3):
        x = rows(10 + k, D)
        state = pure(part.update, x, state, Round(k, 0.5))
        assert pure(part.value, x, state).dtype == X.dtype


@pytest.mark.parametrize("name", OF[Output])
def test_outputs_of_a_run_that_stands_still(name):
    part = build(PARTS[name])
    state = part.init(X)
    for k in range(4):
        state = part.update(X, state, Round(k, 0.5))
        torch.testing.assert_close(part.value(X, state), X)


@pytest.mark.parametrize("name", [name for name in PARTS if name.startswith("wire.")])
def test_wires_are_pure(name):
    wire = build(PARTS[name])
    sent = rows(20)
    out, size = pure(wire.pack, sent)
    assert out.shape == sent.shape
    assert out.dtype == sent.dtype
    assert size == sum(len(wire.encode(row)) for row in sent)
    for row, arrived in zip(sent, out, strict=True):
        assert torch.equal(wire.decode(wire.encode(row), row), arrived)
