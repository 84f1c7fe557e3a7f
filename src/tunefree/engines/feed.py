"""What clients are fed: their batches of a turn, and blocks of all of their data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..clients.loop import Lesson
from ..data.batches import Cut, draw, width
from ..data.federation import Federation
from ..models.augment import CropFlip
from ..models.losses import Batch
from ..models.problem import Problem
from ..random import bits, key
from ..types import Pair, map_inputs


@dataclass(frozen=True)
class Feed:
    """The federation's rows on the problem's device, gathered by index in one static shape.

    Args:
        problem: Where the rows go.
        fed: Whose rows they are.
        cut: Batch size, and steps or epochs.
        seed: The run's.
        augment: What is done to a training batch of images, or None.
    """

    problem: Problem
    fed: Federation
    cut: Cut
    seed: int
    augment: CropFlip | None

    @cached_property
    def width(self) -> int:
        """Rows of a batch, padding included."""
        return width(self.fed.sizes, self.cut)

    def passes(self, ids: Tensor | None = None) -> Tensor:
        """Return the batches in a pass over each client's data (of everyone without ids)."""
        sizes = self.fed.sizes if ids is None else self.fed.sizes[ids]
        return -(-sizes // self.width)

    def probe(self, ids: Tensor) -> Batch:
        """Return a batch in the shape that training uses."""
        sizes, starts = self.fed.sizes[ids], self.fed.starts[ids]
        draws = draw(self.seed, 0, ids, sizes, starts, self.cut, width=self.width)
        return self._batch(draws.index[:, 0], draws.mask[:, 0], key(self.seed, "dropout", 0, ids))

    def lesson(self, ids: Tensor, t: int, turn: int, steps: int | None) -> Lesson:
        """Return the clients' batches of a turn, of so many steps (None: as cut)."""
        sizes, starts = self.fed.sizes[ids], self.fed.starts[ids]
        cut = self.cut if steps is None else Cut(batch=self.cut.batch, steps=steps)
        draws = draw(self.seed, t, ids, sizes, starts, cut, width=self.width, turn=turn)
        device = self.problem.device
        random = self.problem.random or self.augment is not None

        def fetch(k: int) -> Batch:
            spot = turn << 32 | k
            keys = key(self.seed, "dropout", t, ids, spot) if random else ids
            return self._batch(draws.index[:, k], draws.mask[:, k], keys)

        return Lesson(fetch, draws.steps.to(device), draws.share.to(device))

    def blocks(self, ids: Tensor | None, t: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield all data of these clients in the shape of training, and each block's weight (m,).

        Without ids, the server's own held sample, as one row.
        """
        if ids is None:
            assert self.fed.held is not None
            source, sizes = self.fed.held, torch.tensor([len(self.fed.held[1])])
            starts, keys = torch.zeros_like(sizes), key(self.seed, "held", t)[None]
        else:
            source, sizes = (self.fed.x, self.fed.y), self.fed.sizes[ids]
            starts, keys = self.fed.starts[ids], key(self.seed, "full", t, ids)
        for low in range(0, int(sizes.max()), self.width):
            spot = low + torch.arange(self.width)
            mask = spot < sizes[:, None]  # (m, B)
            weight = (mask.sum(1).double() / sizes).to(self.problem.device, self.problem.dtype)
            mask[:, 0] = True  # a client that is through counts with weight 0
            index = starts[:, None] + torch.minimum(spot, sizes[:, None] - 1)
            yield weight, self._gathered(source, index, mask, keys)

    def _batch(self, index: Tensor, mask: Tensor, keys: Tensor) -> Batch:
        """Return the clients' training batches, augmented."""
        batch = self._gathered((self.fed.x, self.fed.y), index, mask, keys)
        if self.augment is None:
            return batch
        spots = torch.arange(index.shape[1], device=batch.key.device)
        sample_keys = bits(batch.key[:, None], spots)  # (m, B)
        augment = self.augment
        inputs = map_inputs(lambda t: augment(t, sample_keys), batch.inputs)
        return replace(batch, inputs=inputs)

    def _gathered(self, source: Pair, index: Tensor, mask: Tensor, keys: Tensor) -> Batch:
        device = self.problem.device
        index = index.to(device)
        inputs = map_inputs(lambda t: _rows(t, index), source[0])
        return Batch(inputs, _rows(source[1], index), mask.to(device), keys.to(device))


def _rows(t: Tensor, index: Tensor) -> Tensor:
    return t.index_select(0, index.flatten()).reshape(*index.shape, *t.shape[1:])
