"""`tf.testing` finds broken parts, each by the right check and the right sentence."""

import random
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import tunefree as tf
from tunefree import testing
from tunefree.clients import Armijo, Constant, Direction, LocalProblem, Plain, Proximal, Step, Until
from tunefree.core.errors import ArgumentError
from tunefree.server import Average, Output, Server
from tunefree.wire import Dense, Packed, Wire

M = tf.Method
BROKEN = {}
ROLES = {Direction: "direction", Step: "step", Server: "server", Output: "output", Wire: "wire"}


def broken(check, words):
    """Note which check must find this part, and words of its sentence."""

    def note(part):
        role = next(name for base, name in ROLES.items() if issubclass(part, base))
        BROKEN[part.__name__] = ({role: part}, check, words)
        return part

    return note


@dataclass(frozen=True)
class Remembers(Direction):
    """A sound direction with memory: a pull along the client's own last move."""

    pull: float = 0.1
    uploads: ClassVar = ("moved",)

    def init(self, x, plan):
        return {"last": torch.zeros_like(x)}, {"mean": torch.zeros_like(x)}

    def down(self, shared):
        return {"mean": shared["mean"]}

    def local_problem(self, x, down, own, t):
        return LocalProblem(shift=self.pull * (down["mean"] - own["last"]))

    def upload(self, result, own, t):
        return {"moved": result.delta}, {"last": result.delta}

    def update_shared(self, mean, shared, t):
        return {"mean": mean["moved"]}


@broken("rules_are_pure", "ChangesMemory.local_problem changes its argument own.last")
class ChangesMemory(Remembers):
    def local_problem(self, x, down, own, t):
        own["last"].mul_(0.9)
        return super().local_problem(x, down, own, t)


@broken("rules_are_pure", "ChangesDict.upload changes its argument own.last")
class ChangesDict(Remembers):
    def upload(self, result, own, t):
        own["last"] = result.delta
        return {"moved": result.delta}, own


@broken("rules_are_pure", "ChangesX.step changes its argument x")
class ChangesX(Average):
    def step(self, x, mean, state, t, query):
        return x.add_(mean["delta"]), state, {}


@broken("rules_are_pure", "ChangesInMap.local_problem's project changes its argument y")
class ChangesInMap(Plain):
    sets = ("project",)

    def local_problem(self, x, down, own, t):
        return LocalProblem(project=lambda y, k: y.clamp_(-0.1, 0.1))


@broken("global_state_is_untouched", "Noisy.take changes torch's global generator")
class Noisy(Constant):
    def take(self, y, d, context, scratch):
        return super().take(y, d + 1e-3 * torch.randn_like(d), context, scratch)


@broken("global_state_is_untouched", "changes NumPy's global generator; draw with tf.random")
class NumpyNoise(Constant):
    def take(self, y, d, context, scratch):
        return super().take(y, d * (1 + 1e-3 * np.random.rand()), context, scratch)


@broken("global_state_is_untouched", "changes Python's global generator")
class PythonNoise(Constant):
    def take(self, y, d, context, scratch):
        return super().take(y, d * (1 + 1e-3 * random.random()), context, scratch)


@broken("global_state_is_untouched", "SetsDtype.init changes torch's default dtype; leave")
class SetsDtype(Plain):
    def init(self, x, plan):
        torch.set_default_dtype(torch.float16)
        return {}, {}


@broken("global_state_is_untouched", "changes torch's gradient mode")
class StopsGradients(Plain):
    def local_problem(self, x, down, own, t):
        torch.set_grad_enabled(False)
        return LocalProblem()


@broken("rules_are_pure", "Hides.step returns something else when it is called again")
class Hides(Server):
    """Momentum in a field of its own."""

    def __init__(self):
        self.v = 0.0

    def step(self, x, mean, state, t, query):
        self.v = 0.9 * self.v + mean["delta"]
        return x + self.v, state, {}


