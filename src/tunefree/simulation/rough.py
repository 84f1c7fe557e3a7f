"""The simulation with clients that fail (`faults`) or lie (`attacks`).

Those who answer in time work together, as they would without the others. Those who are lost or
late work for themselves: what they do is counted, what they send is thrown away or put in the post.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attacks import Adversaries, Attack
from ..core.errors import ArgumentError
from ..core.plan import Plan, Round, What, Who
from ..core.random import key, subset
from ..core.types import Channels, State, Vector
from ..data.batches import BatchPlan
from ..data.federation import Federation
from ..faults import DelayQueue, Faults, LateUpload
from ..faults.settings import AFTER, BEFORE, SLOW, STALE
from ..methods import Method
from ..models.problem import Problem
from ..robust import Robust
from ..rounds import NoClientsError, RoundResult, init_server_state, run_round
from ..server.aggregate import Aggregation, Aggregator, weighted_mean
from ..wire import Ledger
from .desk import WORK_COUNTS, work_costs
from .finite import others
from .ranks import Ranks
from .rehearse import DryRun
from .rough_desk import FaultyContext
from .simulate import EngineOptions, Simulation

COUNTED = ("gradients", "proxes", "unsolved")  # work, whether or not it arrives


class FaultyClients(Simulation):
    """A crew of which some fail or lie; arguments as `Simulation`, and `faults` and `attack`."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        federation: Federation,
        cut: BatchPlan,
        plan: Plan,
        seed: int,
        local: EngineOptions,
        start: Vector | None = None,
        ranks: Ranks | None = None,
        *,
        faults: Faults | None,
        attack: Attack | None,
    ) -> None:
        self._seed, self._crowd = seed, None
        self._faults, self._failing = faults or Faults(), faults is not None
        if attack is not None:
            attack.check(method, federation)
            self._crowd = Adversaries(attack, plan.clients, seed)
            federation = self._crowd.poisoned(federation)
        super().__init__(method, problem, federation, cut, plan, seed, local, start, ranks)
        if self.ranks.size > 1:
            raise ArgumentError("fit(faults=..., attack=...) takes one process; use no torchrun.")
        if self._faults.stale:
            _check_stale(method, plan, problem.start, local.aggregate)
        self.desk = FaultyContext(method, self.desk, self._faults, self._crowd, seed)
        self._post = DelayQueue(method.channels())
        self._posted: list[LateUpload] = []  # of a round that may not count
        self._round = -1  # the last one whose work is done

    def sample_cohort(self, t: int) -> Tensor:
        """Return who takes part in round t: drawn from those who are there and not busy."""
        n, size = self._plan.clients, self._plan.cohort
        there = self._faults.there(t, n, self._seed).clone()
        there[self._post.busy(t)] = False
        free = there.nonzero().flatten()
        if len(free) == n:
            ids = super().sample_cohort(t)
        else:
            draw = subset(key(self._seed, "cohort", t), len(free), min(size, len(free)))
            ids = free[draw]
        late = ids[self._fates(t, ids) == STALE]
        self._post.engage(late, t, t + self._faults.delays(self._seed, t, late))
        return ids

    def _fates(self, t: int, ids: Tensor) -> Tensor:
        return self._faults.fates(self._seed, t, ids)

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Let the cohort work as it can, and return the means of what arrives in this round."""
        if t.preparing:
            return super().train(self._ordered(ids), down, t, ledger)
        self._round = t.index
        fates, arriving = self._fates(t.index, ids), self._post.due(t.index)
        spent = [self._aside(ids[fates == AFTER], down, t)]
        self._posted, late = [], ids[fates == STALE]
        until = t.index + self._faults.delays(self._seed, t.index, late)
        for k, due in enumerate(until.tolist()):
            spent.append(self._aside(late[k : k + 1], down, t, due))
        prompt = self._ordered(ids[fates >= SLOW])
        counts = {
            "lost": int((fates == BEFORE).sum() + (fates == AFTER).sum()),
            "slow": int((fates == SLOW).sum()),
            "late": len(late),
            "stale": len(arriving),
        }
        extra = {n: sum(row.get(n, 0) for row in spent) for n in COUNTED}
        if not len(prompt) and not arriving:
            row = work_costs(self.method, dict.fromkeys(WORK_COUNTS, 0.0), 0, t) | extra
            raise NoClientsError(_nonzero(row) | {"answered": 0, **counts})
        found = self._arrived(prompt, arriving, down, t, ledger)
        row = dict(found.measured)
        for name, more in extra.items():
            if more:
                row[name] = row.get(name, 0) + more
        answered = len(prompt) + len(arriving) - int(row.get("refused", 0))
        row |= {"answered": answered, **counts} if self._failing else {}
        if self._crowd is not None:
            row["hostile"] = self._crowd.count(prompt)
        return replace(found, measured=row)

    def _ordered(self, ids: Tensor) -> Tensor:
        return ids if self._crowd is None else self._crowd.order(ids)

    def _arrived(
        self, prompt: Tensor, letters: list[LateUpload], down: Channels, t: Round, ledger: Ledger
    ) -> RoundResult:
        """Return the means over those who answer in time and what arrives late."""
        clients = torch.tensor([a.client for a in letters], dtype=torch.int64)
        weight = self.weight_of(clients)
        usual = self._aggregate
        joined = partial(self._joined, usual, letters, weight)
        with self._aggregating(joined if letters else usual):
            late = not len(prompt)
            found = self._only_late(t) if late else super().train(prompt, down, t, ledger)
        for letter in letters:
            ledger.add(letter.bill)
        self._pending += [(torch.tensor([a.client]), a.own) for a in letters]
        own = self.weight_of(prompt) if found.fraction is None else found.fraction
        return replace(found, fraction=own + weight)

    def _joined(
        self,
        inner: Aggregation,
        letters: list[LateUpload],
        more: float,
        weight: float,
        round: int,
        what: str,
    ) -> Aggregator:
        """Make an aggregator in which late uploads are already."""
        made = inner(weight + more, round, what)
        for letter in letters:
            p = self._shares[[letter.client]]
            made.add(p, letter.rows if what == "train" else letter.measured)
        return made

    @contextmanager
    def _aggregating(self, by: Aggregation) -> Iterator[None]:
        before, self._aggregate = self._aggregate, by
        try:
            yield
        finally:
            self._aggregate = before

    def _only_late(self, t: Round) -> RoundResult:
        means, found = (self._aggregate(0.0, t.index, w).result() for w in ("train", "measured"))
        row = {"lr": float(found["lr"])} | work_costs(
            self.method, dict.fromkeys(WORK_COUNTS, 0.0), 0, t
        )
        return RoundResult(means, float(found["loss"]), row)

    def _aside(
        self, ids: Tensor, down: Channels, t: Round, due: int | None = None
    ) -> dict[str, float]:
        """Let clients work whose answer is lost, or late by name; return what it took."""
        if not len(ids):
            return {}
        bill = Ledger()
        with self._aggregating(weighted_mean):
            found = super().train(self._ordered(ids), down, t, bill)
        pending, self._pending = self._pending, []
        sound = "refused" not in found.measured and found.loss == found.loss
        if due is not None and sound:
            (own,) = (own for _, own in pending)
            rows = {name: v[None] for name, v in found.mean.items()}
            said = {"loss": found.loss, "lr": found.measured["lr"]}
            x = down["x"]
            measured = {name: x.new_tensor([v]) for name, v in said.items()}
            self._posted.append(LateUpload(int(ids[0]), due, rows, measured, own, bill))
        return found.measured

    def _trained(self, ids: Tensor, *rest: Any) -> tuple[RoundResult, Tensor]:
        if self._crowd is not None:
            self._crowd.gather(ids)
        return super()._trained(ids, *rest)

    def _pack(
        self, sent: Channels, own: State, ids: Tensor, t: Round, ledger: Ledger
    ) -> tuple[Channels, Channels, State]:
        if self._crowd is None:
            return super()._pack(sent, own, ids, t, ledger)
        spoilt = self._crowd.spoil(ids, sent, t.index, "train")
        meant, arrived, kept = super()._pack(spoilt, own, ids, t, ledger)
        return meant, self._crowd.lie(ids, arrived), kept

    def query(
        self,
        ids: Tensor,
        t: int,
        what: What,
        at: list[Vector],
        who: Who,
        sent: Channels | None,
        ledger: Ledger,
    ) -> list[Tensor]:
        """Return the mean of `what` over those who answer; everyone asked is sent the points."""
        if who == "held":
            return super().query(ids, t, what, at, who, sent, ledger)
        asked = ids if who == "cohort" else torch.arange(self._plan.clients)
        if self._refused[0] == t:
            asked = asked[others(asked, self._refused[1])]
        points = {f"point {j}": x for j, x in enumerate(at)} if sent is None else sent
        ledger.send_down(points, len(asked), all=who == "all")
        fates = self._fates(t, asked)
        there = self._ordered(asked[fates >= SLOW if self._round == t else fates != BEFORE])
        if not len(there):
            lost = {"lost": len(asked), "slow": 0, "late": 0, "stale": 0}
            raise NoClientsError({"gradients": 0, "answered": 0, **lost})
        if self._crowd is not None:
            self._crowd.gather(there)
        scratch = Ledger()
        found = super().query(there, t, what, at, "cohort", sent, scratch)
        ledger.add(scratch)
        return found

    def announce(self, ids: Tensor | None) -> None:
        """Nothing is read ahead: who works is not who was drawn."""

    def commit(self) -> None:
        """Keep what was learned by those whose answer arrived, and take letters to the post."""
        super().commit()
        self._post.settle(self._round, self._posted)
        self._posted = []

    def state(self) -> dict[str, Tensor]:
        """Return the clients' memory and what is on its way, for a checkpoint."""
        return super().state() | self._post.tensors()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take it from a checkpoint."""
        super().load_state(tensors)
        self._post.restore(tensors, self.problem.device)


class _AskedError(Exception):
    """Somebody was asked."""


class _Quiet(DryRun):
    """A rehearsal of rounds in which nobody may be asked."""

    def query(self, *given: Any) -> list[Tensor]:
        raise _AskedError


def _check_stale(method: Method, plan: Plan, x: Vector, aggregate: Aggregation) -> None:
    """Refuse late answers where means of a round are compared, or counted by a fixed number."""
    ids = torch.arange(plan.cohort)
    try:
        run_round(
            method, plan, init_server_state(method, x, plan), _Quiet(method, plan, x), ids, ids
        )
    except _AskedError:
        raise ArgumentError(
            f"Cannot use Faults(stale=...) with {method.name}. This is because it asks its cohort "
            "in the middle of a round and compares the answers with what the cohort sent."
        ) from None
    if aggregate is not weighted_mean and not isinstance(aggregate, Robust):
        raise ArgumentError(
            f"Cannot use Faults(stale=...) with aggregate={aggregate!r}. This is because it knows "
            "how many clients a round has; use before or after."
        )


def _nonzero(row: dict[str, float]) -> dict[str, float]:
    return {n: v for n, v in row.items() if v or n == "gradients"}
