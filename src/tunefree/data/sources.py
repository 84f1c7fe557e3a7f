"""Find a dataset's files, or fetch them, and check that they are the right ones.

Looked for in the folder given, then in $TUNEFREE_DATA, then in the user's cache; then fetched from
their public home into the cache. In each place a file may stand in the dataset's own folder or
directly, as it is or packed (.gz, .xz). Whatever is read is compared with the known sum of its
packed or unpacked form: sha256, or the md5 that its publisher gives where that is all there is. A
form whose sum nobody published (say, an unpacked member of an archive) is checked by its parser
alone. Nothing is unpacked to disk, and no pickle is ever read.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..core.errors import DataError, convert_errors
from ._packed import gunzip, members, unxz

Folder: TypeAlias = str | Path | None
"""Where the user keeps data; None leaves it to $TUNEFREE_DATA and the cache."""

_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gunzip,
    ".xz": unxz,
}


@dataclass(frozen=True)
class Part:
    """One file of a dataset.

    Args:
        file: Its name, unpacked.
        sums: "sha256:..." or "md5:..." of each known form, by suffix: "" unpacked, ".gz", ".xz".
        member: Its exact name inside the archive, where the dataset comes as one.
    """

    file: str
    sums: Mapping[str, str] = field(default_factory=dict)
    member: str = ""


@dataclass(frozen=True)
class DatasetSource:
    """The files of a dataset, and where they come from.

    Args:
        name: The dataset.
        parts: Its files.
        folders: Names that the dataset's folder may have; the first is used in the cache.
        url: Address of the archive, or of the folder that holds the parts.
        suffix: Packing of the parts at `url`.
        archive: File name of the archive at `url`, a tar or zip; "" where parts come singly.
        archive_sum: Known sum of the archive.
        hint: How to get the files where there is no address.
    """

    name: str
    parts: tuple[Part, ...]
    folders: tuple[str, ...]
    url: str = ""
    suffix: str = ""
    archive: str = ""
    archive_sum: str = ""
    hint: str = ""


def cache() -> Path:
    """Return the folder that downloads go to."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        return Path.home() / ".cache" / "tunefree"
    return Path(pooch.os_cache("tunefree"))


def places(folder: Folder) -> list[Path]:
    """Return the folders to look in, in order."""
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
    return [*out, cache()]


def read(source: DatasetSource, folder: Folder = None) -> list[bytes]:
    """Return the unpacked, checked content of each part of a dataset."""
    where = places(folder)
    if source.archive:
        return _read_archived(source, where)
    out = []
    for part in source.parts:
        path = _find(source, part, where) or _fetch(source, part.file + source.suffix, part.sums)
        out.append(_read_part(path, part))
    return out


def locate(source: DatasetSource, folder: Folder = None) -> Path | None:
    """Return where a dataset's first file is, or None if any file is missing."""
    where = places(folder)
    found = [_find(source, part, where) for part in source.parts]
    if all(found):
        return found[0]
    return next(_candidates(source, source.archive, where, ("",)), None) if source.archive else None


def _candidates(
    source: DatasetSource, file: str, where: list[Path], suffixes: tuple[str, ...]
) -> Iterator[Path]:
    for place in where:
        for sub in (*source.folders, ""):
            for suffix in suffixes:
                path = place / sub / (file + suffix)
                if path.is_file():
                    yield path


def _find(source: DatasetSource, part: Part, where: list[Path]) -> Path | None:
    return next(_candidates(source, part.file, where, tuple(_UNPACK)), None)


def _read_archived(source: DatasetSource, where: list[Path]) -> list[bytes]:
    found = [_find(source, part, where) for part in source.parts]
    if all(found):
        return [
            _read_part(path, part) for path, part in zip(found, source.parts, strict=True) if path
        ]
    path = next(_candidates(source, source.archive, where, ("",)), None)
    if path is None:
        path = _fetch(source, source.archive, {"": source.archive_sum})
    data = _bytes(path)
    _compare(path, {source.archive_sum: data} if source.archive_sum else {})
    out = _members(path, data, [part.member for part in source.parts])
    for part, content in zip(source.parts, out, strict=True):
        _compare(path, {part.sums[""]: content} if "" in part.sums else {}, part.member)
    return out


def _members(path: Path, data: bytes, names: list[str]) -> list[bytes]:
    """Read members by their exact names, so that no path in the archive is ever followed."""
    wanted = f"it must be an archive that holds {', '.join(names)}"
    says = f"{path} is damaged or another version: {wanted}"
    with convert_errors(says, hint="delete it and fetch it again"):
        return members(data, names)


def _read_part(path: Path, part: Part) -> bytes:
    packed = _bytes(path)
    suffix = path.name.removeprefix(Path(part.file).name)
    with convert_errors(f"{path} is damaged: it cannot be unpacked", hint="fetch it again"):
        plain = _UNPACK[suffix](packed)
    forms = ((suffix, packed), ("", plain))
    known = {part.sums[form]: data for form, data in forms if form in part.sums}
    _compare(path, known)
    return plain


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def _compare(path: Path, known: Mapping[str, bytes], member: str = "") -> None:
    """Accept a file if any of its forms has the known sum, or if none is known."""
    got = ""
    for expected, data in known.items():
        kind = expected.partition(":")[0]
        got = f"{kind}:{hashlib.new(kind, data, usedforsecurity=False).hexdigest()}"
        if got == expected:
            return
    if known:
        what = f"{member} in {path}" if member else str(path)
        raise DataError(
            f"{what} is damaged or another version: expected {expected}, got {got}; delete it and "
            "fetch it again."
        )


def _fetch(source: DatasetSource, file: str, sums: Mapping[str, str]) -> Path:
    """Download into the cache, or say what to fetch and where to put it."""
    target = cache() / source.folders[0]
    if not source.url:
        raise DataError(
            f"{file} of {source.name!r} was not found; {source.hint} Put it into {target}, or into "
            "a folder that folder=... or $TUNEFREE_DATA names."
        )
    url = source.url if source.archive else f"{source.url}{file}"
    expected = sums.get("" if source.archive else source.suffix) or None
    try:
        import pooch

        return Path(pooch.retrieve(url, known_hash=expected, fname=file, path=target))
    except Exception as error:  # the network can fail in any way; the remedy is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{file} of {source.name!r} was not found and could not be fetched from {url} "
            f"({reason}); fetch it yourself and put it into {target}, or into a folder that "
            "folder=... or $TUNEFREE_DATA names."
        ) from error
