"""A crew that does nothing, to learn what a round would cost before anyone trains."""

import torch
from torch import Tensor

from ..clients.rule import Plan, Round, What, Who
from ..methods import Method
from ..models.losses import Batch
from ..rounds import Answer, Task, answer, first_memory, pack
from ..types import Channels, Rows, Vector
from ..wire import Ledger


class _Still:
    """Losses of a problem on which nothing moves."""

    name = "none"

    def value(self, y: Rows, batch: Batch) -> Rows:
        return y.new_zeros(y.shape[0])

    def value_and_grad(self, y: Rows, batch: Batch) -> tuple[Rows, Rows]:
        return y.new_zeros(y.shape[0]), torch.zeros_like(y)


class Rehearsal:
    """Answers as a cohort would, with the right channels and no work."""

    def __init__(self, method: Method, plan: Plan, x: Vector) -> None:
        self._method, self._plan = method, plan
        first = first_memory(method, x, plan)
        self.own = {name: v[None] for name, v in first.items()}  # one client's memory

    def fraction(self, ids: Tensor) -> float:
        """Return the cohort's share under uniform weights."""
        return len(ids) / self._plan.clients

    def ask(
        self, ids: Tensor, t: int, what: What, at: list[Vector], who: Who, ledger: Ledger
    ) -> list[Tensor]:
        """Count the exchange and return zeros."""
        whom = len(ids) if who == "cohort" else self._plan.clients
        out = []
        for x in at:
            ledger.send_down({"ask": x}, whom)
            value = torch.zeros_like(x) if what == "grad" else x.new_zeros(())
            ledger.send_up(what, value.numel() * value.element_size() * whom)
            out.append(value)
        return out

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> Answer:
        """Let one client answer, and count it for all."""
        x = down["x"]
        empty = Batch(x[:0], x[:0], x[:0], x[:0])
        task = Task(
            losses=_Still(),
            fetch=lambda k: empty,
            steps=torch.ones(1, dtype=torch.int64, device=x.device),
            share=x.new_ones((1, 1)),
            full_grad=lambda at: torch.zeros_like(at)[None],
        )
        sent, _, _ = answer(self._method, task, down, self.own, t)
        one = Ledger()
        arrived = pack(self._method, sent, one)
        for name, size in one.up.items():
            ledger.send_up(name, size * len(ids))
        return Answer({name: rows[0] for name, rows in arrived.items()}, 0.0, {})

    def commit(self) -> None:
        """Nothing was learned."""
