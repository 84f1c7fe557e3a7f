import struct
from itertools import pairwise

import numpy as np
import pytest
import torch

from tunefree.core import random
from tunefree.core.errors import ArgumentError, DataError
from tunefree.wire import LowRank, Sender
from unit.wire.cases import DTYPES, layout, pack, rows_like, same_bits, sender


def of_rank(a, b, r, m=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(m, a, r, generator=draw, dtype=torch.float64)
    return (left @ torch.randn(m, r, b, generator=draw, dtype=torch.float64)).reshape(m, a * b)


@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (30, 4), (4, 30)])
@pytest.mark.parametrize("rank", [1, 2])
def test_matrices_of_low_rank_arrive_whole(shape, rank):
    for true in range(1, rank + 1):  # also where directions are missing
        rows = of_rank(*shape, true)
        got = pack(LowRank(rank), rows, layout(shape)).rows
        torch.testing.assert_close(got, rows, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_an_orthogonal_projection_of_this_rank(dtype, scale):
    """C(M) = P P' M: its rank is r, and M - C(M) is orthogonal to it."""
    rows = (rows_like(layout((10, 8)), 3) * scale).to(dtype)
    got = pack(LowRank(3), rows, layout((10, 8))).rows
    small = 1e-5 if dtype == torch.float32 else 1e-12
    for v, arrived in zip(rows.double() / scale, got.double() / scale, strict=True):
        singular = torch.linalg.svdvals(arrived.reshape(10, 8))
        assert float(singular[2]) > 0.1
        assert float(singular[3]) < small * 10
        assert float(((v - arrived) @ arrived).abs()) < small * float(v @ v)


def sent(wire, row, shape):
    """The factors of a message that holds one upright matrix."""
    data = wire.encode(row, sender(1), layout(shape))
    numbers = np.frombuffer(data[4:], f"<f{row.element_size()}").astype(float)
    split = wire.rank * shape[0]
    return numbers[:split].reshape(shape[0], -1), numbers[split:].reshape(shape[1], -1)


def test_columns_are_orthonormal_even_if_directions_are_faint():
    draw = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(torch.randn(n, 4, generator=draw, dtype=torch.float64))[0] for n in (12, 9)
    )
    matrix = left * torch.tensor([1.0, 1e-3, 1e-3, 1e-3]) @ right.T
    for passes in (1, 2):
        p, f = sent(LowRank(3, passes), matrix.reshape(-1).float(), (12, 9))
        np.testing.assert_allclose(p.T @ p, np.eye(3), atol=2e-6)
        np.testing.assert_allclose(f, matrix.T.numpy() @ p, atol=1e-6)


def test_directions_that_are_missing_are_zeros():
    p, f = sent(LowRank(3), of_rank(12, 9, 1)[0], (12, 9))
    assert abs((p[:, 0] ** 2).sum() - 1) < 1e-12
    assert not p[:, 1:].any()
    assert not f[:, 1:].any()


def test_the_first_direction_may_be_any():
    """Of the identity, C(M) = q q' / |q|^2, with mean I / b over the draws."""
    rows = torch.eye(5, dtype=torch.float64).reshape(1, 25).expand(4000, 25).contiguous()
    who = Sender(torch.arange(4000), 0, random.key(4, "wire", torch.arange(4000)))
    mean = pack(LowRank(passes=1), rows, layout((5, 5)), who).rows.mean(0).reshape(5, 5)
    torch.testing.assert_close(mean, torch.eye(5).double() / 5, rtol=0, atol=0.02)


def test_layers_draw_apart():
    """Two identities in one vector are projected differently."""
    eye = torch.eye(5, dtype=torch.float64).reshape(1, 25)
    got = pack(LowRank(passes=1), torch.cat([eye, eye], 1), layout((5, 5), (5, 5))).rows[0]
    assert not torch.allclose(got[:25], got[25:], atol=0.01)


