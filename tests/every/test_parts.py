"""Every direction, step, server rule, output and wire, found in the modules of their packages."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch

import tunefree as tf
from tunefree.clients import (
    Direction,
    LineSearch,
    LocalObjective,
    LocalProblem,
    LocalResult,
    Plan,
    Round,
    Step,
    StepContext,
    Upload,
)
from tunefree.core.errors import ArgumentError
from tunefree.core.layout import Layout
from tunefree.penalties import Penalty
from tunefree.server import Mirror, Output, Server
from tunefree.wire import Sender, Wire

BASES = (Direction, Step, Server, Output, Mirror, Wire, Penalty)


def is_part(cls):
    return issubclass(cls, (*BASES, tf.clients.Rates))


def found():
    """Every public part by "package.Class", from all modules of the packages."""
    parts = {}
    for room in (tf.clients, tf.server, tf.wire, tf.penalties, tf.methods):
        for info in pkgutil.iter_modules(room.__path__):
            module = importlib.import_module(f"{room.__name__}.{info.name}")
            for name, cls in vars(module).items():
                own = isinstance(cls, type) and cls.__module__ == module.__name__
                if (
                    own
                    and cls not in (*BASES, LineSearch)
                    and not name.startswith("_")
                    and is_part(cls)
                ):
                    parts[f"{room.__name__.split('.')[1]}.{name}"] = cls
    return parts


PARTS = found()
OF = {base: {k: c for k, c in PARTS.items() if issubclass(c, base)} for base in BASES}
BUILT = {
    tf.clients.Sum: lambda: tf.clients.Sum(tf.clients.Scaffold(), tf.clients.Proximal(0.5)),
    tf.wire.Choose: lambda: tf.wire.Choose(every_other),
    tf.wire.ErrorFeedback: lambda: tf.wire.ErrorFeedback(tf.wire.TopK(0.5)),
}


def every_other(client, round):
    return tf.wire.TopK(0.5) if (client + round) % 2 else tf.wire.Dense()


SIGNED = {"lower"}  # settings that may be negative


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
    if room is tf.methods:
        pytest.skip("defined beside the factory of its method, and imported from there")
    assert part.__name__ in room.__all__
    assert getattr(room, part.__name__) is part


def test_the_docstring_says_what_it_computes(part):
    docs = [inspect.cleandoc(c.__doc__ or "") for c in part.__mro__]
    docs.append(importlib.import_module(part.__module__).__doc__)
    doc = next(doc for doc in docs if "Differences from the paper" in doc)
    equations = [line for line in doc.splitlines() if re.match(r" {4}.*(=|<-)", line)]
    assert equations or part in (tf.server.Last, tf.clients.Rates)
    assert part.__doc__


def test_arguments_are_described(part):
    docs = "\n".join(c.__doc__ or "" for c in part.__mro__)  # a base class may describe it
    for field in fields(part):
        if part not in BUILT:
            assert re.search(rf"^ +{field.name}: \S", docs, re.M), field.name


def arguments(kinds):
    """(class, argument) for every argument whose annotation is one of `kinds`."""
    out = {}
    for name, cls in PARTS.items():
        if cls is tf.penalties.Box:  # open on either side, if one likes; has tests of its own
            continue
        hints = get_type_hints(cls)
        for field in fields(cls):
            hint = hints[field.name]
            options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
            found = {Literal if get_origin(o) is Literal else o for o in options if o is not None}
            if found & kinds:
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
    cls, name = NUMBERS[case]
    if name in SIGNED and value == -1.0:
        cls(**{name: value})
    else:
        refused(cls, name, value)


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
ROUND = Round(PLAN, index=1, fraction=0.5, factor=0.7)
FIRST = Round(PLAN, index=0, fraction=0.5)


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


def ask(what, at, who="cohort", sent=None):
    one = {"loss": rows(5, 1)[0], "grad": rows(6, D), "grad_sq": rows(7, 1).square()[0]}[what]
    return [one for _ in at]


def expanded(state):
    return {name: v.expand(M, *v.shape).clone() for name, v in state.items()}


WORK = LocalResult(
    x=X,
    down={},
    y=rows(1) + X,
    delta=rows(1),
    steps=torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64),
    loss=rows(2, M).square(),
    lr=torch.full((M,), 0.1, dtype=torch.float64),
    trials=torch.zeros(M, dtype=torch.float64),
    grad_mean=rows(3),
    grad_sq=rows(3).square().sum(1),
    grad_full=rows(4),
    point_mean=rows(11),
    loss_end=rows(12, M).square(),
    grad_end=rows(13),
    scratch={},
)
HALF = torch.tensor(0.5, dtype=torch.float64)
BY_SERVER = {"mu": HALF, "lr": HALF / 5}  # what a server rule sends that some parts read
BY_SERVER |= {name: rows(14, D) for name in ("momentum", "before", "control", "dual")}


def client_hooks(part):
    """Call every hook that directions and steps share, in a round's order."""
    own, first = pure(part.init, X, PLAN)
    own = expanded(own)
    shared = pure(part.start_round, X, first, FIRST, ask)
    down = {"x": X, "own_grad": rows(15), **{n: BY_SERVER[n] for n in part.reads}}
    down |= pure(part.down, shared)
    scratch = part.begin(rows(8), down) if isinstance(part, Step) else {}
    sent, memory = pure(part.upload, replace(WORK, down=down, scratch=scratch), own, ROUND)
    assert set(sent) == {*part.uploads, *part.reports}
    assert all(sent[name].shape == (M, D) for name in part.uploads)
    assert all(sent[name].shape == (M,) for name in part.reports)
    mean = {"delta": WORK.delta.mean(0)} | {k: v.mean(0) for k, v in sent.items()}
    if part.updates_memory:
        halved = {name: v / 2 for name, v in sent.items()}
        echoed = {name: mean[name] for name in part.echo}
        for arrived in (halved, sent):
            kept = pure(part.update_memory, Upload(sent, arrived, echoed), memory, ROUND)
        memory = kept
    assert memory.keys() == own.keys()
    after = pure(part.update_shared, mean, shared, ROUND)
    assert after.keys() == first.keys()
    for t in walk([sent, memory, after, shared, down]):
        assert t.dtype == X.dtype
    return down, own


