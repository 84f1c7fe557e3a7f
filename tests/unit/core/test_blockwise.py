import pytest
import torch

from tunefree.core import vectors as blocks
from tunefree.core.vectors import blockwise
from tunefree.penalties import MCP, SCAD
from unit.penalties.cases import flat


@pytest.fixture
def small(monkeypatch):
    """Blocks of 16 float32."""
    monkeypatch.setattr(blocks, "_CACHE_BLOCK", 64)
    return 16


class Counted:
    def __init__(self, f):
        self.f, self.sizes = f, []

    def __call__(self, *tensors):
        self.sizes.append(tensors[0].numel())
        return self.f(*tensors)


@pytest.mark.parametrize("extra", [-1, 0, 1, 7])
def test_pieces_cover_the_whole(small, extra):
    a = torch.arange(5.0 * small + extra)
    f = Counted(lambda a, b: a * b + 1)
    assert torch.equal(blockwise(f, a, a.flip(0)), a * a.flip(0) + 1)
    assert sum(f.sizes) == len(a)
    assert max(f.sizes) == small


def test_tuples_and_other_dtypes(small):
    a = torch.randn(7, small)
    low, sign = blockwise(lambda t: (t.clamp(max=0.0), t > 0), a)
    assert torch.equal(low, a.clamp(max=0.0))
    assert torch.equal(sign, a > 0)
    (alone,) = blockwise(lambda t: (-t,), a)
    assert torch.equal(alone, -a)


def test_float64_blocks_hold_half_as_many(small):
    f = Counted(torch.neg)
    blockwise(f, torch.ones(5 * small, dtype=torch.float64))
    assert max(f.sizes) == small // 2


def test_some_go_in_one_piece(small):
    n = 5 * small
    grad = torch.ones(n, requires_grad=True)
    for tensors in (
        (torch.ones(small),),  # short
        (torch.ones(n, 2)[:, 0],),  # strided
        (torch.ones(3, n), torch.ones(n)),  # unequal
        (grad,),
        (torch.ones(n, device="meta"),),
    ):
        f = Counted(lambda *t: sum(t[1:], 2 * t[0]))
        out = blockwise(f, *tensors)
        assert len(f.sizes) == 1
        assert out.shape == tensors[0].shape
    blockwise(torch.neg, grad).sum().backward()
    assert torch.equal(grad.grad, -torch.ones(n))


def test_gradients_that_nobody_records(small):
    f = Counted(torch.neg)
    with torch.no_grad():
        blockwise(f, torch.ones(5 * small, requires_grad=True))
    assert len(f.sizes) == 5


@pytest.mark.parametrize("part", [MCP(0.6, 2.5), SCAD(0.6, 3.5)])
def test_penalties_do_not_notice(part, monkeypatch):
    v = torch.randn(3, 1001)
    whole = part.prox(v, 0.5, flat(1001))
    monkeypatch.setattr(blocks, "_CACHE_BLOCK", 256)
    before = v.clone()
    assert torch.equal(part.prox(v, 0.5, flat(1001)), whole)
    assert torch.equal(v, before)
