"""Dataset files: the loaders of files without a known sum, and archives, past their sums."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from pathlib import Path
from random import Random

import numpy as np

from trust.fuzz.mutate import edited, odd_json
from trust.fuzz.target import Target, chosen, kept_head, put, room, swapped, target
from tunefree.data import femnist, images, sources, wordpiece

LARGEST = 1 << 24  # what may be unpacked, here


def named(source, parts):
    """Return the parts as `read_files` does: each with the name of its file."""
    return list(zip(source.files, parts, strict=True))


def loader(module, load, parts, change=edited) -> Target:
    """A loader whose files are given instead of read."""
    parts = list(parts)

    def read(data: bytes) -> None:
        with swapped(module, read_files=lambda source, folder: named(source, put(parts, data))):
            load()

    return Target(read, chosen(parts), kept_head(change))


def idx(shape: tuple[int, ...], top: int) -> bytes:
    values = np.arange(np.prod(shape)) % top
    head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
    return head + values.astype(np.uint8).tobytes()


@target("file idx")
def _idx() -> Target:
    parts = [idx((3, 2, 2), 255), idx((3,), 10), idx((2, 2, 2), 255), idx((2,), 10)]
    return loader(images, images.mnist, parts)


@target("file cifar10")
def _cifar10() -> Target:
    return loader(images, images.cifar10, [bytes([7]) + bytes(3072)] * 6, _records)


@target("file cifar100")
def _cifar100() -> Target:
    return loader(images, images.cifar100, [bytes([7, 70]) + bytes(3072)] * 2, _records)


def _records(data: bytes, random: Random) -> bytes:
    new = edited(data, random)
    return new if random.random() < 0.5 else new[:2] + bytes(len(data) - 2)


@target("file vocabulary")
def _vocabulary() -> Target:
    text = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nfilm\n##s\n!\n"
    path = room() / "vocab.txt"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        wordpiece.WordPiece.read(path).encode(["Films! " + data[:40].decode("latin-1")], 8)

    return Target(read, [text], count=1_000_000)


@target("file femnist")
def _femnist() -> Target:
    rows = {"x": [[0] * 784], "y": [5]}  # whole numbers: shorter
    content = {"users": ["a", "b"], "num_samples": [1, 1], "user_data": {"a": rows, "b": rows}}

    def read(data: bytes) -> None:
        with swapped(femnist, read_file=lambda path, follow: data):
            images, labels, users = femnist._read_json(Path("given"))
        assert images.shape == (len(labels), 784)
        assert labels.shape == (len(users),)

    return Target(read, [json.dumps(content).encode()], odd_json)


def tarred(parts: dict[str, bytes], packing: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{packing}") as tar:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def mended_tar(data: bytes) -> bytes:
    """Give every header its sum again."""
    out = bytearray(data)
    for at in range(0, len(data) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\x00 " % sum(out[at : at + 512])
    return bytes(out)


def _members(seeds: list[bytes], change) -> Target:
    def read(data: bytes) -> None:
        with swapped(sources, MAX_BYTES=LARGEST):
            found = sources._read_archive_members(Path("given"), data, ["a", "d/b"])
        assert [type(part) for part in found] == [bytes, bytes]

    return Target(read, seeds, change)


@target("file tar")
def _tar() -> Target:
    inside = {"a": b"one", "d/b": b"two" * 300}
    seeds = [tarred(inside), tarred(inside, "gz"), tarred(inside, "xz")]
    kinds = b"0\x00123456789SLKxgX"

    def change(data: bytes, random: Random) -> bytes:
        if data[:2] in (b"\x1f\x8b", b"\xfd7") or len(data) < 1536:
            return edited(data, random)
        out = bytearray(data)
        at = random.choice((0, 1024))
        place = random.choice(((0, 100), (100, 24), (124, 12), (156, 1), (157, 100), (345, 155)))
        if place == (156, 1):
            out[at + 156] = random.choice(kinds)
            out[at + 157 : at + 159] = random.choice((b"a\x00", b"..", b"d/", b"/e"))
        else:
            begin, length = at + place[0], place[1]
            word = edited(bytes(out[begin : begin + length]), random)[:length]
            out[begin : begin + length] = word.ljust(length, b"\x00")
        return mended_tar(bytes(out)) if random.random() < 0.9 else edited(bytes(out), random)

    return _members(seeds, change)


@target("file zip")
def _zip() -> Target:
    def zipped(parts, kind=8) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", kind) as packed:
            for name, data in parts.items():
                packed.writestr(name, data)
        return out.getvalue()

    inside = {"a": b"one", "d/b": b"two" * 300}
    seeds = [zipped(inside, kind) for kind in (0, 8, 12, 14)]

    def change(data: bytes, random: Random) -> bytes:
        if random.random() < 0.7:
            return edited(data, random)
        names = [random.choice(("a", "/a", "../a", "d/b", "b", "d/")) for _ in range(3)]
        made = zipped(
            {n: edited(b"two" * 30, random) for n in dict.fromkeys(names)}, random.choice((0, 8))
        )
        return made

    return _members(seeds, change)


def _alone(suffix: str, pack) -> Target:
    source = sources.DatasetSource("given", ("given",), ())

    def read(data: bytes) -> None:
        with swapped(sources, _read_bytes=lambda path: data, MAX_BYTES=LARGEST):
            assert len(sources._read_file(source, "given", Path(f"given{suffix}"))) <= LARGEST

    return Target(read, [pack(b"one" * 400), pack(b"")])


target("file gz")(lambda: _alone(".gz", gzip.compress))
target("file xz")(lambda: _alone(".xz", lzma.compress))
