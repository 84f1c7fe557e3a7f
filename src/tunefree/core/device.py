"""Choice of the torch device."""

import os

import torch

from .errors import ArgumentError


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one, else the CPU.

    For a GPU, $CUBLAS_WORKSPACE_CONFIG is set unless it is: matrix products then repeat bit by bit.

    Raises:
        ArgumentError: If this machine has no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        float(torch.zeros(1, device=found))  # "meta" has no numbers
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ArgumentError(
            f"fit(device=...) must be 'auto' or a device of this machine, got {device!r}: {first}"
        ) from None
    if found.type == "cuda":  # cuBLAS reads it before its first product
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return found
