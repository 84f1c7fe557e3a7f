"""Records every hook call of a method: arguments, results, and changes of global state."""

import copy
import inspect
import numbers
import random
import signal
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..clients import Direction, LocalProblem, Step
from ..clients.local_problem import Map
from ..core.types import Channels, Rows, State
from ..methods import Method
from ..server import Output, Server
from ..wire import Packed, Wire
from ._problem import SIZES, bind_trial, run_rounds

_CLIENT = ("init", "start_round", "down", "upload", "update_memory", "update_shared")
HOOKS: dict[type, tuple[str, ...]] = {
    Direction: (*_CLIENT, "local_phases", "local_problem", "between_phases"),
    Step: (*_CLIENT, "begin", "take"),
    Server: ("init", "prepare", "start_round", "down", "step", "output"),
    Output: ("init", "update", "value"),
    Wire: ("init", "corrected", "pack"),
}


class Globals:
    """A snapshot of the process-wide state: generators, default dtype, gradient mode, SIGINT."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {
            "torch's global generator": torch.get_rng_state(),
            "NumPy's global generator": np.random.get_state(),
            "Python's global generator": random.getstate(),
            "torch's default dtype": torch.get_default_dtype(),
            "torch's gradient mode": torch.is_grad_enabled(),
            "the handler of Ctrl-C": signal.getsignal(signal.SIGINT),
        }

    def changed(self) -> list[str]:
        """Return the names of what has changed since."""
        now = Globals()._found
        return [name for name, old in self._found.items() if not _alike(old, now[name])]

    def restore(self) -> None:
        """Put everything back."""
        found = iter(self._found.values())
        torch.set_rng_state(next(found))
        np.random.set_state(next(found))
        random.setstate(next(found))
        torch.set_default_dtype(next(found))
        torch.set_grad_enabled(next(found))
        if signal.getsignal(signal.SIGINT) is not (handler := next(found)):
            signal.signal(signal.SIGINT, handler)


def _alike(old: Any, new: Any) -> bool:
    """Compare tensors (NaN equals NaN), generators' states, and plain values."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        same = old.shape == new.shape and old.dtype == new.dtype
        return same and bool(((old == new) | ((old != old) & (new != new))).all())
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(np.array_equal, old, new))
    return bool(old == new)


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Return the tensors and numbers inside a value, by dotted name."""
    if isinstance(value, Tensor | numbers.Number):
        return {name: value}
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {}
    dot = f"{name}." if name else ""
    return {k: v for n, part in value.items() for k, v in flatten(part, f"{dot}{n}").items()}


def list_changes(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the names under which two dicts of `flatten` differ."""
    return [n for n in a | b if n not in a or n not in b or not _alike(a[n], b[n])]


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in values.items()}


class _Exchange:
    """A query that is answered and counted once, however often a hook is called."""

    def __init__(self, query: Callable[..., Any], count: Callable[[str, int, str], None]) -> None:
        self._query, self._count = query, count
        self._answers: list[list[Tensor]] = []
        self.spot = 0

    def __call__(
        self, what: str, at: list[Tensor], who: str = "cohort", sent: Any = None
    ) -> list[Tensor]:
        if self.spot == len(self._answers):
            self._count(what, len(at), who)
            self._answers.append(self._query(what, at, who, sent))
        self.spot += 1
        return list(self._answers[self.spot - 1])


