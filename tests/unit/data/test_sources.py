import gzip
import hashlib
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pooch
import pytest

from tunefree.core.errors import DataError
from tunefree.data import sources
from tunefree.data.sources import SOURCES, DatasetSource, locate, read_files

CONTENT = b"some rows\n"


def digest(data, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, data).hexdigest()}"


SINGLE = DatasetSource(
    name="demo",
    files=("rows.txt",),
    folders=("demo", "DEMO/raw"),
    url="https://example.org/demo/",
    checksums={"rows.txt": digest(CONTENT)},
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(sources, "cache_folder", lambda: folder)
    monkeypatch.delenv("TUNEFREE_DATA", raising=False)

    def no_network(url, **settings):
        raise OSError("no route")

    monkeypatch.setattr(pooch, "retrieve", no_network)
    return folder


def read(source, folder=None):
    return [data for _, data in read_files(source, folder)]


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("sub", ["demo", "DEMO/raw", "."])
@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_found_in_a_folder_in_any_packing(tmp_path, sub, suffix, pack):
    path = put(tmp_path / "here" / sub / f"rows.txt{suffix}", pack(CONTENT))
    assert read(SINGLE, tmp_path / "here") == [CONTENT]
    assert locate(SINGLE, tmp_path / "here") == path


def test_folder_then_variable_then_cache(tmp_path, monkeypatch, cache):
    source = DatasetSource(name="demo", files=("rows.txt",), folders=("demo",))
    put(cache / "demo/rows.txt", b"cache")
    assert read(source) == [b"cache"]
    put(tmp_path / "variable/rows.txt", b"variable")
    monkeypatch.setenv("TUNEFREE_DATA", str(tmp_path / "variable"))
    assert read(source) == [b"variable"]
    put(tmp_path / "folder/rows.txt", b"folder")
    assert read(source, tmp_path / "folder") == [b"folder"]
    assert read(source, str(tmp_path)) == [b"variable"]


def test_download_goes_to_the_cache_with_its_sum(monkeypatch, cache):
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash))
        return str(put(Path(path) / fname, CONTENT))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert read(SINGLE) == [CONTENT]
    assert asked == [("https://example.org/demo/rows.txt", digest(CONTENT))]
    assert (cache / "demo/rows.txt").exists()
    assert read(SINGLE) == [CONTENT]
    assert len(asked) == 1


def test_no_network_says_what_to_fetch_and_where_to_put_it(cache):
    assert locate(SINGLE) is None
    with pytest.raises(DataError) as caught:
        read(SINGLE)
    assert str(caught.value) == (
        "rows.txt of 'demo' was not found and could not be fetched from "
        f"https://example.org/demo/rows.txt (no route); fetch it yourself and put it into "
        f"{cache / 'demo'}, or into a folder that folder=... or $TUNEFREE_DATA names."
    )


def test_without_an_address_the_hint_is_given(cache):
    source = DatasetSource(name="demo", files=("r",), folders=("demo",), hint="it is made by hand.")
    with pytest.raises(DataError) as caught:
        read(source)
    assert str(caught.value) == (
        f"r of 'demo' was not found; it is made by hand. Put it into {cache / 'demo'}, or into a "
        "folder that folder=... or $TUNEFREE_DATA names."
    )


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".xz", lzma.compress)])
def test_another_version_is_refused(tmp_path, suffix, pack):
    path = put(tmp_path / f"rows.txt{suffix}", pack(b"other"))
    with pytest.raises(DataError) as caught:
        read(SINGLE, tmp_path)
    assert str(caught.value) == (
        f"{path} is damaged or another version: expected {digest(CONTENT)}, got "
        f"{digest(b'other')}; delete it and fetch it again."
    )


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_cut_short_is_refused(tmp_path, suffix, pack):
    put(tmp_path / f"rows.txt{suffix}", pack(CONTENT)[:-6])
    with pytest.raises(DataError, match=r"is damaged: it cannot be unpacked"):
        read(SINGLE, tmp_path)
    put(tmp_path / f"rows.txt{suffix}", b"not packed at all")
    with pytest.raises(DataError, match=r"is damaged: it cannot be unpacked"):
        read(SINGLE, tmp_path)


