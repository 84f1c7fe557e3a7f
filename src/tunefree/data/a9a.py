"""a9a: UCI Adult as 123 binary features, in LIBSVM's sparse text format."""

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset
from .sources import SOURCES, DataFolder, read_files

FEATURES = 123


def a9a(folder: DataFolder = None) -> Dataset:
    """Return 32,561 training and 16,281 test rows of 123 features; y is 1 for income over 50K."""
    source = SOURCES["a9a"]
    train, test = (parse_libsvm(data, FEATURES) for _, data in read_files(source, folder))
    return Dataset(source.name, train[0], train[1], test, 2, licence=source.licence)


def parse_libsvm(data: bytes, features: int) -> tuple[Tensor, Tensor]:
    """Return dense features (n, features) float32 and labels 0/1 from lines "+1 3:1 11:1 ...".

    >>> x, y = parse_libsvm(b"-1 1:1\\n+1 2:0.5 3:1\\n", 3)
    >>> x.tolist(), y.tolist()
    ([[1.0, 0.0, 0.0], [0.0, 0.5, 1.0]], [0, 1])
    """
    rows = [line.split() for line in data.splitlines()]
    x, y = np.zeros((len(rows), features), np.float32), np.empty(len(rows), np.int64)
    for i, (label, *entries) in enumerate(rows):
        pairs = [entry.split(b":") for entry in entries]
        x[i, [int(column) - 1 for column, _ in pairs]] = [float(value) for _, value in pairs]
        y[i] = float(label) > 0
    return torch.from_numpy(x), torch.from_numpy(y)