@broken("stopped_and_resumed", "stopped by Ctrl-C and resumed is not the run")
class HidesWell(Average):
    """The same, careful about being called twice."""

    def step(self, x, mean, state, t, query):
        kept = getattr(self, "kept", {-1: torch.zeros_like(x)})
        v = 0.9 * kept.get(t.index - 1, 0.0) + mean["delta"]
        object.__setattr__(self, "kept", kept | {t.index: v})
        return x + v, state, {}


@broken("channels_are_declared", "Undeclared.upload sends 'moved', which is in neither")
class Undeclared(Remembers):
    uploads = ()


@broken("channels_are_declared", "Withheld.upload does not send 'length'")
class Withheld(Remembers):
    reports = ("length",)


@broken("channels_are_declared", "sends 'moved' in the shape (4, 57)")
class Misshapen(Remembers):
    uploads, reports = (), ("moved",)


@broken("memory_keeps_its_form", "Grows.upload returns {'last': (4, 57), 'more': (4, 57)}, where")
class Grows(Remembers):
    def upload(self, result, own, t):
        sent, memory = super().upload(result, own, t)
        return sent, memory | {"more": result.delta}


@broken("memory_keeps_its_form", "Forgets.update_shared returns {}, where {'mean': (57,)} is due")
class Forgets(Remembers):
    def update_shared(self, mean, shared, t):
        return {}


@broken("memory_keeps_its_form", "LosesState.step returns {'v': ()}, where {'v': (57,)} is due")
class LosesState(Average):
    def init(self, x, plan):
        return {"v": torch.zeros_like(x)}

    def step(self, x, mean, state, t, query):
        return x + mean["delta"], {"v": state["v"].sum()}, {}


@broken("memory_keeps_its_form", "OneStepForAll.take returns {'y': (4, 57), 'lr': ()}")
class OneStepForAll(Constant):
    def take(self, y, d, context, scratch):
        return y - self.lr * d, torch.tensor(self.lr, dtype=y.dtype), scratch


@broken(
    "dtype_and_device_are_kept",
    "Single.local_problem returns torch.float32 on cpu as 'shift' in a run of torch.float64",
)
class Single(Remembers):
    def local_problem(self, x, down, own, t):
        problem = super().local_problem(x, down, own, t)
        return replace(problem, shift=problem.shift.float())


@broken("dtype_and_device_are_kept", "SingleServer.step returns torch.float32")
class SingleServer(Average):
    def step(self, x, mean, state, t, query):
        return (x + mean["delta"]).float(), state, {}


@broken(
    "dtype_and_device_are_kept",
    "Double.init returns torch.float64 on cpu as 'v' in a run of torch.float32",
)
class Double(Average):
    def init(self, x, plan):
        return {"v": torch.zeros(x.shape, dtype=torch.float64)}


@broken("chunks_agree", "Clients trained 1 at a time and all at once do not agree")
class Centred(Remembers):
    """Takes a mean over rows, which are those of a chunk."""

    def local_problem(self, x, down, own, t):
        return LocalProblem(shift=own["last"] - own["last"].mean(0))


class ByPlace(Plain):
    def local_problem(self, x, down, own, t):
        return LocalProblem(mu=0.5, anchor=x)

    def upload(self, result, own, t):
        place = torch.arange(len(result.y), dtype=result.y.dtype)[:, None]
        return {"delta": result.delta * (1 + place)}, own

    uploads = ("delta",)


@broken("batched_equals_looped", "in one batch and clients trained in turn do not agree")
class Chaotic(Constant):
    """Turns the last bits of a gradient into its length."""

    def take(self, y, d, context, scratch):
        last = torch.frac(d.abs().sum(1) * 1e14)[:, None]
        return super().take(y, d * last, context, scratch)