def test_a_packed_sum_is_enough(tmp_path):
    packed = gzip.compress(CONTENT, mtime=0)
    source = DatasetSource(
        "demo", ("rows.txt",), ("demo",), checksums={"rows.txt.gz": digest(packed, "md5")}
    )
    put(tmp_path / "rows.txt.gz", packed)
    assert read(source, tmp_path) == [CONTENT]
    put(tmp_path / "rows.txt.gz", gzip.compress(CONTENT, mtime=1))
    with pytest.raises(DataError, match=r"expected md5:"):
        read(source, tmp_path)


def tar(members, mode="w:gz"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def archived(file, data):
    return DatasetSource(
        name="demo",
        files=("a.txt", "b.txt"),
        folders=("demo",),
        url="https://example.org/" + file,
        members=("in/a", "in/b"),
        checksums={file: digest(data), "a.txt": digest(b"A")},
    )


@pytest.mark.parametrize(("file", "pack"), [("d.tar.gz", tar), ("d.zip", zipped)])
def test_archives_are_read_by_member_and_nothing_is_written(tmp_path, file, pack):
    data = pack({"../escape": b"!", "in/b": b"B", "in/a": b"A"})
    path = put(tmp_path / "here" / "demo" / file, data)
    source = archived(file, data)
    assert read(source, tmp_path / "here") == [b"A", b"B"]
    assert locate(source, tmp_path / "here") == path
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    put(tmp_path / "here/a.txt", b"A")
    put(tmp_path / "here/b.txt", b"B, unpacked")
    assert read(source, tmp_path / "here") == [b"A", b"B, unpacked"]


def test_bad_archives(tmp_path):
    def refused(data, expected):
        put(tmp_path / "d.tar.gz", data)
        with pytest.raises(DataError, match=expected):
            read(archived("d.tar.gz", data), tmp_path)

    good = tar({"in/a": b"A", "in/b": b"B"})
    refused(tar({"in/a": b"A"}), r"must be an archive that holds in/a, in/b")
    refused(good[:-20], r"must be an archive that holds in/a, in/b")
    refused(b"nonsense", r"must be an archive that holds in/a, in/b")
    refused(tar({"in/a": b"X", "in/b": b"B"}), r"in/a in .* is damaged or another version")
    put(tmp_path / "d.tar.gz", good)
    with pytest.raises(DataError, match=r"d.tar.gz is damaged or another version: expected"):
        read(archived("d.tar.gz", b"other"), tmp_path)
    with pytest.raises(DataError, match=r"could not be fetched from https://example.org/d.zip"):
        read(archived("d.zip", b""))


@pytest.mark.parametrize("pack", [tar, lambda members: tar(members, "w:"), zipped])
def test_members_of_archives_have_a_largest_size(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(sources, "MAX_BYTES", 20_000)
    data = pack({"in/a": bytes(20_001), "in/b": b"B"})
    put(tmp_path / "d.tar", data)
    with pytest.raises(DataError, match="must hold at most 20,000 bytes"):
        read(archived("d.tar", data), tmp_path)


def test_folders_must_exist(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"load\(folder=...\) must be a folder that exists, got"):
        read(SINGLE, tmp_path / "nowhere")
    monkeypatch.setenv("TUNEFREE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"TUNEFREE_DATA must name a folder that exists, got"):
        read(SINGLE)


def test_md5_alone_is_used_only_where_it_is_what_is_published():
    ours = ("fashion-mnist", "mnist-writers", "cifar10-subset", "a9a", "sst2", "shakespeare")
    for source in map(SOURCES.get, ours):
        assert all(value.startswith("sha256:") for value in source.checksums.values())
        assert set(source.files) <= {name.removesuffix(".xz") for name in source.checksums}
