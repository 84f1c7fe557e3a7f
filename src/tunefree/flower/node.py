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

from ..core.device import find_device
from ..core.errors import ArgumentError, DataError, check_int
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector, select_prefix, take_rows
from ..data.batches import batch_width
from ..data.federation import Federation
from ..data.moments import column_moments, count_columns
from ..methods import Method
from ..models.loop import LoopEngine
from ..models.problem import LOSSES, Loss, Problem, are_labels
from ..privacy.digits import to_digits
from ..rounds.client import (
    init_client_memory,
    local_update,
    make_sender,
    pack_uploads,
    update_memory,
    wire_for_round,
)
from ..simulation.batches import BatchSource
from ..simulation.context import ClientContext, count_work
from ..training.config import get_parsed
from ..wire import Ledger
from .memory import FIRST, MemoryStore, memory_home
from .payload import (
    EncodedArray,
    HeaderValue,
    Number,
    Payload,
    decode_dense,
    encode_dense,
    pack_channels,
    unpack_channels,
    wrap_bytes,
)
from .secagg_client import MEASURED, SecAggClient, SecAggTerms, digest_question
from .terms import RunTerms, digest_start

Load = Callable[[Mapping[str, Any]], Any]
MAX_ROUND = 10**9  # which the name of a version can hold


class Node:
    """One client on a node; arguments are those of `client_app`.

    The node's configuration has `client-id` or `partition-id`; it may have `memory`, the folder of
    its memory, and `least`, to answer only under secure aggregation with that many clients or more.
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
        self._bound: tuple[tuple[str, str], _NodeRun] | None = None  # by run and terms
        self.client = client_number(config)
        self._home = memory_home(config)

    @cached_property
    def _data(self) -> Federation:
        fed = Federation.of([self._load(self._config)])
        if fed.labels not in (None, (False, True)):
            raise DataError(
                "A node numbers its classes as all other nodes do, so its targets must be integers "
                f"0, 1, ..., got {fed.labels[0]!r}."
            )
        for one in () if fed.features is None else fed.features.each:
            if one.categories is not None:
                raise DataError(
                    f"The column {one.name!r} has categories, of which other nodes may have "
                    "others; turn it into numbers in the same way on all nodes."
                )
        return fed

    def reply(self, payload: Payload) -> Payload:
        """Process a message and return the answer."""
        header = payload.header
        kind = header.get("kind")
        if kind == "hello":
            known = {"client": self.client, "samples": self._data.samples}
            return Payload({**known, "columns": count_columns(self._data.x)})
        if header.get("client") != self.client:
            raise DataError(f"This is client {self.client}, not {header.get('client')!r}.")
        if kind not in ("train", "probe", "keep", "keys", "shares", "opened"):
            raise DataError(f"The kind of a message must be known, got {kind!r}.")
        t = header.get("round")  # 1 and 1.0 are one round, but would be two questions
        if type(t) is not int or not -1 <= t < MAX_ROUND:
            raise DataError(f"The round of a message must be an int >= -1, got {t!r}.")
        if kind in ("train", "probe") and "least" in self._config and "secure" not in header:
            raise DataError("This node ('least') answers only under secure aggregation.")
        key = str(header["run"]), str(header["terms"])
        if self._bound is None or self._bound[0] != key:
            self._bound = key, self._bind(*key)
        return self._bound[1].reply(payload)

    def _bind(self, run: str, text: str) -> "_NodeRun":
        """Bind a run and its terms to this node's model, data and memory."""
        terms = RunTerms.read(text)
        if not 0 <= self.client < terms.clients:
            raise ArgumentError(f"The run has {terms.clients} clients; this is {self.client}.")
        method, device = terms.choose(self._method), find_device(self._device)
        config = terms.config
        model = self._model if isinstance(self._model, nn.Module) else self._model()
        labelled = are_labels(self._data.y)
        problem = Problem(model, self._choose_loss(terms), config.dtype, device, "fp32")
        terms.check(problem)
        fed = copy.copy(self._data.to(device, config.dtype))
        few = take_rows(fed.x, slice(2))
        problem.check(few, fed.y[:2], int(fed.y.max()) if labelled else None, fed.y)
        fed = fed.map_x(problem.prepare) if problem.casts else fed
        fed.sizes, fed.starts = (torch.zeros(terms.clients, dtype=torch.int64) for _ in range(2))
        fed.sizes[self.client] = fed.samples
        cut, seed, augment = config.batch_plan, config.seed, get_parsed(config.preprocess.augment)
        width = max(terms.width, batch_width(fed.sizes, cut))  # the server may limit our claim
        batches = BatchSource(problem, fed, cut, seed, augment, padded=width)
        return _NodeRun(
            client=self.client,
            least=_read_int({"least": 3, **self._config}, "least"),
            method=method,
            plan=terms.plan(problem.layout),
            start=terms.start,
            like=problem.start,
            context=ClientContext(method, batches, LoopEngine(problem)),
            store=MemoryStore(self._home, run, self.client),
        )

    def _choose_loss(self, terms: RunTerms) -> str | Loss:
        if terms.loss in (*LOSSES, "auto"):
            return terms.loss
        if self._loss is None:
            raise ArgumentError(
                f"The server's loss {terms.loss!r} is a function; give it to client_app(loss=...)."
            )
        return self._loss


