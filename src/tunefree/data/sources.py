"""Find a dataset's files, or download them, and verify their checksums.

Files are searched for in the folder given, in $TUNEFREE_DATA and in the user's cache, and are
otherwise downloaded into the cache. In each place a file may be in the dataset's own folder or
directly, uncompressed or compressed (.gz, .xz). The checksum of the compressed or the uncompressed
form is verified: sha256, or md5 where the publisher gives nothing else. A form without a published
checksum (such as a file taken out of an archive) is verified by its parser only. Nothing is
unpacked to disk, links and special members of archives are skipped, no pickle is ever read, and an
unpacked file has at most `MAX_BYTES`.
"""

import hashlib
import io
import lzma
import os
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, TypeAlias

from ..core.cache import cache_folder
from ..core.errors import DataError, convert_errors, first_line
from ..core.files import read_file

DataFolder: TypeAlias = str | Path | None
"""Where the user keeps data; None stands for $TUNEFREE_DATA and the cache."""

MAX_BYTES = 1 << 30  # of one unpacked file
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_BYTES),
}


@dataclass(frozen=True)
class DatasetSource:
    """What a dataset is, and where its files come from: a row of files/datasets.toml.

    Args:
        name: The dataset.
        files: Names of its files, uncompressed; none if it is embedded, made, or found by `find`.
        folders: Names that the dataset's folder may have; the first is used in the cache.
        licence: Terms of use, and the reference to cite.
        load: The function that reads it, as "MODULE:FUNCTION" in this package.
        find: A function that says where it is, if it has files of other names.
        rows: Number of samples, training + test.
        classes: Number of classes.
        size: Size of the files.
        owners: The natural owners, if there are some.
        url: URL of the archive, or of the folder that holds the files.
        suffix: Compression of the files at `url`: "", ".gz" or ".xz".
        members: Exact names of the files in the archive (a tar or zip), if there is one at `url`.
        checksums: "sha256:..." or "md5:..." of each known form of a file and of the archive, by
            file name with suffix.
        hint: How to get the files if there is no URL.
    """

    name: str
    files: Sequence[str] = ()
    folders: Sequence[str] = ()
    licence: str = ""
    load: str = ""
    find: str = ""
    rows: str = ""
    classes: str = ""
    size: str = ""
    owners: str = ""
    url: str = ""
    suffix: str = ""
    members: Sequence[str] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""

    @property
    def archive(self) -> str:
        """File name of the archive; "" if the files are separate."""
        return self.url.rpartition("/")[2] if self.members else ""


_TABLE = package_files(__package__).joinpath("files/datasets.toml").read_text("utf-8")
SOURCES = {name: DatasetSource(name, **facts) for name, facts in tomllib.loads(_TABLE).items()}


def search_folders(folder: DataFolder) -> list[Path]:
    """Return the folders to search, in order."""
    out = []
    if folder is not None:
        out.append(Path(folder).expanduser())
        if not out[-1].is_dir():
            raise DataError(f"load(folder=...) must be a folder that exists, got {str(folder)!r}.")
    if variable := os.environ.get("TUNEFREE_DATA"):
        out.append(Path(variable).expanduser())
        if not out[-1].is_dir():
            raise DataError(f"$TUNEFREE_DATA must name a folder that exists, got {variable!r}.")
    return [*out, cache_folder()]


def read_files(source: DatasetSource, folder: DataFolder = None) -> list[tuple[str, bytes]]:
    """Return the name and the unpacked, verified content of each file of a dataset."""
    folders = search_folders(folder)
    found = [_find(source, file, folders) for file in source.files]
    if source.archive and not all(found):
        path = _find(source, source.archive, folders, ("",)) or _download(source, source.archive)
        contents = _read_archive(source, path)
    else:
        contents = [
            _read_file(source, file, path or _download(source, file + source.suffix))
            for file, path in zip(source.files, found, strict=True)
        ]
    return list(zip(source.files, contents, strict=True))


def locate(source: DatasetSource, folder: DataFolder = None) -> Path | None:
    """Return the path of a dataset's first file or archive, or None if any file is missing."""
    folders = search_folders(folder)
    found = [_find(source, file, folders) for file in source.files]
    if all(found):
        return found[0]
    return _find(source, source.archive, folders, ("",)) if source.archive else None


