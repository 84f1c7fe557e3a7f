"""Archives and paths cannot leave their folder, bombs do not go off, and nothing is ever run."""

import ast
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

import tunefree as tf
from helpers import fit
from trust.fuzz.files import tarred
from tunefree.core.errors import CheckpointError, DataError
from tunefree.data import sources
from tunefree.flower.memory import MemoryStore
from tunefree.study.candidates import folder_name
from tunefree.training.folder import RunFolder

SOURCE = Path(tf.__file__).parent
MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib")
CALLS = ("eval", "exec", "compile", "__import__")
# The source of GPU kernels, which the same process writes from a table of operations.
KERNELS = "models/gpu/_triton_epilogue.py", "exec(compile(text, name, 'exec'), space)"


def calls(path):
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((f"import {alias.name}", node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"import {node.module}", node
        elif isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def wrong(path, name, node):
    words = name.removeprefix("import ").split(".")
    if name.startswith("import "):
        return words[0] in MODULES
    given = {k.arg: ast.unparse(k.value) for k in getattr(node, "keywords", ())}
    if name in CALLS:
        text, (place, known) = ast.unparse(node), KERNELS
        is_kernel = path == SOURCE / place and text in known
        return text != "exec('')" and not is_kernel  # nothing is run
    if name.endswith("np.load") or name == "numpy.load":
        return given.get("allow_pickle") != "False"
    if name == "torch.load":
        return given.get("weights_only") != "True"
    if words[-1] in ("extractall", "extract", "unpack_archive"):
        return True
    return name in ("os.system", "os.popen") or given.get("shell") == "True"


def test_nothing_that_could_run_is_read():
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, node in calls(path)
        if wrong(path, name, node)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from yaml import load",
        "eval('1')",
        KERNELS[1],
        "torch.load('x')",
        "np.load('x')",
        "tar.extractall()",
        "subprocess.run('x', shell=True)",
    ],
)
def test_such_a_line_would_be_found(text, tmp_path):
    path = tmp_path / "some.py"
    path.write_text(text)
    assert any(wrong(path, name, node) for name, node in calls(path))


def linked(kind, to):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.type, info.linkname = kind, to
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("to", ["/etc/passwd", "../../etc/passwd", "a"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_in_an_archive_are_not_followed(kind, to):
    with pytest.raises(DataError, match="no file a"):
        sources._read_archive_members(Path("given"), linked(kind, to), ["a"])


def test_nothing_is_written_whatever_an_archive_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = {"../out": b"1", "/tmp/out": b"2", "a": b"3"}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, data in evil.items():
            file.writestr(name, data)
    for data in (packed.getvalue(), tarred(evil), tarred(evil, "gz")):
        assert sources._read_archive_members(Path("given"), data, ["a"]) == [b"3"]
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path.parent / "out").exists()


def zipped(data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", data)
    return out.getvalue()


ZEROS = bytes(40 << 20)
NO_SUMS = sources.DatasetSource("x", ("x",), ())
BOMBS = {
    "gz": lambda data: sources._read_file(NO_SUMS, "x", Path("x.gz")),
    "xz": lambda data: sources._read_file(NO_SUMS, "x", Path("x.xz")),
    "zip": lambda data: sources._read_archive_members(Path("given"), data, ["a"]),
    "tar.gz": lambda data: sources._read_archive_members(Path("given"), data, ["a"]),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs(kind, monkeypatch):
    pack = {"gz": gzip.compress, "xz": lambda d: lzma.compress(d, preset=0), "zip": zipped}
    make = pack.get(kind, lambda d: gzip.compress(tarred({"a": d}), 1))
    data = make(ZEROS)
    assert len(data) < len(ZEROS) // 100
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 22)
    monkeypatch.setattr(sources, "_read_bytes", lambda path: data)
    tracemalloc.start()
    with pytest.raises(DataError, match="at most 4,194,304 bytes"):
        BOMBS[kind](data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20


def test_a_checkpoint_cannot_name_a_file_elsewhere(tmp_path):
    home = tmp_path / "run"
    fit(rounds=1, out=home)
    secret = next(home.glob("state-*"))
    data = secret.read_bytes()
    listed = json.loads((home / "checkpoint.json").read_text())
    for name in ("../state-1.safetensors", str(secret.rename(tmp_path / secret.name))):
        (tmp_path / "state-1.safetensors").write_bytes(data)
        entry = listed[0] | {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
        (home / "checkpoint.json").write_text(json.dumps([entry]))
        with pytest.raises(CheckpointError, match="does not list checkpoints"):
            RunFolder(home).load_checkpoint()


def test_memory_of_a_node_stays_in_its_folder(tmp_path):
    for run in ("..", "../" * 5, "/etc", "a/b", "", "\x00" * 8):
        with pytest.raises(DataError):
            MemoryStore(tmp_path, run, 0)
    store = MemoryStore(tmp_path, "0123456789abcdef", 0)
    for version in ("../1-5f0c9a3e", "1-5f0c9a3e/..", "/1-5f0c9a3e", ""):
        with pytest.raises(DataError):
            store.write(version, {"x": torch.zeros(1)})


@pytest.mark.parametrize("label", ["..", "../../x", "/etc/passwd", "a/b", "\x00", "", ".", "~"])
def test_labels_of_a_study_are_names_of_one_folder(label, tmp_path):
    path = (tmp_path / folder_name(label)).resolve()
    assert path.parent == tmp_path.resolve()
