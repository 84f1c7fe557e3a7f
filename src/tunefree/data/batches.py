"""Which rows a client sees at each local step, as a function of seed, round and client id.

Every client has an endless stream of shuffled passes over its own rows. In round t, pass e of
client i is the order of the draws `bits(key(seed, "batch", t, i), e n_i + j)` over its rows
j = 0 .. n_i - 1, without their last ceil(log2 n_i) bits (ties by j: where those bits were, j fits,
so that the order is that of plain numbers). From that stream

    steps   batch k is stream[k b : (k + 1) b] with b = min(B, n_i): always full, it may run
            from one pass into the next; with b = n_i it is all rows in their own order
    epochs  each pass is cut into ceil(n_i / B) batches, the last one smaller, as a DataLoader does
    no B    every batch is all rows in their own order; an epoch is then one step

A draw depends on the client's id and not on its place in the call, so it is the same in any chunk
and any order. Nothing loops over clients, and memory is about the rows of the clients drawn for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_int
from ..core.random import bits, key

_LAST = torch.iinfo(torch.int64).max  # sorted behind all rows


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How local work is cut into batches.

    Args:
        batch: Samples in a batch, B; None takes all of a client's samples.
        steps: Local steps K, the same for every client; or
        epochs: passes over the client's own samples. Exactly one of the two is given.
    """

    batch: int | None = None
    steps: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ArgumentError(
                "Cut(steps=..., epochs=...) needs exactly one of the two, got "
                f"steps={self.steps!r} and epochs={self.epochs!r}."
            )
        for name in ("batch", "steps", "epochs"):
            if getattr(self, name) is not None:
                check_int("BatchPlan", name, getattr(self, name))


@dataclass(frozen=True)
class BatchIndices:
    """The batches of m clients in one round; K is the most steps of any, B the widest batch.

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


def plan_steps(sizes: Tensor, cut: BatchPlan) -> Tensor:
    """Return the number of local steps of clients with these sizes, (m,).

    >>> plan_steps(torch.tensor([5, 10]), BatchPlan(batch=4, epochs=2))
    tensor([4, 6])
    """
    if cut.steps is not None:
        return torch.full_like(sizes, cut.steps)
    assert cut.epochs is not None
    return cut.epochs * (torch.ones_like(sizes) if cut.batch is None else -(-sizes // cut.batch))


def batch_width(sizes: Tensor, cut: BatchPlan) -> int:
    """Return the widest batch among clients with these sizes, to keep shapes fixed over rounds."""
    largest = int(sizes.max())
    return largest if cut.batch is None else min(cut.batch, largest)


def draw_batches(
    seed: int,
    round: int,
    ids: Tensor,
    sizes: Tensor,
    starts: Tensor,
    cut: BatchPlan,
    *,
    width: int | None = None,
    turn: int = 0,
) -> BatchIndices:
    """Return the batches of clients `ids` in a round.

    Args:
        seed: The run's seed.
        round: Number of the round, t.
        ids: The clients, (m,).
        sizes: Their numbers of samples n_i, (m,).
        starts: Their first rows in the federation, (m,).
        cut: Batch size, and steps or epochs.
        width: Pad batches to this many entries; by default the widest of these clients.
        turn: Which turn of the round, where clients work several before they talk.
    """
    batch = sizes if cut.batch is None else sizes.clamp(max=cut.batch)  # b_i
    steps = plan_steps(sizes, cut)
    wide = _at_least("width", width, int(batch.max()))
    long = int(steps.max())
    k = torch.arange(long)[None, :]
    if cut.steps is not None or cut.batch is None:
        check_int = batch == sizes  # natural order, no shuffling
        first = k * batch[:, None]
        amount = batch[:, None].expand(-1, long)
        passes = torch.where(check_int, 0, -(-steps * batch // sizes))
    else:
        per_pass = -(-sizes // cut.batch)[:, None]
        begin = k % per_pass * cut.batch
        first = k // per_pass * sizes[:, None] + begin
        amount = (sizes[:, None] - begin).clamp(max=cut.batch)
        check_int = torch.zeros_like(sizes, dtype=torch.bool)
        passes = torch.full_like(sizes, cut.epochs or 0)
    amount = amount * (k < steps[:, None])  # (m, K)
    keys = key(seed, "batch", round, ids, *([turn] if turn else []))
    stream, offset = _streams(keys, sizes, passes)
    q = torch.arange(wide)
    mask = q < amount[:, :, None]  # (m, K, B)
    full, some = bool(mask.all()), bool(check_int.any())
    place = (offset[:, None] + first)[:, :, None] + q
    if not full:
        place *= mask
    if some:
        place[check_int] = 0
    index = stream.index_select(0, place.flatten()).view(place.shape)  # row within the client
    if some:
        index[check_int] = q
    if not full:
        index *= mask
    index += starts[:, None, None]
    return BatchIndices(index, mask, steps, amount.double() / sizes[:, None])


def _at_least(name: str, given: int | None, needed: int) -> int:
    if given is not None and given < needed:
        raise ArgumentError(f"draw({name}=...) must be at least {needed} here, got {given!r}.")
    return needed if given is None else given


def _streams(keys: Tensor, sizes: Tensor, passes: Tensor) -> tuple[Tensor, Tensor]:
    """Return all clients' shuffled passes end to end, and where each client's begin.

    Passes of similar length are rows of one matrix, sorted at once: numpy does that several times
    as fast as PyTorch, and on one thread.
    """
    counts = passes * sizes
    offset = counts.cumsum(0) - counts
    stream = torch.zeros(int(counts.sum()) + 1, dtype=torch.int64)  # the last one is nobody's
    who = torch.repeat_interleave(passes)  # whose pass
    long = sizes[who]
    past = (torch.arange(len(who)) - (passes.cumsum(0) - passes)[who]) * long  # e n_i
    places = torch.frexp((long - 1).double()).exponent  # ceil(log2 n_i)
    for low in torch.unique(places).tolist():
        some = (places == low).nonzero().flatten()
        n, begin, before = (v[some, None] for v in (long, offset[who] + past, past))
        j = torch.arange(int(n.max()))
        rows = bits(keys[who[some], None], before + j if bool(before.any()) else j)
        rows.bitwise_and_(-1 << low).bitwise_or_(j)
        beyond = j >= n
        rows.masked_fill_(beyond, _LAST)
        rows.numpy().sort(axis=1)
        rows.bitwise_and_((1 << low) - 1)
        place = (begin + j).masked_fill_(beyond, len(stream) - 1)
        stream.scatter_(0, place.flatten(), rows.flatten())
    return stream, offset
