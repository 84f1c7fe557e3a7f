"""Image datasets: digits, MNIST-like data in idx format, CIFAR, and two subsets in npz format."""

import math
from importlib.resources import files as package_files
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, convert_errors
from ._archives import read_npz
from ._arrays import Array
from .dataset import Dataset
from .sources import DataFolder, DatasetFile, DatasetSource, read_files

_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_Norm = tuple[tuple[float, ...], tuple[float, ...]]
_CIFAR10_NORM = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # channel mean and deviation
_CIFAR100_NORM = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

FASHION_MNIST = DatasetSource(
    name="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    suffix=".gz",
    files=tuple(
        DatasetFile(file, {".gz": f"sha256:{packed}", "": f"sha256:{plain}"})
        for file, packed, plain in zip(
            _IDX,
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            strict=True,
        )
    ),
)
MNIST = DatasetSource(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    suffix=".gz",
    files=(
        DatasetFile(
            _IDX[0],
            {
                ".gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "": "md5:6bbc9ace898e44ae57da46a324031adb",
            },
        ),
        DatasetFile(_IDX[1], {".gz": "md5:d53e105ee54ea40749a09fcbcd1e9432"}),
        DatasetFile(
            _IDX[2],
            {
                ".gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                "": "md5:2646ac647ad5339dbf082846283269ea",
            },
        ),
        DatasetFile(_IDX[3], {".gz": "md5:ec29112dd5afa0611ce80d1b7f02629c"}),
    ),
)
MNIST_WRITERS = DatasetSource(
    name="mnist-writers",
    folders=("mnist",),
    hint="it is a selection of MNIST with QMNIST's writer numbers and has no public address.",
    files=(
        DatasetFile(
            "mnist_200writers.npz",
            {"": "sha256:51f09b64f021b18800499cfde7e59b7e6c91591401369a20f9ccf889f427438b"},
        ),
    ),
)
CIFAR10 = DatasetSource(
    name="cifar10",
    folders=("cifar10",),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive="cifar-10-binary.tar.gz",
    archive_checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
    files=tuple(
        DatasetFile(f"cifar-10-batches-bin/{file}.bin", member=f"cifar-10-batches-bin/{file}.bin")
        for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    ),
)
CIFAR100 = DatasetSource(
    name="cifar100",
    folders=("cifar100",),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    archive="cifar-100-binary.tar.gz",
    archive_checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
    files=tuple(
        DatasetFile(f"cifar-100-binary/{file}.bin", member=f"cifar-100-binary/{file}.bin")
        for file in ("train", "test")
    ),
)
CIFAR10_SUBSET = DatasetSource(
    name="cifar10-subset",
    folders=("cifar10",),
    hint="it is the first 500 training and 100 test images of each class of CIFAR-10 and has no "
    "public address; 'cifar10' is the whole set.",
    files=(
        DatasetFile(
            "cifar10_5k_1k.npz",
            {"": "sha256:11d8fbd7dd6e008e3e2b575621e79ea06391ad713f5558a838e787ab477ffed8"},
        ),
    ),
)

FASHION_MNIST_LICENCE = "MIT, Zalando SE; Xiao, Rasul & Vollgraf 2017, arXiv:1708.07747."
MNIST_LICENCE = "CC BY-SA 3.0 as usually given; LeCun, Cortes & Burges 1998."
WRITERS_LICENCE = f"{MNIST_LICENCE[:-1]}; writer numbers from QMNIST, BSD, Yadav & Bottou 2019."
DIGITS_LICENCE = (
    "CC BY 4.0; E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine "
    "Learning Repository, 1998, doi:10.24432/C50P49."
)
CIFAR_LICENCE = "No explicit licence, free for research with citation; Krizhevsky 2009."


def digits() -> Dataset:
    """Return 1,797 images of 8x8 pixels in [0, 1], 10 classes, about one in five for testing.

    These are the 1,797 test images of the UCI set, as scikit-learn carries them; the split into
    training and test images, with the classes in proportion, is ours and fixed.
    """
    stored = package_files(__package__).joinpath("files/digits.npz").read_bytes()
    with np.load(BytesIO(stored), allow_pickle=False) as arrays:
        x = torch.from_numpy(arrays["x"].astype(np.float32) / 16).unsqueeze(1)  # (n, 1, 8, 8)
        y = torch.from_numpy(arrays["y"].astype(np.int64))
        test = torch.from_numpy(arrays["test"])
    return Dataset(
        name="digits",
        x=x[~test],
        y=y[~test],
        test=(x[test], y[test]),
        classes=10,
        licence=DIGITS_LICENCE,
        note="Embedded; 8x8 images, not MNIST.",
    )


def fashion_mnist(folder: DataFolder = None) -> Dataset:
    """Return 60,000 training and 10,000 test images of clothes, (1, 28, 28) in [0, 1]."""
    return _idx_dataset(FASHION_MNIST, folder, FASHION_MNIST_LICENCE)


