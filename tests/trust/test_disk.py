"""Full disks, folders that cannot be written, two at once, clocks that go back."""

import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tunefree as tf
from helpers import start_process, wait_for_child
from trust.kills import left
from tunefree import cli
from tunefree.core.errors import ArgumentError, CheckpointError, ResumeError, TunefreeError
from tunefree.report import collect
from tunefree.training.folder import RunFolder

CALLS = ("fsync", "replace", "mkdir", "write")


class Disk:
    """Fails from the n-th call on; 0 never does."""

    def __init__(self, monkeypatch, number):
        self.at, self.calls, self.number = 0, 0, number
        for name in CALLS:
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))
        for module in (os, io):
            name = "fdopen" if module is os else "open"
            monkeypatch.setattr(module, name, self.opened(getattr(module, name)))

    def meet(self):
        self.calls += 1
        if self.at and self.calls >= self.at:
            raise OSError(self.number, os.strerror(self.number))

    def counted(self, call):
        def wrapped(*args, **kwargs):
            self.meet()
            return call(*args, **kwargs)

        return wrapped

    def opened(self, call):
        def wrapped(name, mode="r", *args, **kwargs):
            if mode[0] in "wa":
                self.meet()
            file = call(name, mode, *args, **kwargs)
            return Full(file, self) if mode[0] in "wa" else file

        return wrapped