def test_between_one_direction_and_the_best_ones():
    """No error is below the truncated decomposition's, and passes come near to it."""
    shape, rows = (20, 15), rows_like(layout((20, 15)), 5)
    matrices = rows.reshape(5, *shape).numpy()
    best = (np.linalg.svd(matrices, compute_uv=False)[:, 2:] ** 2).sum(1)
    errors = []
    for passes in (1, 2, 4, 60):
        off = pack(LowRank(2, passes), rows, layout(shape)).rows - rows
        errors.append(off.square().sum(1).numpy())
        assert (errors[-1] >= best * (1 - 1e-12)).all()
    for before, after in pairwise(errors):
        assert (after <= before * (1 + 1e-12)).all()
    np.testing.assert_allclose(errors[-1], best, rtol=1e-3)


def test_what_has_no_long_side_travels_as_it_is():
    lay = layout((5,), (), (2, 2), (1, 7))
    rows = rows_like(lay)
    assert same_bits(pack(LowRank(), rows, lay).rows, rows)


def test_kernels_are_matrices_of_their_outputs():
    """(8, 4, 3, 3) is 8 x 36."""
    lay = layout((8, 4, 3, 3))
    rows = of_rank(8, 36, 1)
    packed = pack(LowRank(), rows, lay)
    torch.testing.assert_close(packed.rows, rows)
    assert packed.bytes == 3 * (4 + 44 * 8)


def test_costs_by_hand():
    """10 x 8 by two columns of each, five numbers as they are, 2 x 2 as it is."""
    lay = layout((10, 8), (5,), (2, 2))
    packed = pack(LowRank(2), rows_like(lay, 3, torch.float32), lay)
    numbers = 2 * 18 + 5 + 4
    assert packed.bytes == 3 * (4 + 4 * numbers)
    assert packed.counted == 3 * 32 * numbers
    assert pack(LowRank(99), rows_like(lay, 3), lay).bytes == 3 * (4 + 8 * 89)


def test_message_by_hand():
    """One nonzero row: P is a unit column, F the row itself, both up to sign."""
    matrix = torch.zeros(3, 3)
    matrix[1] = torch.tensor([1.0, -2.0, 2.0])
    data = LowRank().encode(matrix.reshape(-1), sender(1), layout((3, 3)))
    rank, *numbers = struct.unpack("<I6f", data)
    p, f = np.array(numbers[:3]), np.array(numbers[3:])
    assert rank == 1
    np.testing.assert_allclose(p * p[1], [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(f * p[1], [1, -2, 2], atol=1e-6)


def test_the_decoder_need_not_know_the_rank():
    lay, row = layout((12, 9), (5,)), rows_like(layout((12, 9), (5,)))[0]
    for rank in (1, 3, 50):
        data = LowRank(rank).encode(row, sender(1), lay)
        back = LowRank(2).decode(data, row, sender(1), lay)
        assert same_bits(back, pack(LowRank(rank), row[None], lay, sender(1)).rows[0])


def test_malformed():
    lay, like = layout((6, 5)), torch.zeros(30)
    for rank, words in (
        (0, "rank of a low-rank message must be at least 1"),
        (2, "must have 92"),
        (9, "must have 124"),
    ):
        with pytest.raises(DataError, match=words):
            LowRank().decode(struct.pack("<I", rank) + bytes(44), like, sender(1), lay)
    with pytest.raises(DataError, match="at least 4 bytes"):
        LowRank().decode(b"\1\0\0", like, sender(1), lay)


@pytest.mark.parametrize("value", [0, -1, 1.5, "1", None])
@pytest.mark.parametrize("name", ["rank", "passes"])
def test_arguments_refused(name, value):
    with pytest.raises(ArgumentError, match=rf"LowRank\({name}=...\) must be an int >= 1"):
        LowRank(**{name: value})
    with pytest.raises(ArgumentError, match=r"LowRank\(rank=...\) must be below 2\*\*32"):
        LowRank(2**32)
