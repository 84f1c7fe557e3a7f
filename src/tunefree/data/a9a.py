"""a9a: UCI Adult as 123 binary features, in LIBSVM's sparse text format."""

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset
from .sources import DataFolder, DatasetSource, published_checksums, read_files

FEATURES = 123
A9A = DatasetSource(
    name="a9a",
    files=("a9a", "a9a.t"),
    folders=("a9a",),
    licence="CC BY 4.0 (UCI Adult, Becker & Kohavi 1996), encoded by LIBSVM, Chang & Lin 2011.",
    url="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    checksums=published_checksums("a9a"),
)


def a9a(folder: DataFolder = None) -> Dataset:
    """Return 32,561 training and 16,281 test rows of 123 features; y is 1 for income over 50K."""
    train, test = (parse_libsvm(data, FEATURES) for _, data in read_files(A9A, folder))
    return Dataset(name="a9a", x=train[0], y=train[1], test=test, classes=2, licence=A9A.licence)


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
