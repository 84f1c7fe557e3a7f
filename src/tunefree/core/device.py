"""Choice of the torch device, and the memory that is free."""

import os
from pathlib import Path

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


def measure_free_ram() -> int:
    """Return the free RAM in bytes, of this machine or this container, whichever is less."""
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        if not hasattr(os, "sysconf"):  # not a POSIX system
            return 4 << 30
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (int((group / f"memory.{n}").read_text()) for n in ("max", "current"))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, min(free, most - used + int(facts["inactive_file"])))  # caches can be dropped
    except (OSError, ValueError, KeyError):  # no cgroup, or no limit
        return free
