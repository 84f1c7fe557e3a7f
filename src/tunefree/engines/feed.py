"""What clients are fed: their batches of a turn, and blocks of all of their data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..clients.loop import Lesson
from ..data.batches import Cut, draw, width
from ..data.federation import Federation
from ..models.augment import CropFlip
from ..models.losses import Batch, Order
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

    def lesson(
        self, ids: Tensor, t: int, turn: int, steps: int | None, ordered: bool = False
    ) -> Lesson:
        """Return the clients' batches of a turn, of so many steps (None: as cut).

        Args:
            ids: The clients.
            t: The round.
            turn: Which turn of it.
            steps: Local steps, or None.
            ordered: Leave the gathering to the engine.
        """
        sizes, starts = self.fed.sizes[ids], self.fed.starts[ids]
        cut = self.cut if steps is None else Cut(batch=self.cut.batch, steps=steps)
        draws = draw(self.seed, t, ids, sizes, starts, cut, width=self.width, turn=turn)
        long = draws.index.shape[1]
        index, mask = draws.index.transpose(0, 1), draws.mask.transpose(0, 1)  # (K, m, B)
        keys = ids.expand(long, -1)
        if self.problem.random or self.augment is not None:
            spots = turn << 32 | torch.arange(long)
            keys = key(self.seed, "dropout", t, ids, spots[:, None])  # (K, m)
        fetch: Callable[[int], Batch | Order]
        if ordered:  # all in one tensor, which goes to the device once a turn
            codes = self._here(_encoded(index, mask, keys))
            fetch = lambda k: Order(codes[k], self.gather)  # noqa: E731
        else:
            index, mask, keys = (self._here(v) for v in (index, mask, keys))
            fetch = lambda k: self._batch(index[k], mask[k], keys[k])  # noqa: E731
        span = (int(draws.steps.min()), int(draws.steps.max()))
        return Lesson(fetch, self._here(draws.steps), self._here(draws.share), span)

    @cached_property
    def gather(self) -> Callable[[Tensor], Batch]:
        """Returns the batch of a code (m, B + 1)."""

        def gather(code: Tensor) -> Batch:
            return self._batch(*_decoded(code))

        return gather

    def _here(self, t: Tensor) -> Tensor:
        """Return a tensor of the host on the problem's device, without waiting for it."""
        t = t.contiguous()
        if self.problem.device.type == "cuda":
            t = t.pin_memory()
        return t.to(self.problem.device, non_blocking=True)

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


def _encoded(index: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
    """Return it all as whole numbers (..., B + 1): masked rows inverted, the key at the end."""
    return torch.cat([torch.where(mask, index, ~index), keys[..., None]], dim=-1)


def _decoded(code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, keys = code[..., :-1], code[..., -1]
    mask = rows >= 0
    return torch.where(mask, rows, ~rows), mask, keys