@pytest.mark.parametrize("name", OF[Direction])
def test_directions_are_pure(name):
    part = build(PARTS[name])
    down, own = client_hooks(part)
    for t in (ROUND, Round(PLAN, index=-1)) if part.prepares else (ROUND,):
        local = pure(part.local_problem, X, down, own, t)
    assert isinstance(local, LocalProblem)
    turns, steps = part.local_phases(ROUND)
    assert turns >= 1
    assert steps is None or steps >= 1
    y, g = rows(8), rows(9)
    assert pure(local.correct, g, y).shape == (M, D)
    pure(local.value, y)


@pytest.mark.parametrize("name", OF[Step])
def test_steps_are_pure(name):
    part = build(PARTS[name])
    down, _ = client_hooks(part)
    y, centre = rows(8), rows(9)

    def value(z):
        return (z - centre).square().sum(1)

    phi = LocalObjective(value(y), lambda z: 0.0, value, y, slope=lambda z: 2 * (z - centre))
    scratch = pure(part.begin, y, down)
    for k in range(3):
        share = torch.full((M,), 0.5, dtype=torch.float64)
        context = StepContext(k, ROUND, ROUND.factor, share, WORK.steps, phi, down)
        new, lr, after = pure(part.take, y, 2 * (y - centre), context, scratch)
        assert (new.shape, lr.shape) == ((M, D), (M,))
        assert new.dtype == lr.dtype == y.dtype
        assert after.keys() == scratch.keys()
        scratch = after
    assert bool((value(new) < value(y)).all())


def means(part, seed=None):
    """Means of what a server rule needs: of some moves, or of no move at all."""
    moves = torch.zeros_like(WORK.delta) if seed is None else rows(seed)
    scalar = moves.square().sum(1).mean()
    vectors = {n: moves.mean(0) for n in ("delta", "innovation", "control", "reflected", "grad")}
    scalars = dict.fromkeys(("delta_sq", "loss", "train_loss", "grad_sq", "envelope"), scalar)
    every = vectors | scalars | {"point": X}
    return {name: every[name] for name in part.needs}


def start_of(part):
    return X.abs() + 0.1 if part == tf.server.FedDuA(tf.server.Entropy()) else X


