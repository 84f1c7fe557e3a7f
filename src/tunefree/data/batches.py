"""The rows of each local minibatch, as a function of seed, round and client id.

Every client has an endless stream of shuffled passes over its own rows. In round t, pass e of
client i sorts its rows j = 0 .. n_i - 1 by the random numbers
`bits(key(seed, "batch", t, i), e n_i + j)` without their last ceil(log2 n_i) bits; j is stored in
these bits, which breaks ties and makes each pass one sort of int64. From that stream

    steps   batch k is stream[k b : (k + 1) b] with b = min(B, n_i): always full, it may continue
            from one pass into the next; with b = n_i it is all rows in their own order
    epochs  each pass is split into ceil(n_i / B) batches, the last one smaller, as by a DataLoader
    no B    every batch is all rows in their own order; an epoch is then one step

A draw depends on the client's id and not on its position in the call, so it does not depend on
chunking or order. There is no loop over clients; memory is proportional to the clients' rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_int
from ..core.fields import Checked, PositiveInt
from ..core.random import bits, key
from ..core.types import to_device

CPU = torch.device("cpu")
_LAST = torch.iinfo(torch.int64).max  # sorts after all rows


@dataclass(frozen=True, kw_only=True)
class BatchPlan(Checked):
    """How a client's local work is divided into batches.

    Args:
        batch: Samples in a batch, B; None takes all of a client's samples.
        steps: Local steps K, the same for every client; or
        epochs: passes over the client's own samples. Exactly one of the two is given.
    """

    batch: PositiveInt | None = None
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ArgumentError(
                "BatchPlan(steps=..., epochs=...) needs exactly one of the two, got "
                f"steps={self.steps!r} and epochs={self.epochs!r}."
            )
        super().__post_init__()


@dataclass(frozen=True)
class BatchIndices:
    """The batches of m clients in one round; K is the largest number of steps, B the largest batch.

    `index` and `mask` are on the device that was asked for, the others on the CPU.

    Attributes:
        index: Rows of the federation, (m, K, B) int64; where masked, the client's first row.
        mask: Which entries of `index` are samples, (m, K, B) bool.
        steps: Local steps of each client, (m,) int64.
        share: Batch size over n_i, (m, K) float64; 0 after a client's last step.
    """

    index: Tensor
    mask: Tensor
    steps: Tensor
    share: Tensor


def plan_steps(sizes: Tensor, plan: BatchPlan) -> Tensor:
    """Return the number of local steps of clients with these sizes, (m,).

    >>> plan_steps(torch.tensor([5, 10]), BatchPlan(batch=4, epochs=2))
    tensor([4, 6])
    """
    if plan.steps is not None:
        return torch.full_like(sizes, plan.steps)
    assert plan.epochs is not None
    return plan.epochs * (torch.ones_like(sizes) if plan.batch is None else -(-sizes // plan.batch))


def mean_steps(sizes: Tensor, plan: BatchPlan) -> float:
    """Return the mean number of local steps over clients with these sizes, the papers' K."""
    return float(plan_steps(sizes, plan).to(torch.float64).mean())


def batch_width(sizes: Tensor, plan: BatchPlan) -> int:
    """Return the largest batch of clients with these sizes; it keeps shapes fixed over rounds."""
    largest = int(sizes.max())
    return largest if plan.batch is None else min(plan.batch, largest)


def draw_batches(
    seed: int,
    round: int,
    ids: Tensor,
    sizes: Tensor,
    starts: Tensor,
    plan: BatchPlan,
    *,
    width: int | None = None,
    phase: int = 0,
    device: torch.device = CPU,
) -> BatchIndices:
    """Return the batches of clients `ids` (m,) with `sizes` samples from rows `starts` on.

    They are padded to `width` entries, by default to the largest of these clients. `phase` is the
    local phase, for methods with several phases per round. On a GPU (`device`) the rows are drawn
    without waiting for it; they are the same on any device.
    """
    batch = sizes if plan.batch is None else sizes.clamp(max=plan.batch)  # b_i
    steps = plan_steps(sizes, plan)
    wide = int(batch.max()) if width is None else width
    check_int("draw_batches", "width", wide, int(batch.max()))
    long = int(steps.max())
    k = torch.arange(long)[None, :]
    if plan.steps is not None or plan.batch is None:
        is_full = batch == sizes  # all rows in their own order, not shuffled
        first = k * batch[:, None]
        amount = batch[:, None].expand(-1, long)
        passes = torch.where(is_full, 0, -(-steps * batch // sizes))
    else:
        per_pass = -(-sizes // plan.batch)[:, None]
        begin = k % per_pass * plan.batch
        first = k // per_pass * sizes[:, None] + begin
        amount = (sizes[:, None] - begin).clamp(max=plan.batch)
        is_full = torch.zeros_like(sizes, dtype=torch.bool)
        passes = torch.full_like(sizes, plan.epochs or 0)
    amount = amount * (k < steps[:, None])  # (m, K)
    keys = key(seed, "batch", round, ids, *([phase] if phase else []))
    stream, offset = _streams(keys, sizes, passes, device)
    q = torch.arange(wide, device=device)
    mask = q < to_device(amount, device)[:, :, None]  # (m, K, B)
    full, some = int(amount.min()) >= wide, bool(is_full.any())
    place = to_device(offset[:, None] + first, device)[:, :, None] + q
    whole = to_device(is_full, device)[:, None, None] if some else None
    if not full:
        place *= mask
    if whole is not None:
        place.masked_fill_(whole, 0)
    index = stream.index_select(0, place.flatten()).view(place.shape)  # row within the client
    if whole is not None:
        index = torch.where(whole, q, index)
    if not full:
        index *= mask
    index += to_device(starts, device)[:, None, None]
    return BatchIndices(index, mask, steps, amount.double() / sizes[:, None])


def _streams(
    keys: Tensor, sizes: Tensor, passes: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return all clients' shuffled passes concatenated, on the device, and where each one begins.

    Passes of similar length are rows of one matrix and sorted together; on a CPU by numpy, which
    sorts several times as fast as PyTorch, and on one thread.
    """
    counts = passes * sizes
    offset = counts.cumsum(0) - counts
    length = int(counts.sum()) + 1  # the last entry is unused
    stream = torch.zeros(length, dtype=torch.int64, device=device)
    who = torch.repeat_interleave(passes)  # the client of each pass
    long = sizes[who]
    past = (torch.arange(len(who)) - (passes.cumsum(0) - passes)[who]) * long  # e n_i
    places = torch.frexp((long - 1).double()).exponent  # ceil(log2 n_i)
    for low in torch.unique(places).tolist():
        some = (places == low).nonzero().flatten()
        most, is_later = int(long[some].max()), bool(past[some].any())
        given = (keys[who], long, offset[who] + past, past)
        each, n, begin, before = (to_device(v[some, None], device) for v in given)
        j = torch.arange(most, device=device)
        rows = bits(each, before + j if is_later else j)
        rows.bitwise_and_(-1 << low).bitwise_or_(j)
        beyond = j >= n
        rows.masked_fill_(beyond, _LAST)
        if device.type == "cpu":
            rows.numpy().sort(axis=1)
        else:
            rows = rows.sort(dim=1).values
        rows.bitwise_and_((1 << low) - 1)
        place = (begin + j).masked_fill_(beyond, length - 1)
        stream.scatter_(0, place.flatten(), rows.flatten())
    return stream, offset
