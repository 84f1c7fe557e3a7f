"""FEMNIST: letters and digits by writer, in the JSON files that LEAF's scripts write.

Caldas et al. 2018, arXiv:1812.01097. LEAF writes two folders, train and test, with JSON files of
the form {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}; an
image in x is 784 numbers in [0, 1]. Sampling and split are chosen when LEAF is run, so there is no
checksum to verify; shapes and ranges are checked instead.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.cache import cache_folder
from ..core.errors import DataError, convert_errors
from ..core.files import read_file
from ..core.types import Array
from .dataset import Dataset
from .sources import SOURCES, DataFolder, search_folders

CLASSES, PIXELS = 62, 784


def femnist(folder: DataFolder = None) -> Dataset:
    """Return the images, (1, 28, 28) in [0, 1], 62 classes, with writers as natural owners."""
    where = locate(folder)
    if where is None:
        raise DataError(
            "'femnist' was not found; run LEAF's data/femnist/preprocess.sh and put the folders "
            f"train and test that it makes into {cache_folder() / 'femnist'}, or into a folder "
            "femnist under one that folder=... or $TUNEFREE_DATA names."
        )
    x, y, users = _read_folder(where / "train")
    x_test, y_test, test_users = _read_folder(where / "test")
    names = sorted(set(users))
    number = {name: i for i, name in enumerate(names)}
    return Dataset(
        name="femnist",
        x=x,
        y=y,
        test=(x_test, y_test),
        classes=CLASSES,
        owner=torch.tensor([number[user] for user in users]),
        owners=tuple(names),
        test_owner=torch.tensor([number.get(user, -1) for user in test_users]),
        licence=SOURCES["femnist"].licence,
        note="As sampled and split by LEAF's scripts.",
    )


def locate(folder: DataFolder = None) -> Path | None:
    """Return the folder that holds train and test, or None."""
    for root in search_folders(folder):
        for subfolder in ("femnist", "femnist/data", ""):
            path = root / subfolder
            if all(any((path / subset).glob("*.json")) for subset in ("train", "test")):
                return path
    return None


def _read_folder(path: Path) -> tuple[Tensor, Tensor, list[str]]:
    parts = [_read_json(file) for file in sorted(path.glob("*.json"))]
    x, y = (torch.from_numpy(np.concatenate([part[i] for part in parts])) for i in (0, 1))
    return x.view(-1, 1, 28, 28), y, [user for part in parts for user in part[2]]


def _read_json(path: Path) -> tuple[Array, Array, list[str]]:
    form = "must be a LEAF json file with 'users' and 'user_data' of 'x' and 'y'"
    with convert_errors(f"{path} {form}"):
        content = json.loads(read_file(path, follow=True))
        users, rows = content["users"], content["user_data"]
        pairs = [(str(user), rows[user]["x"], rows[user]["y"]) for user in users]
    xs, ys, owners = [], [], []
    for user, x, y in pairs:
        with convert_errors(f"{path}: user {user[:40]!r} must have images of {PIXELS} numbers"):
            images, labels = np.array(x, np.float64), np.array(y)
        if labels.ndim != 1 or images.shape != (labels.size, PIXELS) or not labels.size:
            raise DataError(
                f"{path}: user {user[:40]!r} must have as many images of {PIXELS} numbers as "
                f"labels, got shape {images.shape} for {labels.size} labels."
            )
        is_class = labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < CLASSES
        if not is_class or not (0 <= images.min() <= images.max() <= 1):
            raise DataError(
                f"{path}: user {user[:40]!r} must have labels in 0..{CLASSES - 1} and pixels in "
                "[0, 1]."
            )
        xs.append(images.astype(np.float32))
        ys.append(labels.astype(np.int64))
        owners += [user] * len(labels)
    if not xs:
        raise DataError(f"{path} must hold at least one user, got none.")
    return np.concatenate(xs), np.concatenate(ys), owners
