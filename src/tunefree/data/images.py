"""Image datasets: digits, MNIST-like data in idx format, CIFAR, and two subsets in npz format."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files as package_files
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.types import Array
from .dataset import Dataset
from .sources import SOURCES, DataFolder, DatasetSource, read_files

_PARTS = ("train", "test")
_Norm = tuple[tuple[float, ...], tuple[float, ...]]
_CIFAR10_NORM = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # channel mean and deviation
_CIFAR100_NORM = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def digits() -> Dataset:
    """Return 1,797 images of 8x8 pixels in [0, 1], 10 classes, about one in five for testing.

    These are the 1,797 test images of the UCI set, as scikit-learn carries them; the split into
    training and test images, with the classes in proportion, is ours and fixed.
    """
    arrays = _read_npz(package_files(__package__).joinpath("files/digits.npz").read_bytes())
    x = torch.from_numpy(arrays["x"].astype(np.float32) / 16).unsqueeze(1)  # (n, 1, 8, 8)
    y, test = _labels(arrays["y"]), torch.from_numpy(arrays["test"])
    return Dataset(
        name="digits",
        x=x[~test],
        y=y[~test],
        test=(x[test], y[test]),
        classes=10,
        licence=SOURCES["digits"].licence,
        note="Embedded; 8x8 images, not MNIST.",
    )


def fashion_mnist(folder: DataFolder = None) -> Dataset:
    """Return 60,000 training and 10,000 test images of clothes, (1, 28, 28) in [0, 1]."""
    return _idx_dataset(SOURCES["fashion-mnist"], folder)


def mnist(folder: DataFolder = None) -> Dataset:
    """Return 60,000 training and 10,000 test images of digits, (1, 28, 28) in [0, 1]."""
    return _idx_dataset(SOURCES["mnist"], folder)


def mnist_writers(folder: DataFolder = None) -> Dataset:
    """Return 23,409 MNIST digits of 200 writers, who are the natural owners, and 2,000 to test.

    The test images are of other writers. This is MNIST by writer with QMNIST's numbers, 10 classes;
    it is not FEMNIST.
    """
    ((_, data),) = read_files(SOURCES["mnist-writers"], folder)
    arrays = _read_npz(data)
    writers, owner = np.unique(arrays["writer_train"], return_inverse=True)
    dataset = _dataset(SOURCES["mnist-writers"], _scale, arrays)
    note = "MNIST by writer (QMNIST numbers), 200 writers with 100 to 130 digits; not FEMNIST."
    return replace(dataset, owner=_labels(owner), owners=tuple(writers.tolist()), note=note)


def cifar10(folder: DataFolder = None) -> Dataset:
    """Return 50,000 training and 10,000 test images, (3, 32, 32), 10 classes, normalised."""
    return _cifar_dataset(SOURCES["cifar10"], folder, 1, 10, _CIFAR10_NORM)


def cifar100(folder: DataFolder = None) -> Dataset:
    """Return 50,000 training and 10,000 test images, (3, 32, 32), 100 fine classes, normalised."""
    return _cifar_dataset(SOURCES["cifar100"], folder, 2, 100, _CIFAR100_NORM)


def cifar10_subset(folder: DataFolder = None) -> Dataset:
    """Return the first 500 training and 100 test images of each class of CIFAR-10, normalised."""
    ((_, data),) = read_files(SOURCES["cifar10-subset"], folder)
    arrays = _read_npz(data)
    arrays |= {f"x_{part}": _undo_differences(arrays[f"x_{part}_delta"]) for part in _PARTS}
    dataset = _dataset(SOURCES["cifar10-subset"], partial(_normalise, norm=_CIFAR10_NORM), arrays)
    note = "5,000 + 1,000 of CIFAR-10's 60,000 images; do not compare with the whole set."
    return replace(dataset, note=note)


def parse_idx(data: bytes, file: str) -> Array:
    """Return the array of an idx file of unsigned bytes.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels").tolist()
    [7, 9]
    """
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 4:
        raise DataError(
            f"{file} must be an idx file of unsigned bytes, which starts with 00 00 08, but starts "
            f"with {data[:4].hex(' ')}; fetch it again."
        )
    head = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4))
    if len(data) != head + math.prod(shape) or 0 in shape:
        raise DataError(
            f"{file} must have {head + math.prod(shape)} bytes for its shape {shape}, but has "
            f"{len(data)}; fetch it again."
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _idx_dataset(source: DatasetSource, folder: DataFolder) -> Dataset:
    arrays = [parse_idx(data, file) for file, data in read_files(source, folder)]
    for i in (0, 2):
        images, labels = arrays[i], arrays[i + 1]
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
            raise DataError(
                f"{source.files[i]} and {source.files[i + 1]} must hold as many images as labels "
                f"in 0..9, got shapes {images.shape} and {labels.shape}."
            )
    names = ("x_train", "y_train", "x_test", "y_test")
    return _dataset(source, _scale, dict(zip(names, arrays, strict=True)))


def _cifar_dataset(
    source: DatasetSource, folder: DataFolder, labels: int, classes: int, norm: _Norm
) -> Dataset:
    """Return a CIFAR dataset whose last file is the test set; records have this many labels."""
    rows = [_parse_cifar(data, file, labels, classes) for file, data in read_files(source, folder)]
    x, y = (np.concatenate(column) for column in zip(*rows[:-1], strict=True))
    arrays = {"x_train": x, "y_train": y, "x_test": rows[-1][0], "y_test": rows[-1][1]}
    return _dataset(source, partial(_normalise, norm=norm), arrays, classes)


def _dataset(
    source: DatasetSource,
    to_inputs: Callable[[Array], Tensor],
    arrays: dict[str, Array],
    classes: int = 10,
) -> Dataset:
    (x, y), test = (
        (to_inputs(arrays[f"x_{part}"]), _labels(arrays[f"y_{part}"])) for part in _PARTS
    )
    return Dataset(source.name, x, y, test, classes, licence=source.licence)


def _parse_cifar(data: bytes, file: str, labels: int, classes: int) -> tuple[Array, Array]:
    """Return pixels (n, 3, 32, 32) and the last label of each record of a CIFAR binary file."""
    width = labels + 3072
    if not data or len(data) % width:
        raise DataError(
            f"{file} must be made of records of {width} bytes, but has {len(data)} bytes; fetch it "
            "again."
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    y = rows[:, labels - 1]
    if y.max() >= classes:
        raise DataError(f"{file} must hold labels in 0..{classes - 1}, but has {int(y.max())}.")
    return rows[:, labels:].reshape(-1, 3, 32, 32), y


def _read_npz(data: bytes) -> dict[str, Array]:
    """Return the arrays of an npz file whose checksum is known."""
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _undo_differences(coded: Array) -> Array:
    """Return RGB pixels (n, 3, 32, 32) from G, R-G, B-G, differenced along rows and columns."""
    c = np.cumsum(np.cumsum(coded, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    green = c[:, 0]
    return np.stack([c[:, 1] + green, green, c[:, 2] + green], axis=1)


def _scale(pixels: Array) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32)[:, None] / np.float32(255))


def _normalise(pixels: Array, norm: _Norm) -> Tensor:
    mean, sd = (torch.tensor(values).view(1, 3, 1, 1) for values in norm)
    return torch.from_numpy(pixels.astype(np.float32)).div_(255).sub_(mean).div_(sd)


def _labels(labels: Array) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))
