"""The clients' data on the device: batches of a local phase, and blocks of all samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..clients.loop import LocalBatches
from ..core.random import bits, key
from ..core.threads import one_thread
from ..core.types import Samples, map_inputs, to_device
from ..data.batches import BatchPlan, batch_width, draw_batches
from ..data.federation import Federation
from ..models.augment import CropFlip
from ..models.losses import Batch, DeferredBatch
from ..models.problem import Problem

BLOCK = 16 << 20  # bytes that a client's block may keep for a backward pass on a GPU


@dataclass(frozen=True)
class BatchSource:
    """The federation's rows on the problem's device, gathered by index in one static shape."""

    problem: Problem
    fed: Federation
    cut: BatchPlan
    seed: int
    augment: CropFlip | None
    padded: int | None = None  # rows of a batch of the population, if this is one client of it

    @cached_property
    def width(self) -> int:
        """Rows of a batch, padding included."""
        return self.padded or batch_width(self.fed.sizes, self.cut)

    @cached_property
    def activation_bytes(self) -> int:
        """Bytes that one client's forward pass keeps for its backward pass."""
        return self.problem.activation_bytes(*self.probe(torch.arange(1)).row(0))

    @cached_property
    def block(self) -> int:
        """Rows of a block: several small batches on a GPU, since each block is a launch."""
        if self.problem.device.type == "cpu":
            return self.width
        most = -(-int(self.fed.sizes.max()) // self.width)  # batches of the largest client
        return self.width * min(max(BLOCK // max(self.activation_bytes, 1), 1), most)

    def passes(self, ids: Tensor) -> Tensor:
        """Return the number of batches in a pass over each client's data."""
        return -(-self.fed.sizes[ids] // self.width)

    def probe(self, ids: Tensor) -> Batch:
        """Return a batch of these clients in the shape that training uses."""
        return self._batch(*self._first(ids))

    def order(self, ids: Tensor) -> DeferredBatch:
        """Return the batch of `probe` in the form for engines that gather rows themselves."""
        return DeferredBatch(self._to_device(_encode(*self._first(ids))), self.gather)

    def _first(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes, starts = self.fed.sizes[ids], self.fed.starts[ids]
        draws = draw_batches(self.seed, 0, ids, sizes, starts, self.cut, width=self.width)
        mask = draws.mask[:, 0].contiguous()  # as in training
        return draws.index[:, 0], mask, key(self.seed, "dropout", 0, ids)

    def local_batches(
        self, ids: Tensor, t: int, phase: int, steps: int | None, deferred: bool = False
    ) -> LocalBatches:
        """Return the clients' batches of a local phase of round t; steps=None is the plan's.

        If they are `deferred`, gathering the rows is left to the engine.
        """
        device = self.problem.device
        with one_thread(device.type == "cuda"):  # small work beside the GPU's
            sizes, starts = self.fed.sizes[ids], self.fed.starts[ids]
            cut = self.cut if steps is None else BatchPlan(batch=self.cut.batch, steps=steps)
            draws = draw_batches(
                self.seed, t, ids, sizes, starts, cut, width=self.width, phase=phase, device=device
            )
            long = draws.index.shape[1]
            index, mask = draws.index.transpose(0, 1), draws.mask.transpose(0, 1)  # (K, m, B)
            mask = mask.contiguous()  # so that a batch has the same strides for every K
            keys = ids.expand(long, -1)
            if self.problem.has_dropout or self.augment is not None:
                spots = phase << 32 | torch.arange(long)
                keys = key(self.seed, "dropout", t, ids, spots[:, None])  # (K, m)
            keys = self._to_device(keys)
            fetch: Callable[[int], Batch | DeferredBatch]
            if deferred:  # one tensor for the phase
                codes = _encode(index, mask, keys)
                fetch = lambda k: DeferredBatch(codes[k], self.gather)  # noqa: E731
            else:
                fetch = lambda k: self._batch(index[k], mask[k], keys[k])  # noqa: E731
            span = (int(draws.steps.min()), int(draws.steps.max()))
            return LocalBatches(
                fetch, self._to_device(draws.steps), self._to_device(draws.share), span
            )

    @cached_property
    def gather(self) -> Callable[[Tensor], Batch]:
        """Function that returns the batch of a code (m, B + 1)."""

        def gather(code: Tensor) -> Batch:
            return self._batch(*_decode(code))

        return gather

    def _to_device(self, t: Tensor) -> Tensor:
        return to_device(t, self.problem.device)

    def blocks(self, ids: Tensor | None, t: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield all data of these clients in blocks, with the clients' weights of each block (m,).

        Without ids, it is the server's held sample, as one row. Dropout differs between blocks, and
        is the same for every point of a round.
        """
        if ids is None:
            assert self.fed.held is not None
            source, sizes = self.fed.held, torch.tensor([len(self.fed.held[1])])
            starts, first = torch.zeros_like(sizes), key(self.seed, "held", t)[None]
        else:
            source, sizes = (self.fed.x, self.fed.y), self.fed.sizes[ids]
            starts, first = self.fed.starts[ids], key(self.seed, "full", t, ids)
        for low in range(0, int(sizes.max()), self.block):
            spot = low + torch.arange(self.block)
            mask = spot < sizes[:, None]  # (m, B)
            weight = self._to_device((mask.sum(1).double() / sizes).to(self.problem.dtype))
            mask[:, 0] = True  # a client without further samples counts with weight 0
            index = starts[:, None] + torch.minimum(spot, sizes[:, None] - 1)
            keys = bits(first, torch.tensor(low)) if low else first
            yield weight, self._gather_rows(source, index, mask, keys)

    def _batch(self, index: Tensor, mask: Tensor, keys: Tensor) -> Batch:
        """Return the clients' training batches, augmented."""
        batch = self._gather_rows((self.fed.x, self.fed.y), index, mask, keys)
        if self.augment is None:
            return batch
        spots = torch.arange(index.shape[1], device=batch.key.device)
        sample_keys = bits(batch.key[:, None], spots)  # (m, B)
        augment = self.augment
        change = lambda t: t if t.ndim == 2 else augment(t, sample_keys)  # noqa: E731  (weights)
        inputs = map_inputs(change, batch.inputs)
        return replace(batch, inputs=inputs)

    def _gather_rows(self, source: Samples, index: Tensor, mask: Tensor, keys: Tensor) -> Batch:
        index, mask, keys = (self._to_device(t) for t in (index, mask, keys))
        inputs = map_inputs(lambda t: _rows(t, index), source[0])
        return Batch(inputs, _rows(source[1], index), mask, keys)


class BatchPrefetcher:
    """Local batches on request; those of the next round's first phase can be drawn early.

    The host asks for them while the GPU still works on the current round.
    """

    def __init__(self, batches: BatchSource, deferred: bool) -> None:
        self._batches, self._deferred = batches, deferred
        self._steps: int | None = None  # of the last request; most methods repeat it
        self._early: tuple[int, int | None, Tensor, LocalBatches] | None = None

    def get(self, ids: Tensor, t: int, phase: int, steps: int | None) -> LocalBatches:
        """Return the clients' batches of a local phase, as `BatchSource.local_batches` does."""
        if phase == 0:
            self._steps, early, self._early = steps, self._early, None
            if early is not None and early[:2] == (t, steps) and torch.equal(early[2], ids):
                return early[3]
        return self._batches.local_batches(ids, t, phase, steps, self._deferred)

    def prefetch(self, ids: Tensor, t: int) -> None:
        """Draw these clients' batches of round t before they are requested."""
        found = self._batches.local_batches(ids, t, 0, self._steps, self._deferred)
        self._early = (t, self._steps, ids, found)


def _rows(t: Tensor, index: Tensor) -> Tensor:
    return t.index_select(0, index.flatten()).reshape(*index.shape, *t.shape[1:])


def _encode(index: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
    """Return a batch as one int tensor (..., B + 1): masked indices inverted, the key last."""
    return torch.cat([torch.where(mask, index, ~index), keys[..., None]], dim=-1)


def _decode(code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, keys = code[..., :-1], code[..., -1]
    mask = rows >= 0
    return torch.where(mask, rows, ~rows), mask, keys
