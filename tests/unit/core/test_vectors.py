import pytest
import torch

from tunefree.core.vectors import _INNER_BLOCK as BLOCK
from tunefree.core.vectors import inner


@pytest.mark.parametrize("size", [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_every_entry_counts_once(size):
    a, b = torch.arange(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    assert float(inner(a, b)) == size * (size - 1) / 2
    assert inner(a, b).shape == ()


def test_no_digits_are_lost_over_millions():
    """A running sum of float32 ones stands still at 2^24."""
    size = (1 << 24) + (1 << 22)
    ones = torch.ones(size)
    assert float(inner(ones, ones)) == size


def test_signs():
    a = torch.tensor([1.0, -2.0, 0.5])
    assert float(inner(a, -a)) == -5.25
