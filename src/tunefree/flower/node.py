"""The clients' half on a node: one row through the same rules, and a memory that outlives it.

Every message may find a new process. All that a node knows between two is in its store.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..clients.rule import LocalResult
from ..core.errors import ArgumentError, DataError
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector, map_inputs
from ..data.federation import Federation
from ..methods import Method
from ..models import augment as augmentations
from ..models.problem import LOSSES, Loss, Problem, are_labels
from ..models.turns import Looped
from ..rounds import (
    init_client_memory,
    local_update,
    make_sender,
    pack_uploads,
    select_prefix,
    update_memory,
    wire_for_round,
)
from ..simulation.desk import ClientContext, count_work
from ..training.bind import find_device
from ..wire import Ledger
from .batches import OneClientBatches
from .payload import (
    EncodedArray,
    HeaderValue,
    Number,
    Payload,
    encode_dense,
    pack_channels,
    strip_prefix,
    unpack_channels,
    wrap_bytes,
)
from .secagg_client import MEASURED, SecAggClient, SecAggTerms
from .store import FIRST, MemoryStore, memory_home
from .terms import RunTerms

Load = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class _BoundRun:
    """A run, bound to this node."""

    method: Method
    problem: Problem
    plan: Plan
    context: ClientContext
    names: tuple[str, ...]  # of what a client remembers


class Node:
    """One client.

    Args:
        model: The module, or a function that builds it.
        load: Returns this node's data, (x, y) or a torch Dataset, from its configuration.
        config: The node's configuration: `client-id` or `partition-id`, where `memory` is, and
            among how many it hides at `least`, if it sends numbers under masks alone.
        method: The method, where the server's has no name.
        loss: The loss, where the server's is a function.
        device: Where to work.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        load: Load,
        config: Mapping[str, Any],
        *,
        method: Method | None = None,
        loss: Loss | None = None,
        device: str = "auto",
    ) -> None:
        self._model, self._load, self._config = model, load, config
        self._method, self._loss, self._device = method, loss, device
        self._known: tuple[str, _BoundRun] | None = None
        self.client = client_number(config)
        self._home = memory_home(config)

    @cached_property
    def _data(self) -> Federation:
        return Federation.of([self._load(self._config)])

    def reply(self, payload: Payload) -> Payload:
        """Do what a message asks and return the answer."""
        kind = payload.header.get("kind")
        if kind == "hello":
            return Payload({"client": self.client, "samples": self._data.samples})
        if payload.header.get("client") != self.client:
            raise DataError(f"This is client {self.client}, not {payload.header.get('client')!r}.")
        work = {"train": self._train, "probe": self._probe, "keep": self._confirm_means}
        work |= dict.fromkeys(("keys", "shares", "opened"), self._secagg_step)
        if kind not in work:
            raise DataError(f"A message must be of a known kind, got {kind!r}.")
        if (
            kind in ("train", "probe")
            and "least" in self._config
            and "secure" not in payload.header
        ):
            raise DataError("This node sends numbers under masks alone ('least' is configured).")
        bound = self._bind(str(payload.header["terms"]))
        store = MemoryStore(self._home, str(payload.header["run"]), self.client)
        self._catch_up(payload, bound, store)
        return work[kind](payload, bound, store)

    def _bind(self, text: str) -> _BoundRun:
        if self._known is not None and self._known[0] == text:
            return self._known[1]
        terms = RunTerms.read(text)
        if not 0 <= self.client < terms.clients:
            raise ArgumentError(f"The run has {terms.clients} clients; this is {self.client}.")
        method, device = terms.choose(self._method), find_device(self._device)
        dtype = getattr(torch, terms.dtype)
        model = self._model if isinstance(self._model, nn.Module) else self._model()
        labelled = are_labels(self._data.y)
        problem = Problem(model, self._choose_loss(terms, labelled), dtype, device, "fp32")
        terms.check(problem)
        fed = copy.copy(self._data.to(device, dtype))
        few = map_inputs(lambda t: t[:2], fed.x)
        problem.check(few, fed.y[:2], int(fed.y.max()) if labelled else None)
        fed.sizes, fed.starts = (torch.zeros(terms.clients, dtype=torch.int64) for _ in range(2))
        fed.sizes[self.client] = fed.samples
        augment = None if terms.augment is None else augmentations.parse(terms.augment)
        feed = OneClientBatches(problem, fed, terms.cut, terms.seed, augment, wide=terms.width)
        plan = terms.plan(problem.layout)
        names = tuple(init_client_memory(method, problem.start, plan))
        bound = _BoundRun(
            method, problem, plan, ClientContext(method, feed, Looped(problem)), names
        )
        self._known = text, bound
        return bound

    def _choose_loss(self, terms: RunTerms, labelled: bool) -> str | Loss:
        if terms.loss == "auto":
            return "cross_entropy" if labelled else "mse"
        if terms.loss in LOSSES:
            return terms.loss
        if self._loss is None:
            raise ArgumentError(
                f"The server's loss {terms.loss!r} is a function; give it to client_app(loss=...)."
            )
        return self._loss

    @property
    def _ids(self) -> Tensor:
        return torch.tensor([self.client])

    def _probe(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Measure what the server asks for at each of its points."""
        context, what, t = bound.context, payload.header["what"], int(payload.header["round"])
        if what not in ("loss", "grad", "grad_sq"):
            raise DataError(f"A probe must ask for loss, grad or grad_sq, got {what!r}.")
        context.passes, found = 0, {}
        points = {n: raw for n, raw in payload.arrays.items() if n != "message"}
        for name, x in unpack_channels(points, {}, bound.problem.start).items():
            found[name] = context.probe(x, t, self._ids, what)[0]  # type: ignore[arg-type]
        passes: dict[str, Number] = {"passes": float(context.passes)}
        if "secure" in payload.header:
            rows = {name: value[None] for name, value in found.items()}
            return self._mask_answer(payload, bound, store, rows, passes)
        arrays, scalars = pack_channels(found)
        return Payload(_reply_header(payload.header), arrays, scalars, passes)

    def _train(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Do a round's work; the memory it leaves counts once the server names it."""
        header, method, like = payload.header, bound.method, bound.problem.start
        t = _round(header, bound.plan)
        down = unpack_channels(strip_prefix(payload.arrays, "down."), payload.scalars, like)
        own = self._memory(payload, bound, store, down["x"])
        if own is None:
            return Payload({**_reply_header(header), "lost": 1})
        bound.context.passes = 0
        sent, after, works = local_update(method, bound.context.task(self._ids, t), down, own, t)
        bill = Ledger()
        arrived, wired = pack_uploads(method, sent, own, self._ids, t, bill)
        after = after | wired
        if bound.names:
            version = str(header["version"])
            if method.echo:
                half = {"own": after, "sent": sent, "arrived": arrived, "before": own}
                flat = {f"{k}.{n}": v for k, part in half.items() for n, v in part.items()}
                store.write(version, flat | _round_tensors(t), "half")
            else:
                after = update_memory(method, sent, arrived, {}, after, t)
                store.write(version, _drop_client_axis(after, own, bound.names))
            store.prune(version, str(header["base"]))
        measured = _metrics(works, bound.context, bill)
        if "secure" in header:
            said = {k: sum(getattr(w, n) for w in works) / len(works) for k, n in MEASURED.items()}
            shown = {n: measured[n] for n in ("tally", "passes")}
            return self._mask_answer(payload, bound, store, arrived | said, shown)
        arrays = {
            n: self._encode_channel(n, v, own, bound, t) for n, v in sent.items() if v.ndim > 1
        }
        scalars: dict[str, Number] = {n: float(v) for n, v in arrived.items() if v.ndim == 1}
        return Payload(_reply_header(header), arrays, scalars, measured)

    def _mask_answer(
        self,
        payload: Payload,
        bound: _BoundRun,
        store: MemoryStore,
        rows: Channels,
        shown: dict[str, Number],
    ) -> Payload:
        """Return an answer of which the server can read nothing but the sum with others'."""
        inbox, weight = payload.arrays["message"].data, float(payload.header["weight"])
        message = self._secagg_client(payload, bound, store).mask(inbox, rows, weight)
        return Payload(_reply_header(payload.header), {"masked": wrap_bytes(message)}, {}, shown)

    def _secagg_client(
        self, payload: Payload, bound: _BoundRun, store: MemoryStore
    ) -> SecAggClient:
        header, preparing = payload.header, int(payload.header["round"]) < 0
        deal = SecAggTerms.read(header["secure"], bound.method, bound.problem.start, preparing)
        return SecAggClient(store.path, self.client, deal, int(self._config.get("least", 3)))

    def _secagg_step(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Answer a message of a session in which numbers are added up under masks."""
        kind, sent = str(payload.header["kind"]), payload.arrays.get("message")
        said = self._secagg_client(payload, bound, store).answer(kind, sent.data if sent else b"")
        return Payload(_reply_header(payload.header), {kind: wrap_bytes(said)})

    def _encode_channel(
        self, name: str, rows: Tensor, own: State, bound: _BoundRun, t: Round
    ) -> EncodedArray:
        wire = wire_for_round(bound.method, name, t)
        if wire.lossless:
            return encode_dense(rows[0])
        row = wire.corrected(rows, select_prefix(own, f"wire.{name}"))[0]
        return wrap_bytes(wire.encode(row, make_sender(name, self._ids, t), bound.plan.layout))

    def _memory(
        self, payload: Payload, bound: _BoundRun, store: MemoryStore, x: Vector
    ) -> State | None:
        """Return the memory that the work begins from, as one row; None if it is lost."""
        base = str(payload.header["base"])
        start = strip_prefix(payload.arrays, "start.")
        first = init_client_memory(
            bound.method, unpack_channels(start, {}, x)["x"] if start else x, bound.plan
        )
        if base == FIRST or not bound.names:
            return {name: v[None] for name, v in first.items()}
        found = store.read(base)
        if found is None or any(
            n not in found or found[n].shape != v.shape or found[n].dtype != v.dtype
            for n, v in first.items()
        ):
            return None
        return {n: found[n][None].to(v.device) for n, v in first.items()}

    def _catch_up(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> None:
        """Finish a round whose means came late: this message has them."""
        version = str(payload.header.get("echo", ""))
        if not version or store.read(version) is not None:
            return
        half = store.read(version, "half")
        if half is None:  # then the memory is lost, and `_memory` will say so
            return
        device = bound.problem.device
        half = {name: v.to(device) for name, v in half.items()}
        mean = unpack_channels(strip_prefix(payload.arrays, "echo."), {}, bound.problem.start)
        t = Round(bound.plan, int(half["index"]), float(half["fraction"]), float(half["factor"]))
        parts = {k: select_prefix(half, k) for k in ("own", "sent", "arrived", "before")}
        after = update_memory(bound.method, parts["sent"], parts["arrived"], mean, parts["own"], t)
        store.write(version, _drop_client_axis(after, parts["before"], bound.names))

    def _confirm_means(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Say whether the round is finished, now that its means are here."""
        version = str(payload.header["echo"])
        return Payload(_reply_header(payload.header) | {"lost": int(store.read(version) is None)})


def client_number(config: Mapping[str, Any]) -> int:
    """Return the client's number from a node's configuration.

    >>> client_number({"partition-id": 2, "num-partitions": 10})
    2
    """
    for name in ("client-id", "partition-id"):
        if name in config:
            return int(config[name])
    raise ArgumentError(
        "A node must know which client it is; start it with --node-config 'partition-id=0' (or "
        "client-id=0)."
    )


def _reply_header(header: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    """Return what an answer repeats of its question."""
    return {n: header[n] for n in ("client", "round", "version")}


def _round(header: Mapping[str, HeaderValue], plan: Plan) -> Round:
    return Round(plan, int(header["round"]), float(header["fraction"]), float(header["factor"]))


def _round_tensors(t: Round) -> State:
    numbers = {"index": t.index, "fraction": t.fraction, "factor": t.factor}
    return {n: torch.tensor(v, dtype=torch.float64) for n, v in numbers.items()}


def _drop_client_axis(after: State, before: State, names: tuple[str, ...]) -> State:
    """Return the memory without its client axis; what the round did not touch stays."""
    return {n: after.get(n, before[n])[0] for n in names}


def _metrics(works: list[LocalResult], context: ClientContext, bill: Ledger) -> dict[str, Number]:
    """Return numbers for the history; not traffic."""
    total = sum((count_work(work) for work in works[1:]), count_work(works[0]))
    return {
        "loss": [float(work.loss) for work in works],
        "lr": [float(work.lr) for work in works],
        "tally": total.tolist(),
        "passes": float(context.passes),
        "counted": float(bill.counted_up),
    }
