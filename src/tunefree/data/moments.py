"""Sums over the columns of a table and its targets, by client."""

import torch
from torch import Tensor

from ..core.types import Inputs, list_tensors
from .federation import Federation


def count_columns(x: Inputs) -> int:
    """Return the number of columns of a table (2-D floats); 0 for other inputs."""
    is_table = isinstance(x, Tensor) and x.ndim == 2 and x.is_floating_point()
    return x.shape[1] if is_table else 0  # type: ignore[union-attr]


def column_moments(federation: Federation, ids: Tensor, shift: Tensor) -> Tensor:
    """Return samples, sums and sums of squares of x - shift for each client, in float64.

    If `shift` has more entries than the table has columns, the targets are further columns. If the
    inputs are a table and the weights of its rows, a row counts as often as its weight says.

    >>> fed = Federation([[1.0], [2.0], [5.0]], [0.0, 0.0, 0.0], [0, 0, 1])
    >>> column_moments(fed, torch.arange(2), torch.zeros(1, dtype=torch.float64))
    tensor([[ 2.,  3.,  5.],
            [ 1.,  5., 25.]], dtype=torch.float64)
    """
    (x, *weights), sizes = list_tensors(federation.x), federation.sizes[ids]
    first = federation.starts[ids] - (sizes.cumsum(0) - sizes)
    index = first.repeat_interleave(sizes) + torch.arange(int(sizes.sum()))
    index = index.to(x.device)
    z = x[index].to(torch.float64)
    if len(shift) > x.shape[1]:
        z = torch.cat([z, federation.y[index].to(z).reshape(len(z), -1)], 1)
    z = z - shift
    both = torch.cat([torch.ones_like(z[:, :1]), z, z.square()], 1)
    for weight in weights:
        both = both * weight[index, None]
    return torch.segment_reduce(both, "sum", lengths=sizes.to(x.device), axis=0)  # in fixed order


def column_spread(x: Inputs, rows: int = 4096) -> float:
    """Return the ratio of the largest to the smallest range of a table's columns, constants aside.

    It reads at most about `rows` evenly spaced rows.

    >>> column_spread(torch.tensor([[1.0, 0.0, 7.0], [3.0, 500.0, 7.0]]))
    250.0
    """
    if not count_columns(x):
        return 1.0
    assert isinstance(x, Tensor)
    some = x[:: max(1, len(x) // rows)]
    ranges = some.amax(0) - some.amin(0)
    ranges = ranges[ranges > 0]
    return float(ranges.max() / ranges.min()) if len(ranges) else 1.0
