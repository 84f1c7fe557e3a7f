"""Two clients, two numbers: the toy problem of the line-search paper.

Squared error on one row each gives F1 = (w1 + w2 - 3)^2 and F2 = (w1 + 2 w2 - 3)^2, both zero at
w = (3, 0). The paper starts at (0.24, 1).
"""

import torch

from .dataset import Dataset


def toy() -> Dataset:
    """Return the two rows, owned by two clients; the loss is squared error, not half of it.

    >>> toy().x.tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    return Dataset(
        name="toy",
        x=torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64),
        y=torch.tensor([3.0, 3.0], dtype=torch.float64),
        owner=torch.tensor([0, 1]),
        owners=(0, 1),
        licence="Made here; no terms.",
        note="Squared error; minimiser (3, 0); the paper starts at (0.24, 1).",
    )
