"""Every file that is opened, as each kind of file: links, pipes, devices, folders, huge ones.

A folder of a run, a study or a node may come from somebody else. Whatever stands in the place of
one of its files: nothing outside of the folder changes, nothing hangs or takes all memory, and the
only errors are ours.
"""

import errno
import os
import re
import shutil
import signal
import stat
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import tunefree as tf
from flower.local import LocalTransport
from flower.local import train as train_nodes
from helpers import CrashError, wait_for_child
from tunefree import cli
from tunefree.core import files
from tunefree.core.errors import TunefreeError
from tunefree.data.wordpiece import WordPiece
from tunefree.flower.memory import MemoryStore
from tunefree.flower.secagg_client import FILE as SESSION
from tunefree.flower.secagg_client import MaskLog, SecAggClient, SecAggTerms
from tunefree.flower.secagg_server import MaskedRounds
from tunefree.privacy import Secure
from tunefree.report import collect, page, watch
from tunefree.study import comparison

SECONDS = 60
HUGE = 1 << 40
SCAFFOLD = tf.methods.get("scaffold")
VERSION = "0-5f0c9a3e"


def problem():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=draw)
    y = (x @ torch.randn(6, 3, generator=draw)).argmax(1)
    return tf.Federation(x, y, torch.arange(40) // 10, test=(x, y))


def fit(out, **more):
    torch.manual_seed(0)
    given = {"rounds": 3, "cohort": 3, "steps": 2, "batch": 5, "device": "cpu"} | more
    return tf.fit(nn.Linear(6, 3), problem(), SCAFFOLD, out=out, checkpoint_every=1, **given)


def crash(event):
    if event.round == 1:
        raise CrashError


def run_folder(home):
    """A run that was killed in round 1."""
    with pytest.raises(CrashError):
        fit(home, callbacks=[tf.sinks.Csv(home / "history.csv"), crash])
    (home / "report.html").write_text("old")
    (home / "model.safetensors").write_bytes(b"old")


def resume(home):
    fit(home, callbacks=[tf.sinks.Csv(home / "history.csv")])


def load(home):
    tf.Run.load(home)


def report(home):
    page.write(collect.load_groups([home]), home / "report.html")


def show(home):
    monitor = watch.RunMonitor([home])
    monitor.payload()
    monitor.payload()


def export(home):
    run = fit(None)
    for name in ("model.safetensors", "model.pt"):
        run.export(home / name)


def study(home):
    run = {"rounds": 2, "steps": 1, "device": "cpu"}
    methods = ["fedavg:lr=0.1", "fedavg:lr=0.2"]
    tf.compare(nn.Linear(6, 3), problem(), methods, seeds=1, out=home, **run)


def continue_study(home):
    study(home)


def read_study(home):
    comparison.Comparison.load(home)


def federation_folder(home):
    with pytest.raises(CrashError):
        serve(home, callbacks=[crash])


def serve(home, **more):
    transport = LocalTransport(home / "nodes", SCAFFOLD)
    train_nodes(SCAFFOLD, transport, out=home, **more)


def node_folder(home):
    store = MemoryStore(home, "0123456789abcdef", 0)
    store.write(VERSION, {"c": torch.zeros(3)})
    (store.path / SESSION).write_bytes(b"{}")


def read_memory(home):
    store = MemoryStore(home, "0123456789abcdef", 0)
    store.read(VERSION)
    store.prune(VERSION)


def write_memory(home):
    MemoryStore(home, "0123456789abcdef", 0).write(VERSION, {"c": torch.ones(3)})


def masked_folder(home):
    node_folder(home)
    (home / "masked-0.log").write_bytes(b"00\n")
    MaskedRounds(home).begin(3)
    MaskedRounds(home).keep(b"0", {"point 0": torch.zeros(3)})


def record_masks(home):
    record = MaskLog(MemoryStore(home, "0123456789abcdef", 0))
    record.check(b"1")
    record.add(b"1")


def record_rounds(home):
    MaskedRounds(home).begin(4)


def record_answers(home):
    rounds = MaskedRounds(home)
    rounds.recall(b"1", torch.zeros(3))
    rounds.keep(b"1", {"point 0": torch.zeros(3)})


def play(home):
    """The first two messages of a session."""
    terms = SecAggTerms.create(Secure(), 3, {"delta": (3,)})
    node = SecAggClient(MemoryStore(home, "0123456789abcdef", 0), terms, 3, "0" * 16, 0)
    node.answer("keys", b"")
    node.answer("shares", b"")


def go_on(home):
    terms = SecAggTerms.create(Secure(), 3, {"delta": (3,)})
    node = SecAggClient(MemoryStore(home, "0123456789abcdef", 0), terms, 3, "0" * 16, 0)
    node.answer("shares", b"")


def vocabulary(home):
    home.mkdir()
    (home / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")


def read_vocabulary(home):
    WordPiece.read(home / "vocab.txt")


RUN = ("settings.json", "history.jsonl", "checkpoint.json", "state-000001.safetensors", "lock")
DOORS = {  # what makes a folder, what opens its files, and the files
    "resume": (run_folder, resume, (*RUN, "history.csv", "model.safetensors")),
    "load": (run_folder, load, RUN[:4]),
    "report": (run_folder, report, (*RUN[:3], "report.html")),
    "watch": (run_folder, show, RUN[:3]),
    "export": (run_folder, export, ("model.safetensors", "model.pt")),
    "study": (study, continue_study, ("compare.json", "fedavg,lr=0.1/seed-0/settings.json")),
    "read study": (study, read_study, ("compare.json", "fedavg,lr=0.1/seed-0/checkpoint.json")),
    "server": (
        federation_folder,
        serve,
        ("server.lock", "nodes.json", "federation.log", "lock", "checkpoint.json"),
    ),
    "masks of a node": (masked_folder, record_masks, ("masked-0.log",)),
    "masks of a server": (masked_folder, record_rounds, ("masked.json",)),
    "answers of a server": (masked_folder, record_answers, ("masked.safetensors",)),
    "session of a node": (
        masked_folder,
        play,
        (f"0123456789abcdef/0/{SESSION}", "masked-0.lock", "masked-0.log"),
    ),
    "session goes on": (masked_folder, go_on, (f"0123456789abcdef/0/{SESSION}", "masked-0.lock")),
    "node reads": (node_folder, read_memory, (f"0123456789abcdef/0/{VERSION}.memory",)),
    "node writes": (node_folder, write_memory, (f"0123456789abcdef/0/{VERSION}.memory",)),
}
PAIRS = [(door, name) for door, (_, _, names) in DOORS.items() for name in names]


def link(path, victim):
    path.symlink_to(victim)


def dangling(path, victim):
    path.symlink_to(victim.parent / "new")


def link_to_zeros(path, victim):
    path.symlink_to("/dev/zero")


def device(path, victim):
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except OSError as error:
        pytest.skip(f"no right to make a device: {error}")


def pipe(path, victim):
    os.mkfifo(path)


def folder(path, victim):
    path.mkdir()
    (path / "file").write_text("inside")


def sparse(path, victim):
    try:
        with path.open("wb") as file:
            file.truncate(HUGE)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")


def hard_link(path, victim):
    os.link(victim, path)


KINDS = {
    f.__name__: f for f in (link, dangling, link_to_zeros, device, pipe, folder, sparse, hard_link)
}


@contextmanager
def time_limit(seconds):
    """Fail after a time, also within a system call that waits."""

    def late(number, frame):
        raise AssertionError(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders as they are made, by what makes them."""
    kept = {}

    def give(make, target):
        if make not in kept:
            kept[make] = tmp_path_factory.mktemp("made") / "folder"
            make(kept[make])
        shutil.copytree(kept[make], target, symlinks=True)

    return give


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("door", "name"), PAIRS, ids=[f"{d}-{n}" for d, n in PAIRS])
def test_a_file_of_another_kind(made, tmp_path, door, name, kind):
    make, act, _ = DOORS[door]
    home, outside = tmp_path / "folder", tmp_path / "outside"
    made(make, home)
    path, content = home / name, b"of somebody else\n"
    if kind == "hard_link" and path.exists():
        content = path.read_bytes()  # what can be read, to come as far as writing
    outside.mkdir()
    (outside / "victim").write_bytes(content)
    path.unlink(missing_ok=True)
    KINDS[kind](path, outside / "victim")
    before = os.lstat(path).st_mode
    with time_limit(SECONDS), suppress(TunefreeError):
        act(home)
    assert sorted(p.name for p in outside.iterdir()) == ["victim"]
    assert (outside / "victim").read_bytes() == content
    if kind == "folder":
        assert (path / "file").read_text() == "inside"
    if kind in ("link", "link_to_zeros", "device", "pipe"):
        assert os.lstat(path).st_mode == before  # and is not replaced either


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """Resuming a run used to truncate what its lock pointed to."""
    run_folder(tmp_path / "run")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(TunefreeError, match="it is a symbolic link, not a regular file"):
        fit(tmp_path / "run")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("kind", ["link_to_zeros", "device", "pipe", "sparse", "folder"])
def test_a_vocabulary_of_another_kind(tmp_path, kind):
    vocabulary(tmp_path / "data")
    (tmp_path / "data" / "vocab.txt").unlink()
    KINDS[kind](tmp_path / "data" / "vocab.txt", tmp_path / "victim")
    with time_limit(SECONDS), pytest.raises(TunefreeError, match=r"vocab\.txt must be a"):
        read_vocabulary(tmp_path / "data")


@pytest.mark.parametrize("kind", ["link_to_zeros", "device", "pipe", "sparse", "folder"])
@pytest.mark.parametrize("option", ["--config", "--csv"])
def test_a_file_of_the_command_line_of_another_kind(tmp_path, capsys, option, kind):
    """A pipe used to hang, and zeros without end to take all memory."""
    if option == "--csv" and kind == "sparse":
        pytest.skip("a table may be as large as its file")
    path = tmp_path / "file"
    KINDS[kind](path, tmp_path / "victim")
    with time_limit(SECONDS), pytest.raises(SystemExit) as caught:
        cli.main(["run", option, str(path), "--target", "y"])
    assert caught.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "not a regular file" in said or "more than" in said


def test_files_of_the_command_line_may_be_links(tmp_path, capsys):
    (tmp_path / "table.csv").write_text("a,y\n" + "1,0\n2,1\n" * 20)
    (tmp_path / "options.toml").write_text(f'csv = "{tmp_path / "link.csv"}"\ntarget = "y"\n')
    for name, end in (("table", "csv"), ("options", "toml")):
        (tmp_path / f"link.{end}").symlink_to(tmp_path / f"{name}.{end}")
    words = ["--clients", "2", "--rounds", "1", "--steps", "1", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--config", str(tmp_path / "link.toml"), *words])
    assert caught.value.code == 0


def test_a_vocabulary_may_be_a_link(tmp_path):
    vocabulary(tmp_path / "data")
    (tmp_path / "vocab.txt").symlink_to(tmp_path / "data" / "vocab.txt")
    read_vocabulary(tmp_path)


def test_systems_without_these_flags(tmp_path, monkeypatch):
    """Where O_NOFOLLOW is missing, the kind is still checked."""
    monkeypatch.setattr(files, "_NOFOLLOW", 0)
    monkeypatch.setattr(files, "_SAFE", 0)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("link", "a symbolic link"), ("pipe", "a named pipe")):
        for mode in ("rb", "ab", "wb"):
            with pytest.raises(OSError, match=said):
                files.open_regular(tmp_path / name, mode)
        with pytest.raises(OSError, match=said):
            files.write_atomically(tmp_path / name, b"x")
    files.write_file(tmp_path / "new", b"abc")
    files.write_file(tmp_path / "new", b"d")
    assert files.read_file(tmp_path / "new") == b"d"
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_file_that_becomes_a_link_between_the_checks(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "file").write_text("own")
    real = os.open

    def swap(path, *args, **kwargs):
        (tmp_path / "file").unlink()
        (tmp_path / "file").symlink_to(tmp_path / "victim")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(files.os, "open", swap)
    with pytest.raises(OSError) as caught:
        files.open_regular(tmp_path / "file", "wb")
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # from Python 3.12 on
@pytest.mark.parametrize("door", ["resume", "load", "report"])
def test_files_that_another_user_may_not_open(made, tmp_path, door):
    """Each file in turn belongs to root and nobody else may read it."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    make, act, names = DOORS[door]
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o711)
    for name in names:
        home = tmp_path / name.replace("/", "-")
        made(make, home)
        for path in (home, *home.iterdir()):
            os.chown(path, 65534, 65534)
        (home / name).touch()
        os.chown(home / name, 0, 0)
        (home / name).chmod(0)
        if not (pid := os.fork()):
            os.setresuid(65534, 65534, 65534)
            code = 1
            try:
                act(home)
                code = 0
            except TunefreeError as error:
                code = 0 if "Permission denied" in str(error) or name in str(error) else 2
            finally:
                os._exit(code)
        assert wait_for_child(pid) == 0, name


def test_the_report_keeps_its_permissions(tmp_path):
    run_folder(tmp_path / "run")
    report = page.write(collect.load_groups([tmp_path / "run"]), tmp_path / "new.html")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(report.stat().st_mode) == 0o666 & ~mask


OPENING = re.compile(
    r"(?<![\w.])open\(|os\.(open|fdopen)\(|\.(read|write)_(text|bytes)\(|FileHandler|memmap|"
    r"(np|torch)\.(load|save)\(|load_file|save_file|safe_open|\.open\("
)
ALLOWED = {  # by module, what it opens instead
    "core/files.py": "this is the one place",
    "core/device.py": "/proc and /sys",
    "simulation/memory.py": "new files, with O_EXCL, in a folder of their own",
    "advice/rules.py": "files of this package",
    "report/page.py": "files of this package",
    "flower/apps.py": "files of this package",
    "data/images.py": "files of this package, and arrays in memory",
    "data/sources.py": "files of this package, and archives in memory",
    "cli/__init__.py": "/dev/null",
    "training/run.py": "torch.save, to a file that was opened here",
    "flower/secagg_client.py": "a method of the protocol called open",
    "privacy/protocol_client.py": "a method of the protocol called open",
    "core/ranks.py": "bytes of another process of this job, in memory",
    "privacy/secure.py": "a method of the protocol called open",
}


def test_files_are_opened_in_one_place():
    """A new reader uses `core.files`, or is named here with the reason."""
    home = Path(files.__file__).parents[1]
    found = {
        str(path.relative_to(home))
        for path in home.rglob("*.py")
        for line in path.read_text().splitlines()
        if OPENING.search(line.split("#")[0]) and ">>>" not in line
    }
    assert found == set(ALLOWED)
