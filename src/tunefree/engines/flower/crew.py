"""Clients on other machines, as the server's round sees them.

The crew writes to the nodes, waits for those who answer in time, looks at what they send and
returns means, so that `rounds.play` is the same as in a simulation. A vector that a cohort was sent
earlier in a round is sent again, since every message may find a new process on a node; the ledger
counts it each time.
"""

import json
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ...clients.rule import Plan, Round, What, Who
from ...errors import ArgumentError
from ...methods import Method
from ...rounds import Answer, first_memory
from ...server.aggregate import Mean, shares
from ...types import Channels, Vector
from ...wire import Ledger
from ..desk import TALLY, Desk, costs
from ..ranks import Ranks
from .check import Question, Upload, probed, upload
from .exchange import Exchange
from .parcel import Fact, Packed, Parcel, Raw, dense, packed
from .store import FIRST


class Aggregator(Protocol):
    """Turns what clients sent into means, whatever it does to each of them on the way."""

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,)."""
        ...

    def result(self) -> Channels:
        """Return the means."""
        ...


class Remote:
    """A crew of nodes.

    Args:
        method: What they train by.
        plan: How many, how often.
        sizes: Samples of each client (N,).
        start: The first model, from which first memories are made.
        run: The run's name, under which nodes keep their memory.
        terms: What nodes must know of the run, as text.
        exchange: How to reach them, and how to deal with those who fail.
        held: Evaluates on the server's own sample, where it has one.
        aggregate: Makes an aggregator of the cohort's weight.
    """

    def __init__(
        self,
        method: Method,
        plan: Plan,
        sizes: Tensor,
        start: Vector,
        run: str,
        terms: str,
        exchange: Exchange,
        held: Desk | None = None,
        aggregate: Callable[[float], Aggregator] = Mean,
    ) -> None:
        self.method, self.plan, self.ranks = method, plan, Ranks()
        self._shares = shares(method.weights, sizes)
        self._start, self._run, self._terms = start, run, terms
        self._exchange, self._held, self._aggregate = exchange, held, aggregate
        self._remembers = bool(first_memory(method, start, plan))
        self._versions: dict[int, str] = {}  # whose memory is at which; others' is the first
        self._renewed: set[int] = set()
        self._owed: dict[int, str] = {}  # who has not confirmed the means of a round
        self._echoes: dict[str, Channels] = {}
        self._pending: dict[int, str] = {}
        self._passes = 0.0
        self._sent: tuple[Ledger | None, Counter[str]] = (None, Counter())

    def fraction(self, ids: Tensor) -> float:
        """Return these clients' share of the population's weight."""
        return float(self._shares[ids].sum())

    def ask(
        self,
        ids: Tensor,
        t: int,
        what: What,
        at: list[Vector],
        who: Who,
        sent: Channels | None,
        ledger: Ledger,
    ) -> list[Tensor]:
        """Return the mean of `what` at each point over those who answer."""
        if who == "held":
            if self._held is None:
                raise ArgumentError(
                    "This method evaluates on the server's own sample; give Settings(held=...)."
                )
            return [self._held.probe(x, t, None, what)[0] for x in at]
        people = ids.tolist() if who == "cohort" else list(range(self.plan.clients))
        version = _version(t)
        points = {f"point {j}": x for j, x in enumerate(at)}
        arrays = {name: dense(x) for name, x in points.items()}

        def write(i: int) -> Parcel:
            self._count(ledger, points)
            return Parcel(self._facts("probe", i, t, version) | {"what": what}, arrays)

        def read(i: int, parcel: Parcel) -> tuple[list[Tensor], float]:
            return probed(
                parcel, Question(i, t, version), what, at, self._exchange.patience.largest
            )

        found = self._exchange.run(people, t, write, read, self._need(len(people), t), ledger)
        answered = [i for i in people if i in found]
        weight = float(self._shares[answered].sum())
        means = [self._aggregate(weight) for _ in at]
        for i in answered:
            rows, passes = found[i]
            self._passes += passes
            for mean, row in zip(means, rows, strict=True):
                mean.add(self._shares[[i]], {what: row})
                ledger.send_up(what, row.numel() * row.element_size())
        return [mean.result()[what] for mean in means]

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> Answer:
        """Let the cohort work and return the means of what arrived."""
        people, version, x = ids.tolist(), _version(t.index), down["x"]
        ready = packed(down)

        def write(i: int) -> Parcel:
            return self._order(i, down, ready, t, version, ledger)

        def read(i: int, parcel: Parcel) -> Upload:
            asked = Question(i, t.index, version)
            return upload(parcel, asked, self.method, x, t, self._exchange.patience.largest)

        def renew(i: int) -> bool:
            return self._renew(i, down, ledger)

        need = self._need(len(people), t.index)
        found = self._exchange.run(people, t.index, write, read, need, ledger, renew)
        answered = [i for i in people if i in found]
        weight = float(self._shares[answered].sum())
        mean, measured = self._aggregate(weight), Mean(weight)
        total, passes = torch.zeros(len(TALLY), dtype=torch.float64), self._passes
        self._passes = 0.0
        for i in answered:
            one, p = found[i], self._shares[[i]]
            mean.add(p, one.rows)
            for loss, lr in zip(one.loss, one.lr, strict=True):
                measured.add(p, {"loss": loss[None], "lr": lr[None]})
            total += torch.tensor(one.tally, dtype=torch.float64)
            passes += one.passes
            for name, size in one.sizes.items():
                ledger.send_up(name, size, 0.0)
            ledger.counted_up += one.counted
        means = mean.result()
        self._pending = dict.fromkeys(answered, version) if self._remembers else {}
        if self.method.echo:
            self._echo(answered, means, t, version, ledger)
        times = self.method.direction.turns(t).times
        counted = dict(zip(TALLY, total.tolist(), strict=True))
        average = {n: float(v.double()) / times for n, v in measured.result().items()}
        row = {"lr": average["lr"], **costs(self.method, counted, passes, t)}
        row |= {"answered": len(answered), **self._exchange.events()}
        missing = len(answered) < len(people)
        return Answer(means, average["loss"], row, weight if missing else None)

    def _order(
        self, i: int, down: Channels, ready: Packed, t: Round, version: str, ledger: Ledger
    ) -> Parcel:
        """Return a client's task of a round."""
        arrays, scalars = ready
        parts = {f"down.{name}": raw for name, raw in arrays.items()}
        base = self._versions.get(i, FIRST)
        self._count(ledger, down)
        late = t.index > 0 and i not in self._renewed
        if self._remembers and base == FIRST and late:  # it was never asked before
            parts["start.x"] = dense(self._start)
            self._count(ledger, {"start": self._start})
        facts = self._facts("train", i, t.index, version) | {"base": base}
        facts |= {"fraction": t.fraction, "factor": t.factor}
        if i in self._owed:
            facts["echo"] = self._owed[i]
            parts |= self._echoed(self._owed[i], ledger)
        return Parcel(facts, parts, scalars)

    def _echoed(self, version: str, ledger: Ledger) -> dict[str, Raw]:
        means = self._echoes[version]
        self._count(ledger, {f"mean {name}": v for name, v in means.items()})
        return {f"echo.{name}": dense(v) for name, v in means.items()}

    def _echo(
        self, answered: list[int], means: Channels, t: Round, version: str, ledger: Ledger
    ) -> None:
        """Send the means back; whoever does not confirm them gets them with its next task."""
        self._echoes[version] = {name: means[name] for name in self.method.echo}

        def write(i: int) -> Parcel:
            facts = self._facts("keep", i, t.index, version) | {"echo": version}
            return Parcel(facts, self._echoed(version, ledger))

        def read(i: int, parcel: Parcel) -> bool:
            Question(i, t.index, version).check(parcel)
            return True

        kept = self._exchange.run(answered, t.index, write, read, 0, ledger, away="behind")
        self._owed = {i: v for i, v in self._owed.items() if i not in answered}
        self._owed |= {i: version for i in answered if i not in kept}
        self._echoes = {v: self._echoes[v] for v in set(self._owed.values())}

    def _facts(self, kind: str, client: int, t: int, version: str) -> dict[str, Fact]:
        same = {"run": self._run, "terms": self._terms}
        return {"kind": kind, "client": client, "round": t, "version": version, **same}

    def _need(self, cohort: int, t: int) -> int:
        return self._exchange.patience.need(cohort, self.method.full or t < 0)

    def _count(self, ledger: Ledger, channels: Channels) -> None:
        """Count what one client is sent, instead of what was counted for the round as planned."""
        if self._sent[0] is not ledger:
            self._sent = ledger, Counter()
        for name, value in channels.items():
            self._sent[1][name] += value.numel() * value.element_size()
            ledger.down[name] = self._sent[1][name]

    def _renew(self, i: int, down: Channels, ledger: Ledger) -> bool:
        """Let a client begin anew at the present model; whether it can be asked again."""
        if i in self._renewed:
            return False
        self._versions.pop(i, None)
        self._owed.pop(i, None)
        self._renewed.add(i)
        if self.method.prepares:
            first, version = Round(self.plan, index=-1), _version(-1)
            order = self._order(i, down, packed(down), first, version, ledger)
            said = self._exchange.roll.write({i: order}).get(i)
            if not isinstance(said, Parcel) or said.facts.get("lost"):
                return False
            self._versions[i] = version
        return True

    def commit(self) -> None:
        """Name the versions that count from now on; nodes learn of it with their next task."""
        self._versions |= self._pending
        self._renewed -= self._pending.keys()
        self._pending = {}

    def expect(self, ids: Tensor | None) -> None:
        """Nothing is read ahead."""

    def facts(self) -> dict[str, Any]:
        """Return what was chosen, for the record."""
        return {"engine": "flower", "chunk": 1}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs: which versions count, and means that are still owed."""
        known = {
            "versions": self._versions,
            "owed": self._owed,
            "renewed": sorted(self._renewed),
        }
        text = bytearray(json.dumps(known).encode())
        out = {"nodes": torch.frombuffer(text, dtype=torch.uint8)}
        for version, means in self._echoes.items():
            out |= {f"echo/{version}/{name}": v for name, v in means.items()}
        return out

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take it from a checkpoint."""
        known = json.loads(bytes(tensors["nodes"].tolist()))
        self._versions = {int(i): v for i, v in known["versions"].items()}
        self._owed = {int(i): v for i, v in known["owed"].items()}
        self._renewed = set(known["renewed"])
        self._echoes = {}
        for name, value in tensors.items():
            if name.startswith("echo/"):
                _, version, channel = name.split("/", 2)
                self._echoes.setdefault(version, {})[channel] = value.to(self._start.device)


def _version(t: int) -> str:
    """Return a new name for what round t makes of a memory."""
    return f"{t}-{secrets.token_hex(4)}"
