"""Where clients work that are slow, or answer questions with lies."""

from dataclasses import replace

from torch import Tensor

from ..attacks import Adversaries
from ..clients.loop import LocalBatches
from ..core.plan import Round, What
from ..core.types import Rows
from ..faults import Faults
from ..faults.settings import SLOW
from ..methods import Method
from ..rounds import ClientTask
from .desk import ClientContext


class FaultyContext(ClientContext):
    """A desk at which some work slowly, and some answer questions with lies.

    Args:
        method: What they train by.
        desk: The desk that it stands for.
        faults: Who is slow.
        crowd: Who lies, where some do.
        seed: The run's.
    """

    def __init__(
        self,
        method: Method,
        desk: ClientContext,
        faults: Faults,
        crowd: Adversaries | None,
        seed: int,
    ) -> None:
        super().__init__(method, desk.feed, desk.losses)
        self._faults, self._crowd, self._seed = faults, crowd, seed
        self._at: Tensor | None = None  # where clients are being asked

    def task(self, ids: Tensor, t: Round) -> ClientTask:
        """Return what these clients do in a round: slow ones take fewer steps."""
        task = super().task(ids, t)
        if t.preparing or not bool((self._faults.fates(self._seed, t.index, ids) == SLOW).any()):
            return task

        def lesson(turn: int, steps: int | None) -> LocalBatches:
            full = task.lesson(turn, steps)
            taken = self._faults.steps(self._seed, t.index, ids, full.steps.cpu())
            span = (int(taken.min()), int(taken.max()))
            return replace(full, steps=taken.to(full.steps.device), span=span)

        return replace(task, lesson=lesson)

    def probe(self, x: Tensor, t: int, ids: Tensor | None, what: What) -> Rows:
        """Return `what` at x for each client, as it says."""
        rows = super().probe(x, t, ids, what)
        if ids is None or self._crowd is None:
            return rows
        if x is not self._at:  # another question
            self._crowd.forget()
            self._at = x
        spoilt = self._crowd.spoil(ids, {what: rows}, t, "probe")
        return self._crowd.lie(ids, spoilt)[what]