def _find(
    source: DatasetSource,
    name: str,
    folders: list[Path],
    suffixes: Iterable[str] = ("", *_DECOMPRESSORS),
) -> Path | None:
    for folder in folders:
        for subfolder in (*source.folders, ""):
            for suffix in suffixes:
                path = folder / subfolder / (name + suffix)
                if path.is_file():
                    return path
    return None


def _read_archive(source: DatasetSource, path: Path) -> list[bytes]:
    data = _read_bytes(path)
    _verify(source, {source.archive: data}, str(path))
    out = _read_archive_members(path, data, source.members)
    for file, member, content in zip(source.files, source.members, out, strict=True):
        _verify(source, {file: content}, f"{member} in {path}")
    return out


def _read_archive_members(path: Path, data: bytes, names: Sequence[str]) -> list[bytes]:
    """Return the members of a zip, or of a tar that may be compressed, by their exact names."""
    expected = f"it must be an archive that holds {', '.join(names)}"
    message = f"{path} is damaged or another version: {expected}"
    with convert_errors(message, hint="delete it and fetch it again"):
        found = (_read_zip if zipfile.is_zipfile(io.BytesIO(data)) else _read_tar)(data, names)
        missing = [name for name in names if name not in found]
        if missing:
            raise KeyError(f"no file {missing[0]}")
    return [found[name] for name in names]


def _read_file(source: DatasetSource, file: str, path: Path) -> bytes:
    packed = _read_bytes(path)
    suffix = path.name.removeprefix(Path(file).name)
    with convert_errors(f"{path} is damaged: it cannot be unpacked", hint="fetch it again"):
        content = _unpack(packed, suffix)
    _verify(source, {file + suffix: packed, file: content}, str(path))
    return content


def _read_bytes(path: Path) -> bytes:
    try:
        return read_file(path, 4 * MAX_BYTES, follow=True)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def _verify(source: DatasetSource, forms: Mapping[str, bytes], what: str) -> None:
    """Accept data if one of its forms has the expected checksum, or if no checksum is known."""
    known = {source.checksums[name]: forms[name] for name in forms if name in source.checksums}
    got = ""
    for checksum, data in known.items():
        algorithm = checksum.partition(":")[0]
        got = f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"
        if got == checksum:
            return
    if known:
        raise DataError(
            f"{what} is damaged or another version: expected {checksum}, got {got}; delete it and "
            "fetch it again."
        )


def _download(source: DatasetSource, name: str) -> Path:
    """Download a file into the cache; on failure, say which file to fetch and where to put it."""
    target = cache_folder() / source.folders[0]
    where = f"{target}, or into a folder that folder=... or $TUNEFREE_DATA names"
    missing = f"{name} of {source.name!r} was not found"
    if not source.url:
        raise DataError(f"{missing}; {source.hint} Put it into {where}.")
    url = source.url if source.archive else source.url + name
    try:
        import pooch  # type: ignore[import-untyped]

        checksum = source.checksums.get(name)
        return Path(pooch.retrieve(url, known_hash=checksum, fname=name, path=target))
    except Exception as error:  # the network can fail in any way; the remedy is the same
        reason = f"could not be fetched from {url} ({first_line(error)})"
        remedy = f"fetch it yourself and put it into {where}"
        raise DataError(f"{missing} and {reason}; {remedy}.") from error


def _unpack(packed: bytes, suffix: str) -> bytes:
    """Decompress concatenated streams; one that is too long is refused before it is read to end."""
    if not suffix:
        return packed
    out, size = [], 0
    while packed:
        stream = _DECOMPRESSORS[suffix]()
        out.append(stream.decompress(packed, MAX_BYTES + 1 - size))
        size = _check_size(size + len(out[-1]))
        if not stream.eof:
            raise EOFError("it is cut short")
        packed = stream.unused_data.lstrip(b"\x00")
    return b"".join(out)


def _check_size(size: int) -> int:
    if size > MAX_BYTES:
        raise DataError(f"A packed file must hold at most {MAX_BYTES:,} bytes, but holds more.")
    return size


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
        data = _unpack(data, ".gz")
    elif data[:6] == b"\xfd7zXZ\x00":
        data = _unpack(data, ".xz")
    out = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.name in names and member.isreg() and (file := archive.extractfile(member)):
                _check_size(member.size)
                out[member.name] = file.read()
    return out
