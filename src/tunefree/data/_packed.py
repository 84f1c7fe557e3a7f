"""Packed files, opened in memory: nothing is written, no name in an archive is followed.

Whatever is unpacked has at most `LARGEST` bytes, links and special members are passed over, and a
number that a header declares is compared with what is there before anything is made of it.
"""

import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from ..core.errors import DataError
from ._arrays import Array

LARGEST = 1 << 30  # bytes of one unpacked file
_PIECE = 1 << 20
_BLOCK = 512  # of a tar
_NPY = re.compile(
    rb"\{'descr': '([|<])([bui])([1248])', 'fortran_order': False, "
    rb"'shape': \((\d{1,12},|\d{1,12}(?:, \d{1,12}){1,3})\), \} *\n"
)


def gunzip(packed: bytes) -> bytes:
    """Return the content of a gzip file."""
    return _streams(packed, lambda: zlib.decompressobj(wbits=31))


def unxz(packed: bytes) -> bytes:
    """Return the content of an xz file."""
    return _streams(packed, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST))


def _streams(packed: bytes, make: Callable[[], object]) -> bytes:
    """Unpack one stream after the other, piece by piece."""
    out, size = [], 0
    while packed:
        one, done = make(), False
        while not done:
            part = one.decompress(packed, _PIECE)  # type: ignore[attr-defined]
            packed = getattr(one, "unconsumed_tail", b"")
            done = one.eof  # type: ignore[attr-defined]
            if not (part or packed or done):
                raise EOFError("it is cut short")
            out.append(part)
            size = _within(size + len(part))
        packed = one.unused_data.lstrip(b"\x00")  # type: ignore[attr-defined]
    return b"".join(out)


def _within(size: int) -> int:
    if size > LARGEST:
        raise DataError(f"A packed file must hold at most {LARGEST:,} bytes, but holds more.")
    return size


def members(data: bytes, names: list[str]) -> list[bytes]:
    """Return members of a zip, or of a tar that may be packed, by their exact names."""
    found = (_unzip if zipfile.is_zipfile(io.BytesIO(data)) else _untar)(data, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise KeyError(f"no file {missing[0]}")
    return [found[name] for name in names]


def _unzip(data: bytes, names: list[str]) -> dict[str, bytes]:
    out = {}
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for name in names:
            _within(packed.getinfo(name).file_size)
            with packed.open(name) as file:
                parts, size = [], 0
                while part := file.read(_PIECE):
                    parts.append(part)
                    size = _within(size + len(part))
            out[name] = b"".join(parts)
    return out


def _untar(data: bytes, names: list[str]) -> dict[str, bytes]:
    if data[:2] == b"\x1f\x8b":
        data = gunzip(data)
    elif data[:6] == b"\xfd7zXZ\x00":
        data = unxz(data)
    return {name: data[a:b] for name, a, b in _files(data) if name in names}


def _files(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the plain files of a tar: name, begin and end."""
    at = 0
    while at + _BLOCK <= len(data) and any(data[at : at + _BLOCK]):
        head = data[at : at + _BLOCK]
        summed = sum(head) - sum(head[148:156]) + 8 * ord(" ")
        if _octal(head[148:156]) != summed:
            raise ValueError("the head of a member has a wrong sum")
        size, begin = _octal(head[124:136]), at + _BLOCK
        if begin + size > len(data):
            raise ValueError("a member is cut short")
        if head[156:157] in (b"0", b"\x00"):
            parts = [head[345:500]] if head[257:263] == b"ustar\x00" else []
            words = [part.split(b"\x00")[0].decode("latin-1") for part in (*parts, head[:100])]
            yield "/".join(word for word in words if word), begin, begin + size
        at = begin + -(-size // _BLOCK) * _BLOCK


def _octal(field: bytes) -> int:
    text = field.strip(b"\x00 ")
    if not re.fullmatch(rb"[0-7]{0,12}", text):
        raise ValueError("the head of a member has a number that is none")
    return int(text or b"0", 8)


def npz(data: bytes, names: tuple[str, ...]) -> dict[str, Array]:
    """Return arrays of whole numbers from an npz file, which may hold nothing else by these names.

    >>> stored = io.BytesIO()
    >>> np.savez(stored, a=np.array([[1, 2]], np.uint8))
    >>> npz(stored.getvalue(), ("a",))["a"].tolist()
    [[1, 2]]
    """
    found = members(data, [f"{name}.npy" for name in names])
    return {name: _npy(part) for name, part in zip(names, found, strict=True)}


def _npy(data: bytes) -> Array:
    begin = 10 + int.from_bytes(data[8:10], "little")
    head = _NPY.fullmatch(data[10:begin])
    if data[:8] != b"\x93NUMPY\x01\x00" or head is None:
        raise ValueError("an array must be of whole numbers, in C order, of at most four axes")
    kind = np.dtype(b"".join(head.groups()[:3]).decode())
    shape = tuple(int(word) for word in head[4].split(b",") if word)
    if len(data) - begin != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(data) - begin} bytes")
    return np.frombuffer(data, kind, offset=begin).reshape(shape)
