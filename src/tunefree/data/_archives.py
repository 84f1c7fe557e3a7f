"""Read compressed files and archives in memory; nothing is written, no path in them is followed.

Unpacked content is limited to `MAX_BYTES`, links and special members are skipped, and the sizes
that a header declares are compared with the data before memory is allocated for them.
"""

import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..core.errors import DataError
from ._arrays import Array

MAX_BYTES = 1 << 30  # of one unpacked file
_PIECE = 1 << 20
_TAR_BLOCK = 512
_NPY_HEADER = re.compile(
    rb"\{'descr': '([|<])([bui])([1248])', 'fortran_order': False, "
    rb"'shape': \((\d{1,12},|\d{1,12}(?:, \d{1,12}){1,3})\), \} *\n"
)


def read_gzip(packed: bytes) -> bytes:
    """Return the content of a gzip file."""
    return _decompress(packed, lambda: zlib.decompressobj(wbits=31))


def read_xz(packed: bytes) -> bytes:
    """Return the content of an xz file."""
    return _decompress(packed, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_BYTES))


def _decompress(packed: bytes, make_decompressor: Callable[[], object]) -> bytes:
    """Decompress concatenated streams piece by piece, so that a bomb is refused early."""
    out, size = [], 0
    while packed:
        stream, done = make_decompressor(), False
        while not done:
            piece = stream.decompress(packed, _PIECE)  # type: ignore[attr-defined]
            packed = getattr(stream, "unconsumed_tail", b"")
            done = stream.eof  # type: ignore[attr-defined]
            if not (piece or packed or done):
                raise EOFError("it is cut short")
            out.append(piece)
            size = _check_size(size + len(piece))
        packed = stream.unused_data.lstrip(b"\x00")  # type: ignore[attr-defined]
    return b"".join(out)


def _check_size(size: int) -> int:
    if size > MAX_BYTES:
        raise DataError(f"A packed file must hold at most {MAX_BYTES:,} bytes, but holds more.")
    return size


def read_members(data: bytes, names: Sequence[str]) -> list[bytes]:
    """Return the members of a zip, or of a tar that may be compressed, by their exact names."""
    found = (_read_zip if zipfile.is_zipfile(io.BytesIO(data)) else _read_tar)(data, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise KeyError(f"no file {missing[0]}")
    return [found[name] for name in names]


def _read_zip(data: bytes, names: Sequence[str]) -> dict[str, bytes]:
    out = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in names:
            _check_size(archive.getinfo(name).file_size)
            with archive.open(name) as file:
                out[name] = file.read(MAX_BYTES + 1)
            _check_size(len(out[name]))
    return out


def _read_tar(data: bytes, names: Sequence[str]) -> dict[str, bytes]:
    if data[:2] == b"\x1f\x8b":
        data = read_gzip(data)
    elif data[:6] == b"\xfd7zXZ\x00":
        data = read_xz(data)
    return {name: data[a:b] for name, a, b in _list_tar(data) if name in names}


def _list_tar(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield name, first byte and end of each regular file of a tar."""
    at = 0
    while at + _TAR_BLOCK <= len(data) and any(data[at : at + _TAR_BLOCK]):
        head = data[at : at + _TAR_BLOCK]
        checksum = sum(head) - sum(head[148:156]) + 8 * ord(" ")
        if _parse_octal(head[148:156]) != checksum:
            raise ValueError("the header of a member has a wrong checksum")
        size, begin = _parse_octal(head[124:136]), at + _TAR_BLOCK
        if begin + size > len(data):
            raise ValueError("a member is cut short")
        if head[156:157] in (b"0", b"\x00"):
            prefix = [head[345:500]] if head[257:263] == b"ustar\x00" else []
            words = [part.split(b"\x00")[0].decode("latin-1") for part in (*prefix, head[:100])]
            yield "/".join(word for word in words if word), begin, begin + size
        at = begin + -(-size // _TAR_BLOCK) * _TAR_BLOCK


def _parse_octal(field: bytes) -> int:
    text = field.strip(b"\x00 ")
    if not re.fullmatch(rb"[0-7]{0,12}", text):
        raise ValueError("the header of a member has a malformed number")
    return int(text or b"0", 8)


def read_npz(data: bytes, names: tuple[str, ...]) -> dict[str, Array]:
    """Return integer arrays of an npz file by name; no other kind of array is read.

    >>> stored = io.BytesIO()
    >>> np.savez(stored, a=np.array([[1, 2]], np.uint8))
    >>> read_npz(stored.getvalue(), ("a",))["a"].tolist()
    [[1, 2]]
    """
    found = read_members(data, [f"{name}.npy" for name in names])
    return {name: _read_npy(part) for name, part in zip(names, found, strict=True)}


def _read_npy(data: bytes) -> Array:
    begin = 10 + int.from_bytes(data[8:10], "little")
    head = _NPY_HEADER.fullmatch(data[10:begin])
    if data[:8] != b"\x93NUMPY\x01\x00" or head is None:
        raise ValueError("an array must be of integers, in C order, with at most four axes")
    dtype = np.dtype(b"".join(head.groups()[:3]).decode())
    shape = tuple(int(word) for word in head[4].split(b",") if word)
    if len(data) - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(data) - begin} bytes")
    return np.frombuffer(data, dtype, offset=begin).reshape(shape)