class Full:
    """A file that takes half of what is written when the disk is full."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        try:
            self._disk.meet()
        except OSError:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise
        return self._file.write(data)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch, errno.ENOSPC)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.trust)])
def test_a_disk_that_fills_up_at_any_write(train, whole, tmp_path, disk, step):
    disk.calls = 0
    train(out=tmp_path / "counted")
    total, sentences = disk.calls, set()
    assert total > 40
    for at in range(1, total, step):  # the last is of no consequence: all is written by then
        out = tmp_path / str(at)
        disk.calls, disk.at = 0, at
        with pytest.raises(TunefreeError, match="No space left on device") as caught:
            train(out=out)
        sentences.add(type(caught.value))
        disk.at = 0
        kept = 0
        if (out / "checkpoint.json").exists():
            run = tf.Run.load(out)
            kept = len(run.history)
            assert (f"rounds up to {kept} are safe" in str(caught.value)) or kept == 3
        train(out=out)
        assert left(out) == whole, at
    assert sentences == {ArgumentError, CheckpointError}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written(train, whole, tmp_path, disk, number, monkeypatch):
    out = tmp_path / "run"
    train(out=out)
    disk.number, disk.calls, disk.at = number, 0, 1
    with pytest.raises(ArgumentError, match=rf"can be written, got .*{os.strerror(number)}"):
        train(out=out)
    with pytest.raises(ArgumentError, match=r"fit\(out=\.\.\.\) must be a folder that can be"):
        train(out=tmp_path / "new")
    assert len(tf.Run.load(out).history) == 3
    assert left(out) == whole


def test_a_table_that_cannot_be_written(train, tmp_path, disk):
    def fill(event):
        disk.calls, disk.at = 0, 1 if event.round == 1 else 0

    said = (
        r"tf\.sinks\.Csv\(path=...\) must be a file that can be written, got '.*a\.csv': No space"
    )
    with pytest.raises(ArgumentError, match=said):
        train(callbacks=[fill, tf.sinks.Csv(tmp_path / "a.csv")])


def test_a_second_process_is_told_who_writes(train, whole, tmp_path):
    out, said = tmp_path / "run", []

    def second(event):
        with pytest.raises(ResumeError) as caught:
            train(out=out)
        said.append(str(caught.value))

    train(out=out, callbacks=[second])
    pid = os.getpid()
    assert set(said) == {
        f"The run in {str(out)!r} is being written by process {pid}. Wait for its end, stop it "
        f"(kill {pid}), or give another folder."
    }
    assert left(out) == whole
    assert not (out / "lock").exists()


HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
os.write(file, str(os.getpid()).encode())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("wide")
def test_a_lock_ends_with_its_process(train, whole, tmp_path, capsys):
    out = tmp_path / "run"
    out.mkdir()
    command = [sys.executable, "-c", HOLD, str(out / "lock")]
    with start_process(command, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ResumeError, match=rf"written by process {holder.pid}\. Wait"):
            train(out=out)
        words = "run --rounds 1 --clients 2 --steps 1 --device cpu --out"
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words.split(), str(out)])
        assert stopped.value.code == 2
        assert f"kill {holder.pid}" in capsys.readouterr().err
        holder.send_signal(signal.SIGKILL)
    assert (out / "lock").exists()
    train(out=out)
    assert left(out) == whole


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # from Python 3.12 on
def test_a_child_of_the_writer_does_not_hold_the_lock(train, whole, tmp_path):
    out, ends, children = tmp_path / "run", os.pipe(), []

    def fork(event):
        if not children:
            pid = os.fork()
            if not pid:
                os.read(ends[0], 1)  # lives on when the run has ended
                os._exit(0)
            children.append(pid)

    train(out=out, callbacks=[fork])
    train(out=out)
    os.write(ends[1], b".")
    wait_for_child(children[0])
    for end in ends:
        os.close(end)
    assert left(out) == whole


def test_a_clock_that_goes_back(train, whole, tmp_path, monkeypatch):
    out, clock = tmp_path / "run", itertools.count(2e9, -1e6)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * next(clock)))

    def stop(event):
        if event.round == 1:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(out=out, callbacks=[stop])
    for name in ("settings.json", "history.jsonl", "checkpoint.json"):
        os.utime(out / name, (4e9, 4e9))  # written in the future
    assert len(tf.Run.load(out).history) == 1
    run = train(out=out)
    assert left(out) == whole
    assert all(row["seconds"] >= 0 for row in run.history)


def test_a_file_from_the_future_is_no_running_run(train, tmp_path):
    out = tmp_path / "run"

    def stop(event):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(out=out, callbacks=[stop])
    assert collect.is_running(collect.read_run(out))
    os.utime(out / "history.jsonl", (4e9, 4e9))
    assert not collect.is_running(collect.read_run(out))


def test_a_state_that_is_named_is_not_written_again(tmp_path):
    """The same round with other numbers gets another file: a crash between finds the old one."""
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(4, {"x": torch.zeros(3)}, {})
    folder.save_checkpoint(8, {"x": torch.ones(3)}, {})
    before = (tmp_path / "state-000008.safetensors").stat().st_ino
    folder.save_checkpoint(8, {"x": torch.ones(3)}, {"status": "finished"})
    assert (tmp_path / "state-000008.safetensors").stat().st_ino == before
    assert RunFolder(tmp_path).load_checkpoint()[2] == {"status": "finished"}
    folder.save_checkpoint(8, {"x": torch.full((3,), 2.0)}, {})
    states = sorted(p.name for p in tmp_path.glob("state-*"))
    assert states[0].startswith("state-000008-")
    assert states[1:] == ["state-000008.safetensors"]
    assert torch.equal(RunFolder(tmp_path).load_checkpoint()[1]["x"], torch.full((3,), 2.0))


def test_what_a_crash_left_half_written_is_removed(train, whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name in (".state-000002.safetensors.ab12", ".settings.json.x", ".checkpoint.json.y"):
        (out / name).write_bytes(b"half")
    (out / ".mine").write_text("stays")
    train(out=out)
    assert [p.name for p in out.glob(".*")] == [".mine"]
    assert left(out) == whole


@pytest.fixture
def small(tmp_path):
    """A file system of so many bytes, where we may mount one."""
    place, mounted = tmp_path / "small", []
    place.mkdir()

    def mount(size):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            pytest.skip(f"no right to mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for there in mounted:
        subprocess.run(["umount", "-l", str(there)], check=True, timeout=60)


@pytest.mark.trust
def test_a_real_disk_that_is_full(train, tmp_path, small):
    """Rounds go on until the disk is full; after room was made, the run ends as it would have."""
    place = small("64k")
    (place / "ballast").write_bytes(bytes(28 << 10))
    train(out=tmp_path / "whole", rounds=100)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        train(out=place / "run", rounds=100)
    kept = len(tf.Run.load(place / "run").history)
    assert 0 < kept < 100
    assert f"rounds up to {kept} are safe" in str(caught.value)
    with pytest.raises(TunefreeError, match="No space left on device"):
        train(out=place / "run", rounds=100)
    (place / "ballast").unlink()
    assert len(tf.Run.load(place / "run").history) >= kept
    Path(place / "more").write_bytes(b"")
    subprocess.run(["mount", "-o", "remount,size=1m", str(place)], check=True, timeout=60)
    train(out=place / "run", rounds=100)
    assert left(place / "run") == left(tmp_path / "whole")
