import math

import pytest
import torch

from tunefree.core.errors import ArgumentError
from tunefree.core.random import bits, key
from tunefree.data.batches import BatchPlan, batch_width, draw_batches, plan_steps

SIZES = torch.tensor([7, 1, 12, 4, 30, 5])
STARTS = SIZES.cumsum(0) - SIZES
CUTS = [
    BatchPlan(batch=4, steps=9),
    BatchPlan(batch=5, steps=1),
    BatchPlan(batch=100, steps=3),
    BatchPlan(batch=4, epochs=3),
    BatchPlan(batch=100, epochs=2),
    BatchPlan(batch=1, epochs=1),
    BatchPlan(steps=3),
    BatchPlan(epochs=2),
]


def one_client(seed, t, i, n, cut):
    """One client's batches, rows counted within the client, straight from the module's text."""

    def shuffled(e):
        j = torch.arange(n)
        draws = bits(key(seed, "batch", t, i), e * n + j).tolist()
        last = 2 ** math.ceil(math.log2(n))
        return sorted(range(n), key=lambda row: (draws[row] // last, row))

    if cut.batch is None:
        return [list(range(n))] * (cut.steps or cut.epochs)
    if cut.steps is not None:
        b = min(cut.batch, n)
        if b == n:
            return [list(range(n))] * cut.steps
        stream = [row for e in range(math.ceil(cut.steps * b / n)) for row in shuffled(e)]
        return [stream[k * b : (k + 1) * b] for k in range(cut.steps)]
    return [
        shuffled(e)[s : s + cut.batch] for e in range(cut.epochs) for s in range(0, n, cut.batch)
    ]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_drawing_does_not_wait_for_the_device(cut):
    got = draw_batches(3, 11, torch.arange(6), SIZES, STARTS, cut, device=torch.device("meta"))
    assert got.index.is_meta  # such tensors have no values to be read
    assert got.mask.is_meta
    assert got.index.shape == got.mask.shape == (6, int(got.steps.max()), batch_width(SIZES, cut))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_gpu_draws_what_a_cpu_draws(cut):
    ids = torch.tensor([4, 0, 1, 5, 3, 2])
    sizes, starts = SIZES[ids], STARTS[ids]
    here = draw_batches(3, 11, ids, sizes, starts, cut)
    there = draw_batches(3, 11, ids, sizes, starts, cut, device=torch.device("cuda"))
    assert there.index.device.type == there.mask.device.type == "cuda"
    for a, b in ((here.index, there.index), (here.mask, there.mask), (here.share, there.share)):
        assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [SIZES, torch.full((6,), 9), torch.tensor([2, 16, 3, 17, 64, 65])],
    ids=["unequal", "equal", "about powers of two"],
)
def test_agrees_with_the_loop_over_clients(cut, sizes):
    ids, starts = torch.tensor([4, 0, 1, 5, 3, 2]), sizes.cumsum(0) - sizes
    got = draw_batches(3, 11, ids, sizes[ids], starts[ids], cut)
    assert torch.equal(got.steps, plan_steps(sizes[ids], cut))
    assert got.index.shape == got.mask.shape == (6, int(got.steps.max()), batch_width(sizes, cut))
    for row, i in enumerate(ids.tolist()):
        want = one_client(3, 11, i, int(sizes[i]), cut)
        assert len(want) == int(got.steps[row])
        for k in range(got.index.shape[1]):
            batch = want[k] if k < len(want) else []
            mask = got.mask[row, k]
            assert mask.tolist() == [True] * len(batch) + [False] * (len(mask) - len(batch))
            assert (got.index[row, k][mask] - starts[i]).tolist() == batch
            assert (got.index[row, k][~mask] == starts[i]).all()
            assert float(got.share[row, k]) == len(batch) / int(sizes[i])


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_client_alone_draws_what_it_draws_with_others(cut):
    ids = torch.arange(6)
    wide = batch_width(SIZES, cut)
    together = draw_batches(0, 2, ids, SIZES, STARTS, cut)
    for i in range(6):
        one = torch.tensor([i])
        alone = draw_batches(0, 2, one, SIZES[one], STARTS[one], cut, width=wide)
        own = int(alone.steps[0])  # together, the others may go on
        assert torch.equal(alone.index[0], together.index[i, :own])
        assert torch.equal(alone.mask[0], together.mask[i, :own])
        assert torch.equal(alone.share[0], together.share[i, :own])
        assert not together.mask[i, own:].any()


def test_each_pass_sees_each_row_once_and_rounds_differ():
    cut = BatchPlan(batch=4, steps=6)  # 24 rows: two passes over client 2
    one = torch.tensor([2])
    rows = draw_batches(0, 0, one, SIZES[one], STARTS[one], cut).index.flatten() - STARTS[2]
    assert sorted(rows[:12].tolist()) == sorted(rows[12:].tolist()) == list(range(12))
    other = draw_batches(0, 1, one, SIZES[one], STARTS[one], cut).index.flatten() - STARTS[2]
    assert not torch.equal(rows, other)


def test_every_row_is_equally_likely_first():
    size = torch.tensor([5]).expand(4000)
    first = draw_batches(
        0, 0, torch.arange(4000), size, torch.zeros_like(size), BatchPlan(batch=1, steps=1)
    )
    counts = first.index.flatten().bincount()
    assert counts.sum() == 4000
    assert ((counts - 800).abs() < 5 * math.sqrt(800)).all()


def test_plan_and_width():
    sizes = torch.tensor([5, 10, 4])
    assert plan_steps(sizes, BatchPlan(batch=4, epochs=3)).tolist() == [6, 9, 3]
    assert plan_steps(sizes, BatchPlan(epochs=3)).tolist() == [3, 3, 3]
    assert plan_steps(sizes, BatchPlan(batch=4, steps=7)).tolist() == [7, 7, 7]
    assert batch_width(sizes, BatchPlan(batch=4, steps=1)) == 4
    assert batch_width(sizes, BatchPlan(batch=64, steps=1)) == 10
    assert batch_width(sizes, BatchPlan(steps=1)) == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {},
            "BatchPlan(steps=..., epochs=...) needs exactly one of the two, got steps=None and "
            "epochs=None.",
        ),
        (
            {"steps": 1, "epochs": 1},
            "BatchPlan(steps=..., epochs=...) needs exactly one of the two, got steps=1 and "
            "epochs=1.",
        ),
        ({"steps": 0}, "BatchPlan(steps=...) must be an int >= 1, got 0."),
        ({"epochs": 1.5}, "BatchPlan(epochs=...) must be an int >= 1, got 1.5."),
        (
            {"batch": -1, "steps": 1},
            "BatchPlan(batch=...) must be an int >= 1, got -1.",
        ),
    ],
)
def test_bad_cuts(arguments, sentence):
    with pytest.raises(ArgumentError) as caught:
        BatchPlan(**arguments)
    assert str(caught.value) == sentence


def test_width_below_what_is_needed_is_refused():
    one = torch.tensor([2])
    with pytest.raises(
        ArgumentError, match=r"draw_batches\(width=...\) must be an int >= 4, got 3"
    ):
        draw_batches(0, 0, one, SIZES[one], STARTS[one], BatchPlan(batch=4, steps=1), width=3)
