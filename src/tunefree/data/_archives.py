"""Read compressed files and archives in memory; nothing is written, no path in them is followed.

Unpacked content is limited to `MAX_BYTES`, and links and special members are skipped.
"""

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence

from ..core.errors import DataError

MAX_BYTES = 1 << 30  # of one unpacked file
_PIECE = 1 << 20


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
    out = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.name in names and member.isreg() and (file := archive.extractfile(member)):
                out[member.name] = file.read()
    return out
