"""The contract that every method of the package passes, for methods and parts of other packages.

    tf.testing.check_method(tf.Method(direction=MyDirection()))

Each check is a function of a method. It raises AssertionError with a sentence that says what does
not hold, or `unittest.SkipTest` with the reason why it does not apply. `ALL` has them in an order
in which causes come before what they lead to. Under pytest:

    @pytest.mark.parametrize("check", tf.testing.ALL)
    def test_contract(check):
        check(METHOD)

The checks run on a small classification problem of six uneven clients, in float64, with
minibatches, dropout and partial participation (everyone, where a method asks for it). Two runs
agree up to rounding (1e-10), or to the last bit where the sentence says "the same bits".
"""

import copy
import inspect
import json
import math
import numbers
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from torch import Tensor, nn

from .. import methods
from ..core.errors import ArgumentError, Interrupted
from ..core.files import to_json
from ..core.layout import Layout
from ..core.random import key
from ..data.federation import Federation
from ..methods import Method
from ..rounds.client import init_client_memory
from ..simulation.simulation import Simulation
from ..training.callbacks import Event
from ..training.config import Engine
from ..training.run import Run
from ..wire import Sender, Wire
from ._hook_recorder import Globals, HookRecorder, flatten, list_changes
from ._problem import ROUNDS, bind_trial, make_federation, make_net, run_rounds, run_trial

ORDER = (4, 0, 5, 2, 1, 3)  # other numbers for the same clients
TOLERANCE = 1e-10  # between ways of doing the same in float64


def _require(holds: bool, sentence: str) -> None:
    """Raise AssertionError with the sentence unless it holds, also under Python's -O."""
    if not holds:
        raise AssertionError(sentence)


def _compare(
    a: Run, b: Run, sentence: str, same: Callable[[Tensor, Tensor], bool]
) -> Iterator[tuple[int, dict[str, tuple[float, float]]]]:
    """Require the same models and number of rounds; yield the pairs of values of each round."""
    for x, z in ((a.x, b.x), (a.output, b.output)):
        apart = f"The models differ by up to {float((x - z).abs().max()):.1e}."
        _require(same(x, z), f"{sentence} {apart}")
    _require(len(a.history) == len(b.history), f"{sentence} One history is longer.")
    for one, two in zip(a.history, b.history, strict=True):
        names = sorted((one.keys() | two.keys()) - {"seconds"})
        yield one["round"], {n: (one.get(n, math.nan), two.get(n, math.nan)) for n in names}


def _require_same(a: Run, b: Run, sentence: str) -> None:
    """Require the same bits: last iterate, shipped model, history, and how it ended."""
    for t, row in _compare(a, b, sentence, torch.equal):
        names = [name for name, (u, v) in row.items() if u != v]
        _require(not names, f"{sentence} Round {t} differs in {', '.join(names)}.")
    _require(a.status == b.status, f"{sentence} One is {a.status}, the other {b.status}.")