class HookRecorder:
    """Runs two rounds in which every hook is called twice with the same arguments.

    `faults` has what was found, as sentences, by kind: "globals", "pure", "place" (dtype and
    device), "channels", "form" (of memory) and "bytes".
    """

    def __init__(self, method: Method, dtype: torch.dtype) -> None:
        self.faults: dict[str, list[str]] = {}
        self._dtype, self._up = dtype, 0
        self._forms: dict[type, tuple[State, State]] = {}  # first memory: own, and shared
        names = {base: base.__name__.lower() for base in HOOKS}
        seen = {name: self._watched(getattr(method, name), base) for base, name in names.items()}
        try:
            self._run(replace(copy.deepcopy(method), **seen))
        except Exception:  # most often what a fault leads to, or else the method's own error
            if not self.faults:
                raise

    def _run(self, method: Method) -> None:
        run = bind_trial(method, rounds=2, dtype=self._dtype, device="auto")
        self._x, self._plan = run.start, run.plan
        parts, size = (method.direction, method.step), self._dtype.itemsize
        for ids, row in run_rounds(run):
            real = self._up + len(ids) * len(method.scalars) * size
            if row["round"] == 0 and method.prepares:  # once, everyone, uncompressed
                vectors = sum(len(p.uploads) for p in parts) * self._x.numel()
                real += run.plan.clients * (vectors + sum(len(p.reports) for p in parts)) * size
            self._note(
                "bytes",
                row["bytes_up"] == real,
                f"The history counts {row['bytes_up']} bytes up in round {row['round']}, where the "
                f"encodings of what was sent take {real}.",
            )
            self._up = 0

    def _note(self, kind: str, holds: bool, sentence: str) -> None:
        if not holds:
            self.faults.setdefault(kind, []).append(sentence)

    def _watched(self, part: Any, base: type) -> Any:
        """Return a copy of a part whose own hooks are recorded."""
        kind, seen = type(part), copy.deepcopy(part)
        own = [name for name in HOOKS[base] if getattr(kind, name) is not getattr(base, name)]
        hooks = {name: self._hook(kind, base, name) for name in own}
        kind = type(kind.__name__, (kind,), {"__slots__": (), "__doc__": kind.__doc__, **hooks})
        object.__setattr__(seen, "__class__", kind)
        return seen

    def _hook(self, kind: type, base: type, name: str) -> Callable[..., Any]:
        hook, label = getattr(kind, name), f"{kind.__name__}.{name}"
        words = inspect.signature(hook)

        def watched(part: Any, *args: Any, **named: Any) -> Any:
            args = tuple(_Exchange(a, self._asked) if inspect.isfunction(a) else a for a in args)

            def call() -> Any:
                for exchange in args:
                    if isinstance(exchange, _Exchange):
                        exchange.spot = 0
                return hook(part, *args, **named)

            given = dict(words.bind(part, *args, **named).arguments)
            given.pop(next(iter(given)))  # the part itself
            out = self._call(label, call, given)
            self._check_place(label, out[:2] if name == "step" else out)  # a trace is not compared
            self._check_result(label, base, part, out, (*args, *named.values()))
            return self._followed(label, out) if isinstance(out, LocalProblem) else out

        return watched

    def _asked(self, what: str, points: int, who: str) -> None:
        cohort, everyone = self._plan.cohort, len(SIZES)
        asked = {"cohort": cohort, "panel": min(3 * cohort, everyone), "all": everyone, "held": 0}
        each = self._x.numel() if what == "grad" else 1
        self._up += asked[who] * points * each * self._dtype.itemsize

    def _call(self, label: str, call: Callable[[], Any], given: dict[str, Any]) -> Any:
        """Call twice, and note what changed: the process, the arguments, or the result."""
        before, process = _copied(flatten(given)), Globals()
        out = call()
        moved, modified = process.changed(), list_changes(before, flatten(given))
        if moved:
            process.restore()
            remedy = "draw with tf.random" if "generator" in moved[0] else "leave it unchanged"
            self._note("globals", False, f"{label} changes {' and '.join(moved)}; {remedy}.")
        if modified:
            sentence = f"{label} changes its argument {modified[0]}; return something new instead."
            self._note("pure", False, sentence)
        if moved or modified:
            return out
        first = _copied(flatten(out))
        self._note(
            "pure",
            not list_changes(first, flatten(call())),
            f"{label} returns something else when it is called again with the same arguments; what "
            "it remembers belongs in the memory that it is given and returns.",
        )
        return out

    def _followed(self, label: str, local: LocalProblem) -> LocalProblem:
        """Record calls of a local problem's maps as well."""

        def follow(name: str, inner: Map | None) -> Map | None:
            def watched(y: Rows, k: int) -> Rows:
                assert inner is not None
                out: Rows = self._call(f"{label}'s {name}", lambda: inner(y, k), {"y": y})
                return out

            return None if inner is None else watched

        return replace(
            local,
            grad_at=follow("grad_at", local.grad_at),
            project=follow("project", local.project),
        )

    def _check_place(self, label: str, out: Any) -> None:
        device = self._x.device if hasattr(self, "_x") else None  # known once the run is bound
        for name, value in flatten(out).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                right = value.dtype == self._dtype and value.device == (device or value.device)
                wanted = f"{self._dtype}" if device is None else f"{self._dtype} on {device}"
                found = f"{value.dtype} on {value.device}{f' as {name!r}' if name else ''}"
                sentence = f"{label} returns {found} in a run of {wanted}; make tensors like those "
                self._note("place", right, f"{sentence}that it is given.")

    def _check_form(self, label: str, found: State, first: State, *rows: int) -> None:
        """Require the names and shapes of a first memory; with rows, one for each client."""
        wanted = {name: (*rows, *v.shape) for name, v in first.items()}
        shapes = {name: tuple(v.shape) for name, v in found.items()}
        self._note("form", shapes == wanted, f"{label} returns {shapes}, where {wanted} is due.")

    def _check_result(self, label: str, base: type, part: Any, out: Any, args: Any) -> None:
        """Check what a hook returned: channels, bytes, and the form of memory."""
        own, shared = self._forms.get(base, ({}, {}))
        match label.rpartition(".")[2]:
            case "init":
                self._forms[base] = out if isinstance(out, tuple) else ({}, out)
            case "upload":
                self._check_upload(label, part, out[0], len(args[0].steps))
                if not part.updates_memory:
                    self._check_form(label, out[1], own, len(args[0].steps))
            case "update_memory":
                self._check_form(label, out, own, len(next(iter(args[0].sent.values()))))
            case "update_shared" | "update":
                self._check_form(label, out, shared)
            case "prepare" | "step":
                self._check_form(label, {"x": out[0]}, {"x": args[0]})
                self._check_form(label, out[1], shared)
            case "take":
                first = {"y": args[0], "lr": args[0][:, 0]}
                self._check_form(label, {"y": out[0], "lr": out[1]}, first)
                self._check_form(label, out[2], args[3])
            case "pack":
                self._check_pack(label, part, out, args)
                if out.own:
                    self._check_form(label, out.own, shared, len(args[0]))

    def _check_upload(self, label: str, part: Any, sent: Channels, m: int) -> None:
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(part.uploads, (m, *self._x.shape))
        shapes |= dict.fromkeys(part.reports, (m,))
        for name, rows in sent.items():
            sentence = f"{label} sends {name!r}, which is in neither its uploads nor its reports."
            self._note("channels", name in shapes, sentence)
            right = shapes.get(name, rows.shape) == rows.shape
            found = f"{name!r} in the shape {tuple(rows.shape)}"
            self._note("channels", right, f"{label} sends {found}; declared is {shapes}.")
        for name in shapes.keys() - sent.keys():
            self._note("channels", False, f"{label} does not send {name!r}, which is declared.")

    def _check_pack(self, label: str, part: Any, out: Packed, args: Any) -> None:
        rows, own, sender, layout = args
        meant = part.corrected(rows, own)
        codes = [part.encode(row, sender.row(j), layout) for j, row in enumerate(meant)]
        real = sum(len(code) for code in codes)
        self._up += real
        sentence = f"{label} counts {out.bytes} bytes, where encode writes {real}."
        self._note("bytes", out.bytes == real, sentence)
        back = [part.decode(c, rows[j], sender.row(j), layout) for j, c in enumerate(codes)]
        sentence = f"{label} returns other rows than decode makes of what encode writes."
        self._note("bytes", all(map(_alike, back, out.rows)), sentence)
