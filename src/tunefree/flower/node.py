"""A client on a Flower node: the clients' half of a round for one row, with a memory on disk.

A node may handle every message in a new process; its state between messages is in its
`MemoryStore`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..clients.rule import LocalResult
from ..core.device import find_device
from ..core.errors import ArgumentError, DataError
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector, map_inputs
from ..data.federation import Federation
from ..methods import Method
from ..models.loop import LoopEngine
from ..models.problem import LOSSES, Loss, Problem, are_labels
from ..rounds import (
    init_client_memory,
    local_update,
    make_sender,
    pack_uploads,
    select_prefix,
    update_memory,
    wire_for_round,
)
from ..simulation.batches import BatchSource
from ..simulation.context import ClientContext, count_work
from ..wire import Ledger
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
class OneClientBatches(BatchSource):
    """The batches of one client, padded to the width that the whole population's batches have."""

    wide: int = 1

    @cached_property
    def width(self) -> int:
        """Rows of a batch, padding included."""
        return self.wide


@dataclass(frozen=True)
class _BoundRun:
    """A run, bound to this node's model and data."""

    method: Method
    problem: Problem
    plan: Plan
    context: ClientContext
    names: tuple[str, ...]  # tensors of the client's memory


class Node:
    """One client on a node.

    Args:
        model: The module, or a function that builds it.
        load: Returns this node's data, (x, y) or a torch Dataset, from its configuration.
        config: The node's configuration: `client-id` or `partition-id`; `memory`, the folder of its
            memory; `least`, to answer only under secure aggregation with at least that many
            clients.
        method: The method, if the server's was not given by name.
        loss: The loss, if the server's is a function.
        device: Device of the local work.
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
        self._bound: tuple[str, _BoundRun] | None = None
        self.client = client_number(config)
        self._home = memory_home(config)

    @cached_property
    def _data(self) -> Federation:
        return Federation.of([self._load(self._config)])

    def reply(self, payload: Payload) -> Payload:
        """Process a message and return the answer."""
        header = payload.header
        kind = header.get("kind")
        if kind == "hello":
            return Payload({"client": self.client, "samples": self._data.samples})
        if header.get("client") != self.client:
            raise DataError(f"This is client {self.client}, not {header.get('client')!r}.")
        handlers = {"train": self._train, "probe": self._probe, "keep": self._confirm_means}
        handlers |= dict.fromkeys(("keys", "shares", "opened"), self._answer_secagg)
        if kind not in handlers:
            raise DataError(f"The kind of a message must be known, got {kind!r}.")
        if kind in ("train", "probe") and "least" in self._config and "secure" not in header:
            raise DataError(
                "This node answers only under secure aggregation ('least' is configured)."
            )
        bound = self._bind(str(header["terms"]))
        store = MemoryStore(self._home, str(header["run"]), self.client)
        self._apply_means(payload, bound, store)
        return handlers[kind](payload, bound, store)

    def _bind(self, text: str) -> _BoundRun:
        """Bind the terms of a run to this node's model and data, unless they are bound already."""
        if self._bound is not None and self._bound[0] == text:
            return self._bound[1]
        terms = RunTerms.read(text)
        if not 0 <= self.client < terms.clients:
            raise ArgumentError(f"The run has {terms.clients} clients; this is {self.client}.")
        method, device = terms.choose(self._method), find_device(self._device)
        config = terms.config
        dtype = config.dtype
        model = self._model if isinstance(self._model, nn.Module) else self._model()
        labelled = are_labels(self._data.y)
        problem = Problem(model, self._choose_loss(terms, labelled), dtype, device, "fp32")
        terms.check(problem)
        fed = copy.copy(self._data.to(device, dtype))
        few = map_inputs(lambda t: t[:2], fed.x)
        problem.check(few, fed.y[:2], int(fed.y.max()) if labelled else None)
        fed.sizes, fed.starts = (torch.zeros(terms.clients, dtype=torch.int64) for _ in range(2))
        fed.sizes[self.client] = fed.samples
        batches = OneClientBatches(
            problem, fed, config.batch_plan, config.seed, config.augmentation, wide=terms.width
        )
        plan = terms.plan(problem.layout)
        names = tuple(init_client_memory(method, problem.start, plan))
        context = ClientContext(method, batches, LoopEngine(problem))
        bound = _BoundRun(method, problem, plan, context, names)
        self._bound = text, bound
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
        """Measure a quantity at each of the server's points."""
        context, what, t = bound.context, payload.header["what"], int(payload.header["round"])
        if what not in ("loss", "grad", "grad_sq"):
            raise DataError(f"A probe must ask for loss, grad or grad_sq, got {what!r}.")
        context.passes, found = 0, {}
        points = {n: array for n, array in payload.arrays.items() if n != "message"}
        for name, x in unpack_channels(points, {}, bound.problem.start).items():
            found[name] = context.probe(x, t, self._ids, what)[0]  # type: ignore[arg-type]
        metrics: dict[str, Number] = {"passes": float(context.passes)}
        if "secure" in payload.header:
            rows = {name: value[None] for name, value in found.items()}
            return self._mask_answer(payload, bound, store, rows, metrics)
        arrays, scalars = pack_channels(found)
        return Payload(_reply_header(payload.header), arrays, scalars, metrics)

    def _train(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Do a round's local work, and write a version of the memory that the server may commit."""
        header, method, like = payload.header, bound.method, bound.problem.start
        t = _round_of(header, bound.plan)
        down = unpack_channels(strip_prefix(payload.arrays, "down."), payload.scalars, like)
        own = self._load_memory(payload, bound, store, down["x"])
        if own is None:
            return Payload({**_reply_header(header), "lost": 1})
        bound.context.passes = 0
        task = bound.context.task(self._ids, t)
        sent, after, results = local_update(method, task, down, own, t)
        ledger = Ledger()
        arrived, wire_memory = pack_uploads(method, sent, own, self._ids, t, ledger)
        after = after | wire_memory
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
        metrics = _metrics(results, bound.context, ledger)
        if "secure" in header:
            means = {
                k: sum(getattr(r, n) for r in results) / len(results) for k, n in MEASURED.items()
            }
            visible = {n: metrics[n] for n in ("tally", "passes")}
            return self._mask_answer(payload, bound, store, arrived | means, visible)
        arrays = {n: self._encode(n, v, own, bound, t) for n, v in sent.items() if v.ndim > 1}
        scalars: dict[str, Number] = {n: float(v) for n, v in arrived.items() if v.ndim == 1}
        return Payload(_reply_header(header), arrays, scalars, metrics)

    def _mask_answer(
        self,
        payload: Payload,
        bound: _BoundRun,
        store: MemoryStore,
        rows: Channels,
        metrics: dict[str, Number],
    ) -> Payload:
        """Return an answer with masked rows, of which the server learns only the cohort's sum."""
        inbox, weight = payload.arrays["message"].data, float(payload.header["weight"])
        message = self._secagg_client(payload, bound, store).mask(inbox, rows, weight)
        return Payload(_reply_header(payload.header), {"masked": wrap_bytes(message)}, {}, metrics)

    def _secagg_client(
        self, payload: Payload, bound: _BoundRun, store: MemoryStore
    ) -> SecAggClient:
        header, preparing = payload.header, int(payload.header["round"]) < 0
        like = bound.problem.start
        terms = SecAggTerms.from_text(header["secure"], bound.method, like, preparing)
        return SecAggClient(store.path, self.client, terms, int(self._config.get("least", 3)))

    def _answer_secagg(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Answer a message of secure aggregation that asks for keys or shares."""
        kind, sent = str(payload.header["kind"]), payload.arrays.get("message")
        client = self._secagg_client(payload, bound, store)
        message = client.answer(kind, sent.data if sent else b"")
        return Payload(_reply_header(payload.header), {kind: wrap_bytes(message)})

    def _encode(
        self, name: str, rows: Tensor, own: State, bound: _BoundRun, t: Round
    ) -> EncodedArray:
        wire = wire_for_round(bound.method, name, t)
        if wire.lossless:
            return encode_dense(rows[0])
        row = wire.corrected(rows, select_prefix(own, f"wire.{name}"))[0]
        return wrap_bytes(wire.encode(row, make_sender(name, self._ids, t), bound.plan.layout))

    def _load_memory(
        self, payload: Payload, bound: _BoundRun, store: MemoryStore, x: Vector
    ) -> State | None:
        """Return the memory from which the work starts, as one row; None if it is lost."""
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

    def _apply_means(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> None:
        """Finish an earlier round's memory, if this message brings the means that it lacked."""
        version = str(payload.header.get("echo", ""))
        if not version or store.read(version) is not None:
            return
        half = store.read(version, "half")
        if half is None:  # the memory is lost; `_load_memory` reports it
            return
        device = bound.problem.device
        half = {name: v.to(device) for name, v in half.items()}
        mean = unpack_channels(strip_prefix(payload.arrays, "echo."), {}, bound.problem.start)
        t = Round(bound.plan, int(half["index"]), float(half["fraction"]), float(half["factor"]))
        parts = {k: select_prefix(half, k) for k in ("own", "sent", "arrived", "before")}
        after = update_memory(bound.method, parts["sent"], parts["arrived"], mean, parts["own"], t)
        store.write(version, _drop_client_axis(after, parts["before"], bound.names))

    def _confirm_means(self, payload: Payload, bound: _BoundRun, store: MemoryStore) -> Payload:
        """Report whether the round's memory is finished, now that its means have arrived."""
        version = str(payload.header["echo"])
        lost = store.read(version) is None
        return Payload(_reply_header(payload.header) | {"lost": int(lost)})


def client_number(config: Mapping[str, Any]) -> int:
    """Return the client's number from a node's configuration.

    >>> client_number({"partition-id": 2, "num-partitions": 10})
    2
    """
    for name in ("client-id", "partition-id"):
        if name in config:
            return int(config[name])
    raise ArgumentError(
        "A node needs the number of its client; start it with --node-config 'partition-id=0' (or "
        "client-id=0)."
    )


def _reply_header(header: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    """Return the values that identify the request, for the header of its answer."""
    return {n: header[n] for n in ("client", "round", "version")}


def _round_of(header: Mapping[str, HeaderValue], plan: Plan) -> Round:
    return Round(plan, int(header["round"]), float(header["fraction"]), float(header["factor"]))


def _round_tensors(t: Round) -> State:
    numbers = {"index": t.index, "fraction": t.fraction, "factor": t.factor}
    return {n: torch.tensor(v, dtype=torch.float64) for n, v in numbers.items()}


def _drop_client_axis(after: State, before: State, names: tuple[str, ...]) -> State:
    """Return the memory without its client axis; tensors that the round did not set stay."""
    return {n: after.get(n, before[n])[0] for n in names}


def _metrics(
    results: list[LocalResult], context: ClientContext, ledger: Ledger
) -> dict[str, Number]:
    """Return numbers for the history, which do not count as traffic."""
    work = sum((count_work(r) for r in results[1:]), count_work(results[0]))
    return {
        "loss": [float(r.loss) for r in results],
        "lr": [float(r.lr) for r in results],
        "tally": work.tolist(),
        "passes": float(context.passes),
        "counted": float(ledger.counted_up),
    }