def _require_close(a: Run, b: Run, sentence: str, columns: Iterable[str] | None = None) -> None:
    """Require equality up to rounding: models, and these columns of the history (None: all)."""
    near = partial(torch.allclose, rtol=TOLERANCE, atol=TOLERANCE)
    for t, row in _compare(a, b, sentence, near):
        for name in row if columns is None else columns:
            u, v = row[name]
            close = math.isclose(u, v, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            _require(close, f"{sentence} In round {t} {name} is {u} and {v}.")


class _MethodRuns:
    """One method, and the runs of it that several checks share."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @cached_property
    def run(self) -> Run:
        """The run that others are compared with."""
        return run_trial(self.method)

    @cached_property
    def _recorders(self) -> list[HookRecorder]:
        return [HookRecorder(self.method, dtype) for dtype in (torch.float64, torch.float32)]

    def require_none(self, kind: str) -> None:
        """Require that no fault of one kind was found."""
        faults = [fault for recorder in self._recorders for fault in recorder.faults.get(kind, [])]
        _require(not faults, "".join(faults[:1]))

    @cached_property
    def side_effects(self) -> tuple[list[str], list[str]]:
        """What a run changed in the process, and in the data and module it was given."""
        fed, model, process = make_federation(), make_net(), Globals()
        try:
            run_trial(self.method, fed, model, rounds=2)
        except Exception:
            if not any(r.faults for r in self._recorders):  # else the check of that says it better
                raise
        finally:
            moved = process.changed()
            process.restore()
        return moved, list_changes(_inputs(fed, model), _inputs(make_federation(), make_net()))


_latest: list[_MethodRuns] = []  # of the method checked last, so that its checks share their runs


def _runs_of(method: Method) -> _MethodRuns:
    if not isinstance(method, Method):
        raise ArgumentError(f"A check takes a Method, got {method!r}.")
    if not _latest or _latest[0].method is not method:
        _latest[:] = [_MethodRuns(method)]
    return _latest[0]


def _inputs(fed: Federation, model: nn.Module) -> dict[str, Any]:
    data = {n: getattr(fed, n) for n in ("x", "y", "sizes", "starts", "test", "held")}
    grads = {n: p.grad is not None for n, p in model.named_parameters()}
    state = dict(model.state_dict())
    return flatten({"data": data, "module": state, "training": model.training, "grad": grads})


def check_global_state_is_untouched(method: Method) -> None:
    """Generators, default dtype, gradient mode and the handler of Ctrl-C are unchanged."""
    _runs_of(method).require_none("globals")
    moved, _ = _runs_of(method).side_effects
    _require(not moved, f"A run changes {' and '.join(moved)}.")


def check_rules_are_pure(method: Method) -> None:
    """No hook changes what it is given, or returns something else when it is called again."""
    _runs_of(method).require_none("pure")


def check_channels_are_declared(method: Method) -> None:
    """`uploads` and `reports` name exactly what `upload` sends: vectors, and scalars."""
    _runs_of(method).require_none("channels")


def check_memory_keeps_its_form(method: Method) -> None:
    """What a part remembers has, after every round, the names and shapes that `init` gave it."""
    _runs_of(method).require_none("form")


def check_dtype_and_device_are_kept(method: Method) -> None:
    """A run in float64 has no float32 in it, nor the other way round; nothing changes device."""
    _runs_of(method).require_none("place")
    single = run_trial(method, dtype=torch.float32, rounds=1)
    for run, dtype in ((_runs_of(method).run, torch.float64), (single, torch.float32)):
        for tensor in (
            run.x,
            run.output,
            *run.model.parameters(),
            run.predict(make_federation().x, raw=True),
        ):
            right = tensor.dtype == dtype and tensor.device.type == "cpu"
            found = f"{tensor.dtype} on {tensor.device}"
            _require(right, f"A run in {dtype} on the CPU ends with {found}.")


def check_bytes_are_real(method: Method) -> None:
    """The bytes counted are those of the real encodings, which decode to what arrives."""
    _runs_of(method).require_none("bytes")


def check_settings_survive(method: Method) -> None:
    """`describe()` has every setting of every part, and JSON gives it back."""
    described = method.describe()
    try:
        read = json.loads(to_json(described))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"describe() cannot be written as JSON: {error}.") from None
    for name in described:
        _check_setting(getattr(method, name), read[name], name)


def _check_setting(value: Any, read: Any, name: str) -> None:
    if value is None or isinstance(value, str | numbers.Real):
        _require(read == value, f"describe() gives {name} = {value!r} back as {read!r}.")
    elif isinstance(value, Tensor | np.ndarray | dict | set | frozenset):
        kind = type(value).__name__
        raise AssertionError(f"describe() loses {name}, a {kind}; make it a number or a tuple.")
    elif isinstance(value, list | tuple):
        for j, item in enumerate(value):
            _check_setting(item, read[j], f"{name}[{j}]")
    elif not inspect.isroutine(value):  # a part; a function is known by its kind only
        slots = [s for kind in type(value).__mro__ for s in getattr(kind, "__slots__", ())]
        for field in dict.fromkeys((*slots, *getattr(value, "__dict__", {}))):
            lost = f"describe() lacks {name}.{field}; make {type(value).__name__} a dataclass."
            _require(isinstance(read, dict) and field in read, lost)
            _check_setting(getattr(value, field), read[field], f"{name}.{field}")


def check_inputs_are_unmutated(method: Method) -> None:
    """The data and the module that `fit` was given are as they were."""
    _, changed = _runs_of(method).side_effects
    _require(not changed, f"A run changes what it was given: {', '.join(changed)}.")


def check_history(method: Method) -> None:
    """A run finishes, and its history has its columns, with finite numbers in all of them."""
    run = _runs_of(method).run
    ended = f"A run of {ROUNDS} rounds ends {run.status} after {len(run.history)}."
    _require(run.status in ("finished", "unstable") and len(run.history) == ROUNDS, ended)
    wanted = {"round", "train_loss", "bytes_up", "bytes_down", "lr", "gradients", "seconds"}
    wanted |= {"test_loss", "test_accuracy"}
    for t, row in enumerate(run.history):
        lacking = sorted(wanted - row.keys())
        _require(not lacking, f"The history of round {t} lacks {', '.join(lacking)}.")
        for name, value in row.items():
            right = math.isfinite(value) and (value > 0 or name not in ("bytes_up", "gradients"))
            _require(right, f"The history has {name} = {value} in round {t}.")
        _require(row["round"] == t, f"The history calls round {t} {row['round']}.")


def check_absent_clients_keep_their_memory(method: Method) -> None:
    """A round changes the memory of its cohort only."""
    if method.full:
        raise SkipTest("everyone takes part in every round")
    run = bind_trial(copy.deepcopy(method), cohort=2)
    if not init_client_memory(run.method, run.start, run.plan):
        raise SkipTest("clients have no memory")
    everyone, pool = torch.arange(run.plan.clients), run.pool
    assert isinstance(pool, Simulation)
    before = pool.memory.gather(everyone)
    for t, (ids, _) in enumerate(run_rounds(run)):
        after = pool.memory.gather(everyone)
        absent = torch.isin(everyone, ids, invert=True)
        for name, old in before.items():
            prepared = method.prepares and t == 0
            same = prepared or torch.equal(old[absent], after[name][absent])
            found = f"The memory {name!r} of clients that are absent in round {t} changes"
            _require(same, f"{found}; a part must not write into a memory that it handed out.")
        before = after


def check_same_seed_same_bits(method: Method) -> None:
    """The same seed gives the same bits in any state of torch's generator; another gives others."""
    run = _runs_of(method).run
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        again = run_trial(method)
    _require_same(run, again, "Two runs with the same seed are not the same bits.")
    other = run_trial(method, seed=8)
    _require(not torch.equal(run.x, other.x), "Two runs with different seeds are the same bits.")


def check_batched_equals_looped(method: Method) -> None:
    """Clients trained in one batch and clients trained in turn agree, their steps uneven or not."""
    sentence = "Clients trained in one batch and clients trained in turn do not agree."
    _require_close(_runs_of(method).run, run_trial(method, engine="vmap"), sentence)
    even: dict[str, Any] = {"steps": 2, "rounds": 2}
    _require_close(run_trial(method, **even), run_trial(method, engine="vmap", **even), sentence)


def check_chunks_agree(method: Method) -> None:
    """The result does not depend on how many clients are trained at once, down to one."""
    run = _runs_of(method).run
    for engine in (Engine(backend="loop", chunk=1), Engine(backend="vmap", chunk=3)):
        part = run_trial(method, engine=engine)
        sentence = (
            f"Clients trained {engine.chunk} at a time and all at once do not agree: a hook may "
        )
        sentence += "use only the row of a client itself, nothing that is computed over rows."
        _require_close(run, part, sentence, ("bytes_up", "bytes_down", "gradients"))


def check_order_of_clients_does_not_matter(method: Method) -> None:
    """Clients under other numbers give the same model, unless the wire draws by number."""
    if _by_number(method.wire):
        raise SkipTest("the wire draws, or is chosen, by the client's number")
    given: dict[str, Any] = {"cohort": None, "batch": None, "steps": 2, "rounds": 2}
    each = (make_federation(order) for order in (None, ORDER))
    a, b = (run_trial(method, fed, make_net(dropout=0), **given) for fed in each)
    _require_close(a, b, "The same clients under other numbers give another model.", ())


def _by_number(wire: Wire) -> bool:
    """Return whether a wire makes something else of a row when its client has another number."""
    rows = torch.linspace(-1, 1, 6 * 12, dtype=torch.float64).sin().reshape(6, 12)
    own = {n: v.expand(6, *v.shape).clone() for n, v in wire.init(rows[0]).items()}
    layout = Layout(("w",), ((3, 4),))

    def arrived(ids: Tensor, t: int) -> Tensor:
        return wire.pack(rows, own, Sender(ids, t, key(0, "wire", t, ids)), layout).rows

    ids, other = torch.arange(6), torch.tensor(ORDER)
    return any(not torch.equal(arrived(ids, t), arrived(other, t)) for t in range(ROUNDS))


class _CrashError(Exception):
    """What ends a run from a callback."""


def _at(round: int, act: Callable[[], object]) -> Callable[[Event], None]:
    def callback(event: Event) -> None:
        if event.round == round:
            act()

    return callback


def _crash() -> None:
    raise _CrashError


def _require_resumed(
    method: Method,
    how: str,
    act: Callable[[], object],
    ends: type[BaseException],
    rounds: int,
    **given: Any,
) -> None:
    """End one run after each of its first rounds in turn, and resume it each time."""
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError:
        raise SkipTest("a run folder needs safetensors, which is not installed") from None
    whole = _runs_of(method).run
    sentence = f"A run {how} and resumed is not the run without interruption: all that a part "
    sentence += "remembers must be in the memory that it returns."
    with tempfile.TemporaryDirectory() as name:
        given["out"] = Path(name) / "run"
        for t in range(rounds):
            try:
                run_trial(method, callbacks=[_at(t, act)], **given)
            except ends:
                continue
            raise AssertionError(f"A run did not end with {ends.__name__} in round {t}.")
        _require_same(run_trial(method, **given), whole, sentence)
        _require_same(Run.load(given["out"]), whole, sentence)


def check_stopped_and_resumed(method: Method) -> None:
    """Stopped by Ctrl-C after any round and resumed, a run has the same bits."""
    if threading.current_thread() is not threading.main_thread():
        raise SkipTest("Ctrl-C reaches only the main thread")
    press = partial(signal.raise_signal, signal.SIGINT)
    _require_resumed(method, "stopped by Ctrl-C", press, Interrupted, ROUNDS - 1)


def check_crashed_and_resumed(method: Method) -> None:
    """After an error in a callback, a run continues from its last checkpoint to the same bits."""
    how = "broken off by an error"
    _require_resumed(method, how, _crash, _CrashError, ROUNDS, checkpoint_every=1)


Check = Callable[[Method], None]
ALL: tuple[Check, ...] = (
    check_settings_survive,
    check_global_state_is_untouched,
    check_rules_are_pure,
    check_channels_are_declared,
    check_memory_keeps_its_form,
    check_dtype_and_device_are_kept,
    check_bytes_are_real,
    check_inputs_are_unmutated,
    check_absent_clients_keep_their_memory,
    check_history,
    check_same_seed_same_bits,
    check_batched_equals_looped,
    check_chunks_agree,
    check_order_of_clients_does_not_matter,
    check_stopped_and_resumed,
    check_crashed_and_resumed,
)
"""Every check; causes come before what they lead to."""

__all__ = ["ALL", "check_method", *(check.__name__ for check in ALL)]


def check_method(method: Method | str, *, checks: Iterable[Check] = ALL) -> dict[str, str]:
    """Run the checks and return, by name, "passed" or why a check was skipped.

    Args:
        method: A method, or the name of one.
        checks: Which checks, in which order.

    Raises:
        AssertionError: What does not hold, in a sentence; the first check that fails raises it.

    >>> check_method("fedavg", checks=[check_history])
    {'check_history': 'passed'}
    """
    found = methods.get(method) if isinstance(method, str) else method
    out = {}
    for check in checks:
        try:
            check(found)
            out[check.__name__] = "passed"
        except SkipTest as reason:
            out[check.__name__] = f"skipped: {reason}"
        except AssertionError as error:
            error.add_note(f"{check.__name__} of {found.name!r}")
            raise
    return out
