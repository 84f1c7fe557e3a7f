"""Atomic writes, JSON and safetensors serialisation, and flattening of nested settings."""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ArgumentError, CheckpointError, convert_errors


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old or the new content, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def check_writable(what: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert an OSError within the context: `what`, a rule for the path, was not met."""
    try:
        yield
    except OSError as error:
        found = f"{str(path)!r}: {error.strerror or error}"
        raise ArgumentError(f"{what} that can be written, got {found}.") from None


def to_json(value: Any) -> str:
    """Return JSON text; NaN and Inf become null."""

    def to_plain(v: Any) -> Any:
        if isinstance(v, Real) and not isinstance(v, bool):  # NumPy numbers become plain ones
            if isinstance(v, Integral):
                return int(v)
            return float(v) if math.isfinite(v) else None
        if isinstance(v, dict):
            return {str(k): to_plain(w) for k, w in v.items()}
        return [to_plain(w) for w in v] if isinstance(v, list | tuple) else v

    return json.dumps(to_plain(value), allow_nan=False)


def pack_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Return tensors as safetensors bytes."""
    from safetensors.torch import save

    return save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors in safetensors bytes."""
    from safetensors.torch import load

    with convert_errors("not readable as safetensors", CheckpointError):
        return load(data)


def flatten(settings: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name.

    >>> flatten({"method": {"name": "fedavg"}, "seed": 0})
    {'method.name': 'fedavg', 'seed': 0}
    """
    if not isinstance(settings, Mapping):
        return {name: settings}
    parts = [flatten(v, f"{name}.{k}" if name else str(k)) for k, v in settings.items()]
    return {k: v for part in parts for k, v in part.items()}