@broken(
    "absent_clients_keep_their_memory",
    "'direction.last' of clients that are absent in round 0 changes",
)
class HandsOut(Remembers):
    """Writes into the memory that unseen clients start with."""

    def init(self, x, plan):
        if not hasattr(self, "first"):
            object.__setattr__(self, "first", torch.zeros_like(x))
        return {"last": self.first}, {"mean": torch.zeros_like(x)}

    def upload(self, result, own, t):
        self.first.add_(1)
        return super().upload(result, own, t)


@broken("bytes_are_real", "Cheap.pack counts 912 bytes, where encode writes 1824")
class Cheap(Dense):
    def pack(self, rows, own, sender, layout):
        packed = super().pack(rows, own, sender, layout)
        return replace(packed, bytes=packed.bytes // 2)


@broken("bytes_are_real", "Rounds.pack returns other rows than decode makes")
class Rounds(Dense):
    def pack(self, rows, own, sender, layout):
        packed = super().pack(rows, own, sender, layout)
        return Packed(rows.round(decimals=3), packed.bytes, packed.counted, {})


@broken("settings_survive", "describe() loses server.scale, a Tensor")
@dataclass(frozen=True)
class TensorSetting(Average):
    scale: torch.Tensor = torch.ones(())  # noqa: RUF009


@broken("settings_survive", "describe() loses server.rates, a dict")
@dataclass(frozen=True)
class DictSetting(Average):
    rates: dict = field(default_factory=lambda: {"fast": 1.0})


@broken("settings_survive", "describe() lacks server.power")
class Slotted(Average):
    __slots__ = ("power",)

    def __init__(self, power=2):
        object.__setattr__(self, "power", power)
        super().__init__()


@broken("settings_survive", "describe() gives server.most = inf back as None")
@dataclass(frozen=True)
class Unbounded(Average):
    most: float = float("inf")


@broken("history", "The history has ratio = nan in round 0")
class TracesNaN(Average):
    def step(self, x, mean, state, t, query):
        return x + mean["delta"], state, {"ratio": x.new_tensor(float("nan"))}


@broken("history", "ends diverged after 0")
class BlowsUp(Average):
    def step(self, x, mean, state, t, query):
        return x / 0, state, {}


@broken("same_seed_same_bits", "Two runs with different seeds are the same bits")
class Fixed(Average):
    """Goes its way whatever the clients say."""

    def step(self, x, mean, state, t, query):
        return x + 1, state, {}


@broken("rules_are_pure", "OutputInPlace.update changes its argument state.sum")
class OutputInPlace(Output):
    def init(self, x):
        return {"sum": torch.zeros_like(x)}

    def update(self, x, state, t):
        state["sum"] += x
        return state


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name):
    parts, check, words = BROKEN[name]
    with pytest.raises(AssertionError) as error:
        testing.check_method(M(**{role: part() for role, part in parts.items()}))
    assert words in str(error.value)
    assert error.value.__notes__ == [f"check_{check} of 'custom'"]


def test_sound_parts_pass():
    @dataclass(frozen=True, slots=True)
    class Slots(Constant):
        times: tuple[float, ...] = (1.0, 0.5)

        def take(self, y, d, context, scratch):
            rate = self.lr * self.times[context.index % 2]
            return y - rate * d, y.new_full(y.shape[:1], rate), scratch

    class Bare(Server):
        def __init__(self, rate):
            self.rate = rate

        def down(self, *args):
            return super().down(*args)

        def output(self, x, state):
            return x

        def step(self, x, mean, state, t, query):
            x = self.output(x=x, state=state)
            return x + self.rate * mean["delta"], state, {"rate": 0.5}

    method = M(direction=Remembers(), step=Slots(), server=Bare(0.5), wire="ef+topk:0.5")
    found = testing.check_method(method)
    assert list(found) == [check.__name__ for check in testing.ALL]
    assert set(found.values()) == {"passed"}


