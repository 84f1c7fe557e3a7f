"""Find a dataset's files, or download them, and verify their checksums.

Files are searched for in the folder given, in $TUNEFREE_DATA and in the user's cache, and are
otherwise downloaded into the cache. In each place a file may be in the dataset's own folder or
directly, uncompressed or compressed (.gz, .xz). The checksum of the compressed or the uncompressed
form is verified: sha256, or md5 where the publisher gives nothing else. A form without a published
checksum (such as a file taken out of an archive) is verified by its parser only. Nothing is
unpacked to disk, and no pickle is ever read.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..core.errors import DataError, convert_errors
from ._archives import read_gzip, read_members, read_xz

DataFolder: TypeAlias = str | Path | None
"""Where the user keeps data; None stands for $TUNEFREE_DATA and the cache."""

_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": read_gzip,
    ".xz": read_xz,
}


@dataclass(frozen=True)
class DatasetFile:
    """One file of a dataset.

    Args:
        name: Its name, uncompressed.
        checksums: "sha256:..." or "md5:..." of each known form, by suffix: "" uncompressed, ".gz",
            ".xz".
        member: Its exact name inside the dataset's archive, if there is one.
    """

    name: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    member: str = ""


@dataclass(frozen=True)
class DatasetSource:
    """The files of a dataset, and where they come from.

    Args:
        name: The dataset.
        files: Its files.
        folders: Names that the dataset's folder may have; the first is used in the cache.
        url: URL of the archive, or of the folder that holds the files.
        suffix: Compression of the files at `url`: "", ".gz" or ".xz".
        archive: File name of the archive at `url`, a tar or zip; "" if the files are separate.
        archive_checksum: Known checksum of the archive.
        hint: How to get the files if there is no URL.
    """

    name: str
    files: tuple[DatasetFile, ...]
    folders: tuple[str, ...]
    url: str = ""
    suffix: str = ""
    archive: str = ""
    archive_checksum: str = ""
    hint: str = ""


def cache_folder() -> Path:
    """Return the folder that downloads go to."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        return Path.home() / ".cache" / "tunefree"
    return Path(pooch.os_cache("tunefree"))


def search_folders(folder: DataFolder) -> list[Path]:
    """Return the folders to search, in order."""
    out = []
    if folder is not None:
        given = Path(folder).expanduser()
        if not given.is_dir():
            raise DataError(f"load(folder=...) must be a folder that exists, got {str(folder)!r}.")
        out.append(given)
    if variable := os.environ.get("TUNEFREE_DATA"):
        named = Path(variable).expanduser()
        if not named.is_dir():
            raise DataError(f"$TUNEFREE_DATA must name a folder that exists, got {variable!r}.")
        out.append(named)
    return [*out, cache_folder()]


def read_files(source: DatasetSource, folder: DataFolder = None) -> list[tuple[str, bytes]]:
    """Return the name and the unpacked, verified content of each file of a dataset."""
    folders = search_folders(folder)
    found = [_find_file(source, file, folders) for file in source.files]
    if source.archive and not all(found):
        contents = _read_archive(source, folders)
    else:
        contents = [
            _read_file(path or _download(source, file.name + source.suffix, file.checksums), file)
            for path, file in zip(found, source.files, strict=True)
        ]
    return [(file.name, data) for file, data in zip(source.files, contents, strict=True)]


def locate(source: DatasetSource, folder: DataFolder = None) -> Path | None:
    """Return the path of a dataset's first file or archive, or None if any file is missing."""
    folders = search_folders(folder)
    found = [_find_file(source, file, folders) for file in source.files]
    return found[0] if all(found) else _find_archive(source, folders)


def _candidates(
    source: DatasetSource, name: str, folders: list[Path], suffixes: tuple[str, ...]
) -> Iterator[Path]:
    for folder in folders:
        for subfolder in (*source.folders, ""):
            for suffix in suffixes:
                path = folder / subfolder / (name + suffix)
                if path.is_file():
                    yield path


def _find_file(source: DatasetSource, file: DatasetFile, folders: list[Path]) -> Path | None:
    return next(_candidates(source, file.name, folders, tuple(_UNPACK)), None)


def _find_archive(source: DatasetSource, folders: list[Path]) -> Path | None:
    if not source.archive:
        return None
    return next(_candidates(source, source.archive, folders, ("",)), None)


def _read_archive(source: DatasetSource, folders: list[Path]) -> list[bytes]:
    path = _find_archive(source, folders)
    if path is None:
        path = _download(source, source.archive, {"": source.archive_checksum})
    data = _read_bytes(path)
    _verify(path, {source.archive_checksum: data} if source.archive_checksum else {})
    out = _read_archive_members(path, data, [file.member for file in source.files])
    for file, content in zip(source.files, out, strict=True):
        _verify(path, {file.checksums[""]: content} if "" in file.checksums else {}, file.member)
    return out


def _read_archive_members(path: Path, data: bytes, names: list[str]) -> list[bytes]:
    expected = f"it must be an archive that holds {', '.join(names)}"
    message = f"{path} is damaged or another version: {expected}"
    with convert_errors(message, hint="delete it and fetch it again"):
        return read_members(data, names)


def _read_file(path: Path, file: DatasetFile) -> bytes:
    packed = _read_bytes(path)
    suffix = path.name.removeprefix(Path(file.name).name)
    with convert_errors(f"{path} is damaged: it cannot be unpacked", hint="fetch it again"):
        content = _UNPACK[suffix](packed)
    forms = ((suffix, packed), ("", content))
    _verify(path, {file.checksums[form]: data for form, data in forms if form in file.checksums})
    return content


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def _verify(path: Path, expected: Mapping[str, bytes], member: str = "") -> None:
    """Accept data if one of its forms has the expected checksum, or if no checksum is known."""
    got = ""
    for checksum, data in expected.items():
        algorithm = checksum.partition(":")[0]
        got = f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"
        if got == checksum:
            return
    if expected:
        what = f"{member} in {path}" if member else str(path)
        raise DataError(
            f"{what} is damaged or another version: expected {checksum}, got {got}; delete it and "
            "fetch it again."
        )


def _download(source: DatasetSource, name: str, checksums: Mapping[str, str]) -> Path:
    """Download a file into the cache; on failure, say which file to fetch and where to put it."""
    target = cache_folder() / source.folders[0]
    if not source.url:
        raise DataError(
            f"{name} of {source.name!r} was not found; {source.hint} Put it into {target}, or into "
            "a folder that folder=... or $TUNEFREE_DATA names."
        )
    url = source.url if source.archive else f"{source.url}{name}"
    expected = checksums.get("" if source.archive else source.suffix) or None
    try:
        import pooch

        return Path(pooch.retrieve(url, known_hash=expected, fname=name, path=target))
    except Exception as error:  # the network can fail in any way; the remedy is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{name} of {source.name!r} was not found and could not be fetched from {url} "
            f"({reason}); fetch it yourself and put it into {target}, or into a folder that "
            "folder=... or $TUNEFREE_DATA names."
        ) from error