def mnist(folder: DataFolder = None) -> Dataset:
    """Return 60,000 training and 10,000 test images of digits, (1, 28, 28) in [0, 1]."""
    return _idx_dataset(MNIST, folder, MNIST_LICENCE)


def mnist_writers(folder: DataFolder = None) -> Dataset:
    """Return 23,409 MNIST digits of 200 writers, who are the natural owners, and 2,000 to test.

    The test images are of other writers. This is MNIST by writer with QMNIST's numbers, 10 classes;
    it is not FEMNIST.
    """
    pixels: dict[str, tuple[int, ...]] = {"x_train": (28, 28), "x_test": (28, 28)}
    arrays = _read_npz(
        MNIST_WRITERS, folder, pixels | {"y_train": (), "writer_train": (), "y_test": ()}
    )
    writers, owner = np.unique(arrays["writer_train"], return_inverse=True)
    return Dataset(
        name="mnist-writers",
        x=_scale(arrays["x_train"]),
        y=_labels(arrays["y_train"]),
        test=(_scale(arrays["x_test"]), _labels(arrays["y_test"])),
        classes=10,
        owner=_labels(owner),
        owners=tuple(writers.tolist()),
        licence=WRITERS_LICENCE,
        note="MNIST by writer (QMNIST numbers), 200 writers with 100 to 130 digits; not FEMNIST.",
    )


def cifar10(folder: DataFolder = None) -> Dataset:
    """Return 50,000 training and 10,000 test images, (3, 32, 32), 10 classes, normalised."""
    return _cifar_dataset(CIFAR10, folder, 1, 10, _CIFAR10_NORM)


def cifar100(folder: DataFolder = None) -> Dataset:
    """Return 50,000 training and 10,000 test images, (3, 32, 32), 100 fine classes, normalised."""
    return _cifar_dataset(CIFAR100, folder, 2, 100, _CIFAR100_NORM)


def cifar10_subset(folder: DataFolder = None) -> Dataset:
    """Return the first 500 training and 100 test images of each class of CIFAR-10, normalised."""
    shapes = {"x_train_delta": (3, 32, 32), "x_test_delta": (3, 32, 32)}
    arrays = _read_npz(CIFAR10_SUBSET, folder, shapes | {"y_train": (), "y_test": ()})
    return Dataset(
        name="cifar10-subset",
        x=_normalise(_undo_differences(arrays["x_train_delta"]), _CIFAR10_NORM),
        y=_labels(arrays["y_train"]),
        test=(
            _normalise(_undo_differences(arrays["x_test_delta"]), _CIFAR10_NORM),
            _labels(arrays["y_test"]),
        ),
        classes=10,
        licence=CIFAR_LICENCE,
        note="5,000 + 1,000 of CIFAR-10's 60,000 images; do not compare with the whole set.",
    )


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


def _idx_dataset(source: DatasetSource, folder: DataFolder, licence: str) -> Dataset:
    arrays = [parse_idx(data, file) for file, data in read_files(source, folder)]
    for i in (0, 2):
        images, labels = arrays[i], arrays[i + 1]
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
            raise DataError(
                f"{source.files[i].name} and {source.files[i + 1].name} must hold as many images "
                f"as labels in 0..9, got shapes {images.shape} and {labels.shape}."
            )
    return Dataset(
        name=source.name,
        x=_scale(arrays[0]),
        y=_labels(arrays[1]),
        test=(_scale(arrays[2]), _labels(arrays[3])),
        classes=10,
        licence=licence,
    )


def _cifar_dataset(
    source: DatasetSource, folder: DataFolder, labels: int, classes: int, norm: _Norm
) -> Dataset:
    """Return a CIFAR dataset whose last file is the test set; records have this many labels."""
    rows = [_parse_cifar(data, file, labels, classes) for file, data in read_files(source, folder)]
    x = np.concatenate([pixels for pixels, _ in rows[:-1]])
    y = np.concatenate([labels for _, labels in rows[:-1]])
    return Dataset(
        name=source.name,
        x=_normalise(x, norm),
        y=_labels(y),
        test=(_normalise(rows[-1][0], norm), _labels(rows[-1][1])),
        classes=classes,
        licence=CIFAR_LICENCE,
    )


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


def _read_npz(
    source: DatasetSource, folder: DataFolder, shapes: dict[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Return the arrays of an npz file; `shapes` are those of one sample, () for labels."""
    ((file, data),) = read_files(source, folder)
    with convert_errors(f"{file} must be an npz file with the arrays {', '.join(shapes)}"):
        arrays = read_npz(data, tuple(shapes))
    for name, array in arrays.items():
        subset = "test" if "_test" in name else "train"
        rows = len(arrays[f"y_{subset}"]) if arrays[f"y_{subset}"].ndim else 0
        is_label = name.startswith("y_")
        out_of_range = is_label and rows and not 0 <= array.min() <= array.max() <= 9
        if array.shape != (rows, *shapes[name]) or not rows or out_of_range:
            raise DataError(
                f"{file} must hold as many images of {subset} as labels in 0..9, but {name} has "
                f"the shape {array.shape}; fetch it again."
            )
    return arrays


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
