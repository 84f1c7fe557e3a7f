import pytest
import torch

from tunefree.clients import Round
from tunefree.server import Averaged, Last, LastTwo


def shipped(part, *points):
    start, *rest = (torch.tensor([float(p)], dtype=torch.float64) for p in points)
    state, out = part.init(start), []
    for t, x in enumerate(rest):
        state = part.update(x, state, Round(None, t, 1.0))
        out.append(float(part.value(x, state)))
    return out


def test_last():
    assert shipped(Last(), 0, 1, 4, 9) == [1, 4, 9]


def test_last_two():
    assert shipped(LastTwo(), 0, 1, 4, 9) == [0.5, 2.5, 6.5]


def test_plain_mean():
    assert shipped(Averaged(gamma=0), 7, 1, 4, 10) == pytest.approx([1, 2.5, 5])


def test_polynomial_decay():
    first, second, third = 1.0, 0.1 * 1 + 0.9 * 4, None
    third = (2 / 11) * second + (9 / 11) * 10
    assert shipped(Averaged(gamma=8), 7, 1, 4, 10) == pytest.approx([first, second, third])
