"""The protocol between a training run and its clients, wherever they are."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.plan import Round, What, Who
from ..core.types import Channels, Vector
from ..wire import Ledger


@dataclass(frozen=True)
class RoundResult:
    """What a cohort returned in a round."""

    mean: Channels  # weighted means of the uploaded channels
    loss: float  # mean training loss; a measurement, not traffic
    measured: dict[str, Any]  # further measurements for the history
    fraction: float | None = None  # weight of the clients that answered; None if all did


@dataclass(frozen=True)
class QueryRequest:
    """A query within a round, as `core.plan.Query` makes it.

    "moments" are a client's number of samples and the sums of the columns of x - point and of their
    squares, in one vector; all clients count alike in their mean.
    """

    cohort: Tensor  # ids
    t: int  # the round
    what: What
    at: list[Vector]
    who: Who = "cohort"
    sent: Channels | None = None

    def ids(self, clients: int) -> Tensor:
        """Return the ids of the queried clients, out of this number of clients."""
        return self.cohort if self.who == "cohort" else torch.arange(clients)

    def count_down(self, receivers: int, ledger: Ledger) -> None:
        """Count the bytes that make the points known to this number of clients."""
        points = {f"point {j}": x for j, x in enumerate(self.at)}
        sent = points if self.sent is None else self.sent
        ledger.send_down(sent, receivers, all=self.who == "all")

    def zero_answer(self, x: Vector) -> Tensor:
        """Return an answer of zeros at x."""
        if self.what == "moments":
            return x.new_zeros(2 * len(x) + 1)
        return torch.zeros_like(x) if self.what == "grad" else x.new_zeros(())


class NoClientsError(Exception):
    """No client of a cohort answered; the round changes nothing but its number."""

    def __init__(self, measured: dict[str, float]) -> None:
        super().__init__("No client answered.")
        self.measured = measured


class ClientPool(Protocol):
    """All clients of a run: simulated in this process, simulated with faults, or real nodes.

    A round calls `query` and `train`; the trainer calls `commit` once the round counts. Until then
    a round leaves no trace in the clients' memory. Clients without memory inherit the methods that
    have a body.
    """

    def sample_cohort(self, t: int) -> Tensor:
        """Return the ids of the clients that take part in round t."""

    def announce(self, ids: Tensor | None) -> None:
        """Announce the next round's cohort so that its batches can be prefetched.

        Called before every round; `None` before the last one.
        """
        return

    def weight_of(self, ids: Tensor) -> float:
        """Return the share of these clients in the weight of the whole population."""

    def query(self, request: QueryRequest, ledger: Ledger) -> list[Tensor]:
        """Return the mean of `request.what` at each point of `request.at`."""

    def train(self, ids: Tensor, down: Channels, t: Round, ledger: Ledger) -> RoundResult:
        """Train a cohort and return the means of its uploads.

        Raises:
            NoClientsError: If no client answers.
        """

    def commit(self) -> None:
        """Store the memory that the last `train` left in the clients."""
        return

    def state(self) -> dict[str, Tensor]:
        """Return the clients' memory for a checkpoint."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the clients' memory from a checkpoint."""
        return

    def describe(self) -> dict[str, Any]:
        """Return what was chosen (engine, chunk size, ...) for `settings.json`."""
        return {}

    def summarize_refused(self) -> str | None:
        """Return a sentence about clients that were left out of several rounds, if there are."""
        return None

    def measure(self, x: Vector) -> dict[str, float]:
        """Return how much the clients' gradients differ at x; empty if that cannot be known."""
        return {}

    def gradient(self, x: Vector) -> Vector | None:
        """Return the gradient of the global loss at x, or None if it cannot be known."""
        return None
