"""Regression problems that need no files: the FedDuA paper's, and a toy problem.

`synthetic` is anisotropic linear regression with heterogeneous clients:

    x_j  ~ N(0, Sigma),  Sigma_kk = k^-1.1,  k = 1 .. d
    w_i  ~ N(0, 0.1 I),  w_ij ~ N(w_i, I)
    y_j  = <w_ij, x_j>                                  for sample j of client i

with 20 clients of 30 samples in d = 1000 dimensions: fewer rows than unknowns, so one model can
fit every client, but the coordinates' variances differ by a factor of 2,000.

Differences from the paper: none known. Where it is ambiguous, 0.1 and 1 are taken as variances of
the vectors' entries, and w_ij is drawn for each sample. There is no test set: the paper reports the
training loss.
"""

import numpy as np
import torch

from ..core.errors import check_int
from ..core.random import numpy_generator
from .dataset import Dataset
from .sources import SOURCES


def synthetic(
    *, clients: int = 20, samples: int = 30, dimension: int = 1000, seed: int = 0
) -> Dataset:
    """Draw the regression problem; float64, natural owners, no test set.

    Args:
        clients: Number of clients M.
        samples: Rows of each client.
        dimension: Number of unknowns d.
        seed: Decides the draw.

    >>> synthetic(clients=2, samples=3, dimension=5).x.shape
    torch.Size([6, 5])
    """
    for name, value in (("clients", clients), ("samples", samples), ("dimension", dimension)):
        check_int("synthetic", name, value)
    rng = numpy_generator(seed, "synthetic")
    sd = np.arange(1, dimension + 1) ** -0.55
    x = rng.standard_normal((clients, samples, dimension)) * sd
    w = rng.standard_normal((clients, 1, dimension)) * np.sqrt(0.1)
    w = w + rng.standard_normal((clients, samples, dimension))
    y = (w * x).sum(-1)
    return Dataset(
        name="synthetic",
        x=torch.from_numpy(x.reshape(-1, dimension)),
        y=torch.from_numpy(y.reshape(-1)),
        owner=torch.arange(clients).repeat_interleave(samples),
        owners=tuple(range(clients)),
        licence=SOURCES["synthetic"].licence,
        note="Drawn, not measured; squared error on the training rows is what the paper reports.",
    )


def toy() -> Dataset:
    """Return the toy problem of the line-search paper: two clients with one row each.

    Squared error (not half of it) gives F1 = (w1 + w2 - 3)^2 and F2 = (w1 + 2 w2 - 3)^2, both zero
    at w = (3, 0). The paper starts at (0.24, 1).

    >>> toy().x.tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    return Dataset(
        name="toy",
        x=torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64),
        y=torch.tensor([3.0, 3.0], dtype=torch.float64),
        owner=torch.tensor([0, 1]),
        owners=(0, 1),
        licence=SOURCES["toy"].licence,
        note="Squared error; minimiser (3, 0); the paper starts at (0.24, 1).",
    )