@dataclass(frozen=True)
class _NodeRun:
    """A run, bound to this node's model, data and memory; it answers the run's messages."""

    client: int
    least: int  # clients among which this one agrees to be summed
    method: Method
    plan: Plan
    start: str  # digest of the first model
    like: Vector  # the model's parameters
    context: ClientContext
    store: MemoryStore

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Tensors of the client's memory."""
        return tuple(init_client_memory(self.method, self.like, self.plan))

    @property
    def ids(self) -> Tensor:
        """The client as a cohort."""
        return torch.tensor([self.client])

    def reply(self, payload: Payload) -> Payload:
        """Process a message and return the answer."""
        self._apply_means(payload)
        self._apply_scaling(payload)
        kind = payload.header["kind"]
        if kind == "train":
            return self._train(payload)
        if kind == "probe":
            return self._probe(payload)
        if kind == "keep":
            is_lost = self.store.read(str(payload.header["echo"])) is None
            return Payload(_reply_header(payload.header) | {"lost": int(is_lost)})
        sent = payload.arrays.get("message")
        message = self._secagg_client(payload).answer(str(kind), sent.data if sent else b"")
        return Payload(_reply_header(payload.header), {str(kind): wrap_bytes(message)})

    def _probe(self, payload: Payload) -> Payload:
        """Measure a quantity at each of the server's points."""
        context, what, t = self.context, payload.header["what"], int(payload.header["round"])
        if what not in ("loss", "grad", "grad_sq", "moments"):
            raise DataError(f"A probe must ask for loss, grad, grad_sq or moments, got {what!r}.")
        context.passes, found = 0, {}
        points = {n: array for n, array in payload.arrays.items() if n.startswith("point ")}
        like = self._shift if what == "moments" else self.like
        for name, x in unpack_channels(points, {}, like).items():
            if what == "moments":
                sums = column_moments(context.batches.fed, self.ids, x)
                found[name] = (to_digits(sums) if "secure" in payload.header else sums)[0]
            else:
                found[name] = context.probe(x, t, self.ids, what)[0]  # type: ignore[arg-type]
        metrics: dict[str, Number] = {"passes": float(context.passes)}
        if "secure" in payload.header:
            rows = {name: value[None] for name, value in found.items()}
            return self._mask_answer(payload, rows, metrics)
        arrays, scalars = pack_channels(found)
        return Payload(_reply_header(payload.header), arrays, scalars, metrics)

    @property
    def _shift(self) -> Tensor:
        """Zeros for each column of the inputs, in float64."""
        columns = count_columns(self.context.batches.fed.x)
        return torch.zeros(columns, dtype=torch.float64, device=self.like.device)

    def _apply_scaling(self, payload: Payload) -> None:
        """Standardise the inputs as the server says."""
        if (array := payload.arrays.get("scale")) is not None:
            zeros = self._shift.to(self.like.dtype).expand(2, -1)
            self.context.batches.problem.scaling = decode_dense("scale", array, zeros)

    def _train(self, payload: Payload) -> Payload:
        """Do a round's local work, and write a version of the memory that the server may commit."""
        header, method = payload.header, self.method
        index, fraction = int(header["round"]), float(header["fraction"])
        t = Round(self.plan, index, fraction, float(header["factor"]))
        down = unpack_channels(select_prefix(payload.arrays, "down"), payload.scalars, self.like)
        own = self._load_memory(payload, down)
        if own is None:
            return Payload({**_reply_header(header), "lost": 1})
        self.context.passes, ledger = 0, Ledger()
        task = self.context.task(self.ids, t)
        sent, after, results = local_update(method, task, down, own, t)
        arrived, wire_memory = pack_uploads(method, sent, own, self.ids, t, ledger)
        after = after | wire_memory
        if self.names:
            version = str(header["version"])
            if method.echo:
                half = {"own": after, "sent": sent, "arrived": arrived, "before": own}
                flat = {f"{k}.{n}": v for k, part in half.items() for n, v in part.items()}
                numbers = {"index": t.index, "fraction": t.fraction, "factor": t.factor}
                flat |= {n: torch.tensor(v, dtype=torch.float64) for n, v in numbers.items()}
                self.store.write(version, flat, "half")
            else:
                after = update_memory(method, sent, arrived, {}, after, t)
                self.store.write(version, self._drop_client_axis(after, own))
            self.store.prune(version, str(header["base"]))
        work = sum((count_work(r) for r in results[1:]), count_work(results[0]))
        metrics: dict[str, Number] = {  # for the history; they do not count as traffic
            "loss": [float(r.loss) for r in results],
            "lr": [float(r.lr) for r in results],
            "tally": work.tolist(),
            "passes": float(self.context.passes),
            "counted": float(ledger.counted_up),
        }
        if "secure" in header:
            means = {
                k: sum(getattr(r, n) for r in results) / len(results) for k, n in MEASURED.items()
            }
            visible = {n: metrics[n] for n in ("tally", "passes")}
            return self._mask_answer(payload, arrived | means, visible)
        arrays = {n: self._encode(n, v, own, t) for n, v in sent.items() if v.ndim > 1}
        scalars: dict[str, Number] = {n: float(v) for n, v in arrived.items() if v.ndim == 1}
        return Payload(_reply_header(header), arrays, scalars, metrics)

    def _mask_answer(self, payload: Payload, rows: Channels, metrics: dict[str, Number]) -> Payload:
        """Return an answer with masked rows, of which the server learns only the cohort's sum."""
        inbox, questions = payload.arrays["message"].data, [digest_question(payload)]
        if self._answers_alike(payload):
            questions.append(digest_question(payload, lasting=True))
        message = self._secagg_client(payload).mask(inbox, rows, *questions)
        return Payload(_reply_header(payload.header), {"masked": wrap_bytes(message)}, {}, metrics)

    def _answers_alike(self, payload: Payload) -> bool:
        """Whether this client would answer the same in another round, with the same model."""
        batches = self.context.batches
        if batches.problem.has_dropout:
            return False
        size = batches.cut.batch
        has_all = batches.augment is None and (size is None or size >= batches.fed.samples)
        return payload.header["kind"] == "probe" or has_all

    def _secagg_client(self, payload: Payload) -> SecAggClient:
        header, t = payload.header, int(payload.header["round"])
        terms = SecAggTerms.from_text(
            header["secure"], self.method, self.like, t < 0, len(self._shift)
        )
        return SecAggClient(self.store, terms.bind(header), self.least, str(header["run"]), t)

    def _encode(self, name: str, rows: Tensor, own: State, t: Round) -> EncodedArray:
        wire = wire_for_round(self.method, name, t)
        if wire.lossless:
            return encode_dense(rows[0])
        row = wire.corrected(rows, select_prefix(own, f"wire.{name}"))[0]
        return wrap_bytes(wire.encode(row, make_sender(name, self.ids, t), self.plan.layout))

    def _load_memory(self, payload: Payload, down: Channels) -> State | None:
        """Return the memory from which the work starts, as one row; None if it is lost."""
        base = str(payload.header["base"])
        start = unpack_channels(select_prefix(payload.arrays, "start"), {}, down["x"])
        if "x" in start and digest_start(start["x"]) != self.start:
            raise DataError("The first model that was sent is not that of the run's terms.")
        first = init_client_memory(self.method, start.get("x", down["x"]), self.plan)
        if base == FIRST or not self.names:
            return {name: v[None] for name, v in first.items()}
        found = self.store.read(base)
        if found is None or any(
            n not in found or found[n].shape != v.shape or found[n].dtype != v.dtype
            for n, v in first.items()
        ):
            return None
        return {n: found[n][None].to(v.device) for n, v in first.items()}

    def _apply_means(self, payload: Payload) -> None:
        """Finish an earlier round's memory, if this message brings the means that it lacked."""
        version = str(payload.header.get("echo", ""))
        if not version or self.store.read(version) is not None:
            return
        half = self.store.read(version, "half")
        if half is None:  # the memory is lost; `_load_memory` reports it
            return
        half = {name: v.to(self.like.device) for name, v in half.items()}
        mean = unpack_channels(select_prefix(payload.arrays, "echo"), {}, self.like)
        t = Round(self.plan, int(half["index"]), float(half["fraction"]), float(half["factor"]))
        parts = {k: select_prefix(half, k) for k in ("own", "sent", "arrived", "before")}
        after = update_memory(self.method, parts["sent"], parts["arrived"], mean, parts["own"], t)
        self.store.write(version, self._drop_client_axis(after, parts["before"]))

    def _drop_client_axis(self, after: State, before: State) -> State:
        """Return the memory without its client axis; tensors that the round did not set stay."""
        return {n: after.get(n, before[n])[0] for n in self.names}


def client_number(config: Mapping[str, Any]) -> int:
    """Return the client's number from a node's configuration.

    >>> client_number({"partition-id": 2, "num-partitions": 10})
    2
    """
    for name in ("client-id", "partition-id"):
        if name in config:
            return _read_int(config, name)
    raise ArgumentError(
        "A node needs its client's number: use --node-config 'partition-id=0' or 'client-id=0'."
    )


def _read_int(config: Mapping[str, Any], name: str) -> int:
    try:
        value = int(config[name])
    except (TypeError, ValueError, OverflowError):
        value = config[name]
    check_int("--node-config", name, value, 0)
    return value


def _reply_header(header: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    """Return the values that identify the request, for the header of its answer."""
    return {n: header[n] for n in ("client", "round", "version")}