SERVERS = {name: build(cls) for name, cls in OF[Server].items()} | {
    "FedDuA-entropy": tf.server.FedDuA(tf.server.Entropy()),
    "FedDuA-pnorm": tf.server.FedDuA(tf.server.PNorm(1.3), beta1=0.5),
    "Proximal-l1-exp": tf.server.Proximal(tf.penalties.L1(0.1), inner=tf.server.FedExP()),
    "LoD-weighted-no-merge": tf.server.LoD(weighted=True, merge=False),
    "LoD-exact": tf.server.LoD(exact=True),
    "Adaptive-yogi": tf.server.Adaptive("yogi"),
    "Adaptive-adagrad": tf.server.Adaptive("adagrad", beta1=0.0),
    "Extrapolate-stops": tf.server.Extrapolate("stops"),
    "Extrapolate-constant": tf.server.Extrapolate(1.5),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_pure(name):
    part = SERVERS[name]
    x = start_of(part)
    state = pure(part.init, x, PLAN)
    x, state = pure(part.prepare, x, means(part, 9), state, Round(PLAN, index=-1))
    for k in range(3):
        now = Round(PLAN, index=k, fraction=0.5)
        state = pure(part.start_round, x, state, now, ask)
        down = pure(part.down, x, state, now)
        assert set(down) - {"x"} <= {*part.sends, "accept"}
        x, after, trace = pure(part.step, x, means(part, 10 + k), state, now, ask)
        assert after.keys() == state.keys()
        assert x.shape == X.shape
        assert trace["server_step"].ndim == 0
        assert all(t.dtype == X.dtype for t in walk([x, after, trace, down]))
        assert pure(part.output, x, after).shape == X.shape
        state = after


@pytest.mark.parametrize("name", SERVERS)
def test_servers_stay_finite_when_nobody_moves(name):
    """0/0 in a step size or a preconditioner is 0: x stays where it is."""
    given = SERVERS[name]
    if getattr(given, "penalty", tf.penalties.Zero()) != tf.penalties.Zero():
        pytest.skip("the penalty moves x by itself")
    for small in ({}, {"eps": 0.0}):
        if not set(small) <= {f.name for f in fields(given)}:
            continue
        try:
            part = replace(given, **small)
        except ArgumentError:  # this one needs eps > 0
            continue
        start = start_of(part)
        state = part.start_round(start, part.init(start, PLAN), FIRST, ask)
        x, state, trace = part.step(start, means(part), state, FIRST, ask)
        torch.testing.assert_close(x, start, rtol=1e-14, atol=0)
        assert all(bool(torch.isfinite(t).all()) for t in walk([state, trace]))


@pytest.mark.parametrize("name", OF[Output])
def test_outputs_are_pure(name):
    part = build(PARTS[name])
    state = pure(part.init, X)
    assert torch.equal(pure(part.value, X, state), X)
    for k in range(3):
        x = rows(10 + k, D)
        state = pure(part.update, x, state, Round(PLAN, k, 0.5))
        assert pure(part.value, x, state).dtype == X.dtype


@pytest.mark.parametrize("name", OF[Output])
def test_outputs_of_a_run_that_stands_still(name):
    part = build(PARTS[name])
    state = part.init(X)
    for k in range(4):
        state = part.update(X, state, Round(PLAN, k, 0.5))
        torch.testing.assert_close(part.value(X, state), X)


@pytest.mark.parametrize("name", OF[Wire])
def test_wires_are_pure(name):
    wire = build(PARTS[name])
    sent, layout = rows(20), PLAN.layout
    own = expanded(pure(wire.init, X))
    who = Sender(torch.tensor([4, 0, 3]), 2, torch.tensor([7, 8, 9]))
    packed = pure(wire.pack, sent, own, who, layout)
    assert packed.rows.shape == sent.shape
    assert packed.rows.dtype == sent.dtype
    assert packed.own.keys() == own.keys()
    corrected = wire.corrected(sent, own)
    messages = [wire.encode(row, who.row(j), layout) for j, row in enumerate(corrected)]
    assert packed.bytes == sum(len(message) for message in messages)
    for j, message in enumerate(messages):
        assert torch.equal(wire.decode(message, sent[j], who.row(j), layout), packed.rows[j])


@pytest.mark.parametrize("name", OF[Mirror])
def test_mirror_maps_invert(name):
    mirror = build(PARTS[name])
    x = X.abs() + 0.1
    mirror.check(x)
    torch.testing.assert_close(pure(mirror.to_primal, pure(mirror.to_dual, x)), x)


@pytest.mark.parametrize("name", OF[Penalty])
def test_penalties_are_pure(name):
    penalty = build(PARTS[name])
    out = pure(penalty.prox, rows(21), 0.1, PLAN.layout)
    assert (out.shape, out.dtype) == ((M, D), torch.float64)
    assert pure(penalty.value, out, PLAN.layout).shape == (M,)