def test_bytes_of_a_panel_are_counted():
    class AsksPanel(Average):
        def start_round(self, x, state, t, query):
            query("loss", [x], "panel")
            return state

    found = testing.check_method(M(server=AsksPanel()), checks=[testing.check_bytes_are_real])
    assert found == {"check_bytes_are_real": "passed"}


def test_a_check_that_does_not_apply_says_why():
    some = (
        testing.check_order_of_clients_does_not_matter,
        testing.check_absent_clients_keep_their_memory,
    )
    drawn, chosen = M(wire="randk:0.5"), tf.wire.ErrorFeedback(tf.wire.Choose(in_turn))
    for method in (drawn, M(wire=chosen)):
        found = testing.check_method(method, checks=some[:1])
        assert list(found.values()) == [
            "skipped: the wire draws, or is chosen, by the client's number"
        ]
    assert testing.check_method("fedavg", checks=some) == {
        some[0].__name__: "passed",
        some[1].__name__: "skipped: clients have no memory",
    }
    found = testing.check_method("scaffnew", checks=some)
    assert found[some[1].__name__] == "skipped: everyone takes part in every round"


def in_turn(client, round):
    return tf.wire.TopK(0.5) if client % 2 else tf.wire.Dense()


def test_rows_that_know_their_place():
    with pytest.raises(AssertionError, match="under other numbers give another model"):
        testing.check_order_of_clients_does_not_matter(M(direction=ByPlace()))


def test_what_is_lost_in_a_crash():
    with pytest.raises(AssertionError, match="broken off by an error and resumed is not the run"):
        testing.check_crashed_and_resumed(M(server=HidesWell()))


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda fed, model: fed.x.add_(1), "data.x"),
        (lambda fed, model: fed.held[1].zero_(), "data.held.1"),
        (lambda fed, model: model.eval(), "training"),
        (lambda fed, model: model[0].bias.data.add_(1), "module.0.bias"),
        (lambda fed, model: model(fed.x).sum().backward(), "grad.0.weight"),
    ],
)
def test_a_run_that_changes_what_it_is_given(spoil, what, monkeypatch):
    monkeypatch.setattr(testing, "run_trial", lambda method, fed, model, **given: spoil(fed, model))
    with pytest.raises(AssertionError, match=f"A run changes what it was given: {what}"):
        testing.check_inputs_are_unmutated(M())


def test_a_run_that_touches_the_process(monkeypatch):
    monkeypatch.setattr(testing, "run_trial", lambda *args, **given: torch.rand(1))
    with pytest.raises(AssertionError, match="A run changes torch's global generator"):
        testing.check_global_state_is_untouched(M())


def test_globals_are_put_back():
    before = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    for method in (M(step=Noisy()), M(direction=SetsDtype()), M(direction=StopsGradients())):
        with pytest.raises(AssertionError):
            testing.check_method(method)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before[1:]


def test_errors_of_a_method_are_its_own():
    class Falls(Plain):
        def local_problem(self, x, down, own, t):
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        testing.check_method(M(direction=Falls()))


def test_solvers_get_all_of_a_clients_data():
    method = M(direction=Proximal(1.0), step=Until(Armijo(), tol=1e-3, most=5))
    testing.check_method(method, checks=[testing.check_history])


def test_a_check_takes_a_method():
    with pytest.raises(ArgumentError, match="takes a Method"):
        testing.check_history("fedavg")
    with pytest.raises(ArgumentError, match="Unknown method"):
        testing.check_method("fedagv")


def test_public_names():
    assert set(testing.__all__) == {"ALL", "check_method", *(c.__name__ for c in testing.ALL)}
    for name in testing.__all__[1:]:
        assert getattr(testing, name).__doc__.splitlines()[0].endswith(".")


def test_the_first_check_of_a_process():
    """What the first run imports leaves the process's generators as they were."""
    code = """
import tunefree as tf
check = tf.testing.check_global_state_is_untouched
print(tf.testing.check_method("fedavg", checks=[check])[check.__name__])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "passed\n", done.stderr
