"""Handwritten digits, 8x8: small, real, and inside the package."""

from importlib.resources import files
from io import BytesIO

import numpy as np
import torch

from .dataset import Dataset

LICENCE = (
    "CC BY 4.0; E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine "
    "Learning Repository, 1998, doi:10.24432/C50P49."
)


def digits() -> Dataset:
    """Return 1,797 images of 8x8 pixels in [0, 1], 10 classes, about one in five for testing.

    These are the 1,797 test images of the UCI set, as scikit-learn carries them; the split into
    training and test images, with the classes in proportion, is ours and fixed.
    """
    stored = files(__package__).joinpath("files/digits.npz").read_bytes()
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
        licence=LICENCE,
        note="Embedded; 8x8 images, not MNIST.",
    )
