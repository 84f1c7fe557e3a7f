"""Opening, reading and writing files; JSON, safetensors, numbers; flattening of nested settings.

Folders of runs, studies and nodes may come from somebody else. Their files are opened by
`open_descriptor` (`open_regular`, `read_file`, `write_file`), which accepts nothing but regular
files, and replaced by `write_atomically`, which does not follow links either.
"""

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from .errors import ArgumentError, CheckpointError, convert_errors

MAX_JSON = 64 << 20  # bytes of a file of settings
MAX_BYTES = 1 << 30  # bytes of any other file, unless the caller knows better
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
# Not every system has these flags; the file's kind is checked in any case.
_SAFE = sum(getattr(os, f"O_{name}", 0) for name in ("CLOEXEC", "NONBLOCK", "NOCTTY", "BINARY"))
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def _check_kind(path: object, found: os.stat_result, writing: bool = False) -> None:
    """Raise an OSError unless a file is regular and, to be written in place, has one name."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        is_not = f"it is {_KINDS.get(kind, 'something else')}, not a regular file"
        raise OSError(errno.EINVAL, is_not, str(path))
    if writing and found.st_nlink > 1:
        linked = "it has another name (a hard link), which would change too"
        raise OSError(errno.EMLINK, linked, str(path))


def open_descriptor(path: str | os.PathLike[str], flags: int, *, follow: bool = False) -> int:
    """Open a regular file and return its descriptor; anything else is an OSError.

    The kind is checked before opening, since opening a named pipe or a device may block or have an
    effect, and again after it, since the file may have been replaced meanwhile; so `flags` must be
    without O_TRUNC. Links are followed only if `follow`, for files that the user names for reading.
    """
    writing = bool(flags & (os.O_WRONLY | os.O_RDWR))
    try:
        _check_kind(path, os.stat(path, follow_symlinks=follow), writing)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    file = os.open(path, flags | _SAFE | (0 if follow else _NOFOLLOW), 0o666)
    try:
        _check_kind(path, os.fstat(file), writing)
    except OSError:
        os.close(file)
        raise
    return file


def open_regular(
    path: str | os.PathLike[str], mode: str = "rb", *, follow: bool = False
) -> IO[Any]:
    """Open a regular file as `open` does, by `open_descriptor`; texts are UTF-8.

    Modes are "r", "a" and "w", for bytes followed by "b".
    """
    how = {"r": os.O_RDONLY, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
    file = open_descriptor(path, how.get(mode[0], os.O_WRONLY | os.O_CREAT), follow=follow)
    if mode[0] == "w":
        os.ftruncate(file, 0)
    return os.fdopen(file, mode, encoding=None if "b" in mode else "utf-8")


def read_file(
    path: str | os.PathLike[str], limit: int = MAX_BYTES, *, follow: bool = False
) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {limit}")
        data: bytes = file.read(size)
        return data


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a regular file in place, with the permissions that it has or a new one gets."""
    with open_regular(path, "wb") as file:
        file.write(data)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old or the new content, never a part.

    A link, folder, named pipe or device at that path is an OSError.
    """
    with suppress(FileNotFoundError):
        _check_kind(path, os.lstat(path))
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
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
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


def encode_numbers(values: Tensor) -> bytes:
    """Return the numbers' own bytes, little-endian."""
    array = values.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def read_numbers(data: bytes, like: Tensor) -> Tensor:
    """Return the numbers of bytes, flat, with the dtype and place of `like`."""
    kind = np.dtype(str(like.dtype).removeprefix("torch.")).newbyteorder("<")
    array = np.frombuffer(data, kind).astype(kind.newbyteorder("="))
    return torch.from_numpy(array).to(like.device)


def flatten(settings: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name.

    >>> flatten({"method": {"name": "fedavg"}, "seed": 0})
    {'method.name': 'fedavg', 'seed': 0}
    """
    if not isinstance(settings, Mapping):
        return {name: settings}
    parts = [flatten(v, f"{name}.{k}" if name else str(k)) for k, v in settings.items()]
    return {k: v for part in parts for k, v in part.items()}
